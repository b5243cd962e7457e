package gintrust

import (
	"log/slog"
	"net/http"
	"net/netip"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/clientkey"
)

// Address is the address of a request's client. The zero Address is not known yet.
type Address struct {
	Addr  netip.Addr // in its canonical form
	Text  string     // of an IPv4 address, and of one that cannot be read
	OK    bool       // it can be read
	Known bool       // Gin was asked
}

// ClientAddress returns the address of a request's client, and logs warnings as [Trust.warn] does: none of a nil
// Trust.
func (t *Trust) ClientAddress(c *gin.Context, log *slog.Logger, logged *Warnings) Address {
	if t != nil {
		f := t.found.Load()
		warns := f == nil
		for i := 0; !warns && i < len(f.headers); i++ {
			warns = len(c.Request.Header[f.headers[i]]) > 0
		}
		if warns {
			t.warn(c, log, logged)
		}
	}
	address := c.ClientIP()
	if address == "" { // Gin cannot read a zone, as in [fe80::1%eth0]:80
		if remote, err := netip.ParseAddrPort(c.Request.RemoteAddr); err == nil {
			return Address{clientkey.Canonical(remote.Addr()), "", true, true}
		}
	}
	addr, err := netip.ParseAddr(address)
	switch {
	case err != nil:
		return Address{addr, address, false, true}
	case addr.Is4(): // it has no other spelling
		if !strings.HasPrefix(c.Request.RemoteAddr, address) {
			address = strings.Clone(address) // rather than keep the whole header
		}
		return Address{addr, address, true, true}
	}
	return Address{clientkey.Canonical(addr), "", true, true}
}

const (
	maxLines = 8   // of a header that are looked at
	maxBytes = 512 // of a line
)

// portsHide reports whether Gin would find another address in a header if its addresses had no ports. It asks Gin
// about the header's end alone, where proxies add addresses, and does not read a header that Gin does not trust.
func (f *found) portsHide(c *gin.Context, header string) bool {
	asked := c.Copy()
	clientIP := func(header http.Header) string {
		asked.Request = (&http.Request{RemoteAddr: c.Request.RemoteAddr, Header: header}).WithContext(c.Request.Context())
		return asked.ClientIP()
	}
	if clientIP(http.Header{header: {claimed}}) != claimed {
		return false
	}
	ends := http.Header{}
	for _, name := range f.headers {
		if lines := c.Request.Header[name]; len(lines) > 0 {
			ends.Set(name, lastAddresses(lines))
		}
	}
	address := clientIP(ends)
	ends.Set(header, withoutPorts(ends.Get(header)))
	return clientIP(ends) != address
}

// lastAddresses returns the end of a list of addresses, of which a header has several lines.
func lastAddresses(lines []string) string {
	var ends []string
	for _, line := range lines[max(0, len(lines)-maxLines):] {
		if len(line) > maxBytes { // what comes before its end is out of sight
			_, line, _ = strings.Cut(line[len(line)-maxBytes:], ",")
			ends = nil
		}
		ends = append(ends, line)
	}
	return strings.Join(ends, ",")
}

// withoutPorts returns a list of addresses without their ports and brackets.
func withoutPorts(list string) string {
	entries := strings.Split(list, ",")
	for i, entry := range entries {
		entries[i] = withoutPort(entry)
	}
	return strings.Join(entries, ",")
}

// withoutPort returns 203.0.113.7 of 203.0.113.7:443, and 2001:db8::7 of [2001:db8::7]:443. Another
// text is returned as it is.
func withoutPort(entry string) string {
	text := strings.TrimSpace(entry)
	if strings.HasPrefix(text, "[") {
		if host, rest, found := strings.Cut(text[1:], "]"); found && (rest == "" || rest[0] == ':') {
			return host
		}
	} else if host, _, found := strings.Cut(text, ":"); found && strings.Count(text, ":") == 1 {
		return host
	}
	return entry
}

package gintrust

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/clientkey"
)

// ClientAddress returns the client's address in its canonical form, and its text if Gin has it: then it is an
// IPv4 address. It is false, with the text, for an address that cannot be read.
func ClientAddress(c *gin.Context) (addr netip.Addr, text string, ok bool) {
	address := c.ClientIP()
	if address == "" { // Gin cannot read a zone, as in [fe80::1%eth0]:80
		if remote, err := netip.ParseAddrPort(c.Request.RemoteAddr); err == nil {
			return clientkey.Canonical(remote.Addr()), "", true
		}
	}
	addr, err := netip.ParseAddr(address)
	switch {
	case err != nil:
		return addr, address, false
	case addr.Is4(): // it has no other spelling
		if !strings.HasPrefix(c.Request.RemoteAddr, address) {
			address = strings.Clone(address) // rather than keep the whole header
		}
		return addr, address, true
	}
	return clientkey.Canonical(addr), "", true
}

// portsHide reports whether Gin would find another address in a header if its addresses had no
// ports. It would not if the header is a client's, which Gin does not trust.
func portsHide(c *gin.Context, header string) bool {
	lines := c.Request.Header[header]
	if !slices.ContainsFunc(lines, hasPorts) {
		return false
	}
	bare := c.Copy()
	bare.Request = c.Request.Clone(c.Request.Context())
	for i, line := range lines {
		bare.Request.Header[header][i] = withoutPorts(line)
	}
	return bare.ClientIP() != c.ClientIP()
}

// hasPorts reports whether one of the addresses in a list, such as the value of X-Forwarded-For, has
// a port, or is of IPv6 and has brackets.
func hasPorts(list string) bool {
	if !strings.Contains(list, ":") { // most lists are of IPv4 alone
		return false
	}
	for entry := range strings.SplitSeq(list, ",") {
		if entry != withoutPort(entry) {
			return true
		}
	}
	return false
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

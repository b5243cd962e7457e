package ginlimit

import (
	"net"
	"net/http"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/clientkey"
)

// proxyTrust is what Gin makes of the headers of proxies, as the first request shows.
type proxyTrust struct {
	known   atomic.Bool
	spoof   atomic.Pointer[spoof]
	headers atomic.Pointer[[]string] // that Gin takes addresses from
}

// spoof is how clients can spoof their address. They cannot if there is no header.
type spoof struct {
	header string // that Gin takes addresses from
	line   bool   // Gin reads its first line alone, not the one that a proxy has added
}

// cause returns what Gin does, as log lines have it.
func (s spoof) cause() string {
	if s.line {
		return "reads only the first of several " + s.header + " lines, which a client may have sent"
	}
	return "trusts " + s.header + " from any client"
}

// remedy returns what to do about it.
func (s spoof) remedy() string {
	if s.line {
		return "Use Gin 1.12 or newer"
	}
	return "Call SetTrustedProxies with the addresses of your proxies, or with nil if there are none"
}

// of looks at a request's engine, if no request before was looked at.
func (t *proxyTrust) of(c *gin.Context) (s spoof, first bool) {
	if !t.known.Load() {
		found, headers := spoofOf(c), addressHeaders(c)
		t.spoof.Store(&found)
		t.headers.Store(&headers)
		first = !t.known.Swap(true)
	}
	return *t.spoof.Load(), first
}

// useAddress logs a warning if clients can spoof their address, and one if Gin cannot read it. A
// limiter logs each once.
func (p *Policy) useAddress(c *gin.Context) {
	if s, first := p.proxies.of(c); first && s.header != "" && !p.limiter.warned.Swap(true) {
		p.logger.WarnContext(c.Request.Context(), "ginlimit: Gin "+s.cause()+"; clients can spoof their IP. "+s.remedy())
	}
	if p.limiter.ports.Load() {
		return
	}
	for _, header := range *p.proxies.headers.Load() {
		if portsHide(c, header) && !p.limiter.ports.Swap(true) {
			p.logger.WarnContext(c.Request.Context(), "ginlimit: Gin cannot read "+header+", as its addresses have ports; "+
				"all clients of a proxy share one bucket, or are answered 500. "+
				"Remove the ports in middleware before the limiter: see Addresses with ports in docs/guide.md")
		}
	}
}

// portsHide reports whether Gin would find another address in a header if its addresses had no
// ports. It would not if the header is a client's, which Gin does not trust.
func portsHide(c *gin.Context, header string) bool {
	lines := c.Request.Header[header]
	if !slices.ContainsFunc(lines, clientkey.HasPorts) {
		return false
	}
	bare := c.Copy()
	bare.Request = c.Request.Clone(c.Request.Context())
	for i, line := range lines {
		bare.Request.Header[header][i] = clientkey.WithoutPorts(line)
	}
	return bare.ClientIP() != c.ClientIP()
}

// engineTrust is how the clients of one of Gin's engines can spoof their address.
type engineTrust struct {
	engine any // what identifies it
	spoof  spoof
}

// mayAllow reports whether the allow list counts: not if clients can spoof their address, as every
// client could choose to have no limit. A policy logs that once.
func (p *Policy) mayAllow(c *gin.Context) bool {
	trust := p.allows.Load()
	if engine := engineOf(c); trust == nil || trust.engine != engine {
		trust = &engineTrust{engine, spoofOf(c)}
		p.allows.Store(trust)
	}
	s := trust.spoof
	if s.header != "" && !p.allowLogged.Swap(true) {
		p.logger.ErrorContext(c.Request.Context(), "ginlimit: WithAllowList has no effect, as Gin "+s.cause()+
			", so that any client could pass for a listed one. "+s.remedy(), "name", p.name)
	}
	return s.header == ""
}

// spoofOf returns how the clients of a request's engine can spoof their address.
func spoofOf(c *gin.Context) spoof {
	forged := c.Copy()
	return findSpoof(remoteIPHeaders(c), trustedProxy(c), func(r *http.Request) string {
		forged.Request = r
		return forged.ClientIP()
	})
}

// findSpoof returns how clients can spoof an address that Gin takes from one of the headers. A header
// of the engine's TrustedPlatform is not one of them: with it the application states that every
// request comes through the platform.
func findSpoof(headers []string, proxy string, clientIP func(*http.Request) string) spoof {
	// All addresses here are for documentation (RFC 5737, RFC 3849).
	const claimed, real, noAddress = "198.51.100.1", "203.0.113.7", "no address"
	from := func(remote, header string, lines ...string) string {
		return clientIP(&http.Request{RemoteAddr: remote, Header: http.Header{http.CanonicalHeaderKey(header): lines}})
	}
	for _, header := range headers {
		for _, stranger := range []string{"192.0.2.1:1", "[2001:db8::1]:1"} {
			// Gin takes any text from the platform's header, and only addresses from other headers.
			if from(stranger, header, claimed) == claimed && from(stranger, header, noAddress) != noAddress {
				return spoof{header: header}
			}
		}
	}
	for _, header := range headers {
		if from(proxy, header, claimed+", "+real) == real && from(proxy, header, claimed, real) == claimed {
			return spoof{header: header, line: true}
		}
	}
	return spoof{}
}

// addressHeaders returns the headers that a context's engine takes addresses from, as requests have them.
func addressHeaders(context any) []string {
	headers := remoteIPHeaders(context)
	if platform := engineField(context, "TrustedPlatform"); platform.Kind() == reflect.String && platform.Len() > 0 {
		headers = append(headers, platform.String())
	}
	for i, header := range headers {
		headers[i] = http.CanonicalHeaderKey(header)
	}
	return headers
}

// remoteIPHeaders returns the RemoteIPHeaders of a context's engine, or Gin's defaults if this version
// of Gin has no such field.
func remoteIPHeaders(context any) []string {
	headers := engineField(context, "RemoteIPHeaders")
	if headers.Kind() != reflect.Slice || headers.Type().Elem().Kind() != reflect.String {
		return []string{"X-Forwarded-For", "X-Real-IP"}
	}
	names := make([]string, headers.Len())
	for i := range names {
		names[i] = headers.Index(i).String()
	}
	return names
}

// trustedProxy returns where a request of a proxy comes from that a context's engine trusts, or "".
func trustedProxy(context any) string {
	networks := engineField(context, "trustedCIDRs")
	if networks.Kind() != reflect.Slice || networks.Type() != reflect.TypeFor[[]*net.IPNet]() || networks.Len() == 0 {
		return ""
	}
	return net.JoinHostPort(net.IP(networks.Index(0).Elem().Field(0).Bytes()).String(), "1")
}

// engineOf returns what identifies a context's engine, for which Gin has no method, or nil if this
// version of Gin has no such field.
func engineOf(context any) any {
	if engine := reflect.ValueOf(context).Elem().FieldByName("engine"); engine.Kind() == reflect.Pointer {
		return engine.UnsafePointer()
	}
	return nil
}

// engineField returns a field of a context's engine, or the zero Value.
func engineField(context any, name string) reflect.Value {
	engine := reflect.Indirect(reflect.ValueOf(context).Elem().FieldByName("engine"))
	if engine.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	return engine.FieldByName(name)
}

package ginlimit

import (
	"sync/atomic"

	"github.com/gin-gonic/gin"
)

// proxyTrust is whether clients can spoof their address, as the first request shows.
type proxyTrust struct {
	known  atomic.Bool
	header atomic.Pointer[string] // that Gin trusts from any client; nil if there is none
}

// of looks at a request's engine, if no request before was looked at.
func (t *proxyTrust) of(c *gin.Context) (header string, first bool) {
	if !t.known.Load() {
		if header := trustedHeader(c, engineHeaders(c)); header != "" {
			t.header.Store(&header)
		}
		first = !t.known.Swap(true)
	}
	if header := t.header.Load(); header != nil {
		return *header, first
	}
	return "", first
}

// useAddress logs a warning if clients can spoof their address. A limiter warns once.
func (p *Policy) useAddress(c *gin.Context) {
	if header, first := p.proxies.of(c); first && header != "" && !p.limiter.warned.Swap(true) {
		p.logger.WarnContext(c.Request.Context(), "ginlimit: Gin trusts "+header+
			" from any client; clients can spoof their IP. "+
			"Call SetTrustedProxies with the addresses of your proxies, or with nil if there are none")
	}
}

// engineTrust is whether the clients of one of Gin's engines can spoof their address.
type engineTrust struct {
	engine any    // what identifies it
	header string // that it trusts from any client; "" if there is none
}

// mayAllow reports whether the allow list counts: not if clients can spoof their address, as every
// client could choose to have no limit. A policy logs that once.
func (p *Policy) mayAllow(c *gin.Context) bool {
	trust := p.allows.Load()
	if engine := engineOf(c); trust == nil || trust.engine != engine {
		trust = &engineTrust{engine, trustedHeader(c, engineHeaders(c))}
		p.allows.Store(trust)
	}
	header := trust.header
	if header != "" && !p.allowLogged.Swap(true) {
		p.logger.ErrorContext(c.Request.Context(), "ginlimit: WithAllowList has no effect, as Gin trusts "+header+
			" from any client, so that any client could pass for a listed one. "+
			"Call SetTrustedProxies with the addresses of your proxies, or with nil if there are none", "name", p.name)
	}
	return header == ""
}

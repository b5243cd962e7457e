package gintrust

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// claimed is an address that no client has. It and others here are for documentation (RFC 5737, RFC 3849).
const claimed = "198.51.100.1"

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
	const real, noAddress = "203.0.113.7", "no address"
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

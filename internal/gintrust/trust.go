// Package gintrust finds the client's address of a request, and whether a client can spoof it.
//
// It owns what is known of Gin's proxies: whose headers an engine trusts, and which headers it cannot read. Gin
// has no methods for that, so it looks into a context, and asks Gin about forged requests. It is the one package
// below the root that imports Gin. It must know no policy, limit or key function.
package gintrust

import (
	"log/slog"
	"math/rand/v2"
	"sync/atomic"

	"github.com/gin-gonic/gin"
)

// Trust is what Gin makes of the headers of proxies, as the first request shows. The zero Trust knows nothing
// yet.
type Trust struct {
	found  atomic.Pointer[found]
	logged atomic.Bool // that an allow list has no effect
}

// found is what is known of one of Gin's engines.
type found struct {
	engine  any // what identifies it
	spoof   spoof
	headers []string // that it takes addresses from
}

// Warnings are what a limiter logs once. The zero Warnings were not logged.
type Warnings struct {
	spoof atomic.Bool  // that clients can spoof their addresses
	ports atomic.Bool  // that Gin cannot read addresses with ports
	looks atomic.Int32 // for such ports
}

const (
	firstLooks = 16  // requests with a header of addresses that are looked at for ports
	thenOneOf  = 256 // later requests, as whoever sends the header chooses its length
)

// look reports whether to look at a request's header for ports.
func (w *Warnings) look() bool {
	if w.looks.Load() < firstLooks {
		return w.looks.Add(1) <= firstLooks
	}
	return rand.IntN(thenOneOf) == 0
}

// look looks at a request's engine.
func (t *Trust) look(c *gin.Context) *found {
	f := &found{engineOf(c), spoofOf(c), addressHeaders(c)}
	t.found.Store(f)
	return f
}

// warn logs a warning if clients can spoof their address, and one if Gin cannot read it. It looks at the
// engine of the first request alone.
func (t *Trust) warn(c *gin.Context, log *slog.Logger, logged *Warnings) {
	f := t.found.Load()
	if f == nil {
		f = t.look(c)
		if f.spoof.header != "" && !logged.spoof.Swap(true) {
			log.WarnContext(c.Request.Context(),
				"ginlimit: Gin "+f.spoof.cause()+"; clients can spoof their IP. "+f.spoof.remedy())
		}
	}
	if logged.ports.Load() {
		return
	}
	for _, header := range f.headers {
		if len(c.Request.Header[header]) == 0 || !logged.look() {
			continue
		}
		if f.portsHide(c, header) && !logged.ports.Swap(true) {
			log.WarnContext(c.Request.Context(), "ginlimit: Gin cannot read "+header+", as its addresses have ports; "+
				"all clients of a proxy share one bucket, or are answered 500. "+
				"Remove the ports in middleware before the limiter: see Addresses with ports in docs/guide.md")
		}
	}
}

// MayAllow reports whether a policy's allow list counts: not if clients of the request's engine can spoof
// their address, as every client could choose to have no limit. It logs that once.
func (t *Trust) MayAllow(c *gin.Context, log *slog.Logger, policy string) bool {
	f := t.found.Load()
	if f == nil || f.engine != engineOf(c) {
		f = t.look(c)
	}
	if f.spoof.header == "" {
		return true
	}
	if !t.logged.Swap(true) {
		log.ErrorContext(c.Request.Context(), "ginlimit: WithAllowList has no effect, as Gin "+f.spoof.cause()+
			", so that any client could pass for a listed one. "+f.spoof.remedy(), "name", policy)
	}
	return false
}

package transport

import (
	"context"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit"
)

// compareGap is how often a process compares what a partner and the policy have left of a key.
const compareGap = 100 * time.Millisecond

// compared is when a process has last compared keys, [maxKeys] at most.
type compared struct {
	mu sync.Mutex // guards at
	at map[string]time.Time
}

// due reports whether it is time to compare a key again, and notes that it is compared.
func (c *compared) due(key string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, known := c.at[key]
	if known && now.Sub(last) < compareGap {
		return false
	}
	if c.at == nil {
		c.at = map[string]time.Time{}
	}
	for other := range c.at { // any
		if known || len(c.at) < maxKeys {
			break
		}
		delete(c.at, other)
	}
	c.at[key] = now
	return true
}

// lower takes what the policy has left beyond what a response says and what may have flowed back since. A partner
// that is wrong costs no more than what flows back in the longest stop.
func (a *attempt) lower(ctx context.Context, h http.Header) {
	t, took, tokens := a.t, a.took, a.t.cost != nil
	said := reportOf(h, tokens)
	if said.isEmpty() {
		return
	}
	if r := a.reserved.Result(); r.Limit.Rate > 0 { // else it is of slots, or nothing is reserved
		if left, known := said.remaining(r.Limit.Period); known && r.Remaining <= left {
			return
		}
	}
	if !t.compared.due(a.key, time.Now()) {
		return
	}
	// The response counts also if the policy cannot be lowered.
	_ = t.has.Lower(context.WithoutCancel(ctx), a.key, func(limit any) (stay, most int) {
		l, ok := limit.(ginlimit.Limit)
		if !ok || l.Algorithm != ginlimit.TokenBucket && l.Period > t.maxStop {
			return 0, 0
		}
		stay, known := said.remaining(l.Period)
		if !known {
			return 0, 0
		}
		since := int(math.Ceil(flowed(l, time.Since(took))))
		return min(stay, math.MaxInt-since) + since, int(flowed(l, t.maxStop))
	})
}

package transport

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
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

// maxLowering is how many keys are lowered in the background at the same time. The response of a further key waits.
const maxLowering = 256

// maxLowerWait is how long a response or request waits for a correction at most. What is done in the background is
// given as long, but a function of the policy may take longer.
const maxLowerWait = 5 * time.Second

// lowering are the keys that are lowered in the background, each by one correction at a time.
type lowering struct {
	n    atomic.Int64 // of keys
	mu   sync.Mutex   // guards keys and what they have
	keys map[string]*corrections
}

// corrections are the one that is on its way, and the newest one that came meanwhile; nil is none.
type corrections struct{ running, next *correction }

// correction is what a response said of a key.
type correction struct {
	said  report
	took  time.Time     // when its request took its tokens
	least int           // of what it said is left
	done  chan struct{} // is closed when the policy has no more than that left
	until time.Time     // nobody waits for it any longer
}

// add adds a correction. It begins at once if begins is true, and later if another one is on its way. Without ok there
// are too many.
func (l *lowering) add(key string, c *correction) (begins, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.until = time.Now().Add(maxLowerWait)
	of := l.keys[key]
	switch {
	case of == nil && len(l.keys) >= maxLowering:
		return false, false
	case of == nil:
		if l.keys == nil {
			l.keys = map[string]*corrections{}
		}
		l.keys[key] = &corrections{running: c}
		l.n.Store(int64(len(l.keys)))
		return true, true
	case of.next != nil:
		c.done, c.until = of.next.done, of.next.until // it is replaced
	}
	of.next = c
	return false, true
}

// end ends the correction of a key that is on its way, and returns the next one, if there is one.
func (l *lowering) end(key string) (next *correction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.keys[key]
	close(of.running.done)
	if of.running, of.next = of.next, nil; of.running == nil {
		delete(l.keys, key)
		l.n.Store(int64(len(l.keys)))
	}
	return of.running
}

// wait waits for the newest correction of a key if less than n is left by it. A request that has fewer tokens need not
// wait: it could be sent all the same.
func (l *lowering) wait(ctx context.Context, key string, n int) {
	if l.n.Load() == 0 {
		return
	}
	l.mu.Lock()
	var newest *correction
	if of := l.keys[key]; of != nil {
		newest = cmp.Or(of.next, of.running)
	}
	l.mu.Unlock()
	if newest == nil || newest.least >= n {
		return
	}
	late := time.NewTimer(time.Until(newest.until))
	defer late.Stop()
	select {
	case <-newest.done:
	case <-late.C:
	case <-ctx.Done():
	}
}

// lower has the policy lowered to what a response says, in the background: the response need not wait for Redis.
func (a *attempt) lower(ctx context.Context, h http.Header) {
	t := a.t
	said := reportOf(h, t.cost != nil)
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
	c := &correction{said: said, took: a.took, least: said.least(), done: make(chan struct{})}
	switch begins, ok := t.lowering.add(a.key, c); {
	case begins:
		t.correct(a.key, c)
	case !ok:
		t.lower(context.WithoutCancel(ctx), a.key, c)
	}
}

// correct lowers a key in the background, and then by what was said meanwhile. After Close it does nothing.
func (t *transport) correct(key string, c *correction) {
	end := func() {
		if next := t.lowering.end(key); next != nil {
			t.correct(key, next)
		}
	}
	begun := t.has.Later(func(ctx context.Context) {
		defer end() // also if a function of the policy panics
		t.lower(ctx, key, c)
	})
	if !begun {
		end()
	}
}

// lower takes what the policy has left beyond what a response says and what may have flowed back since. A partner
// that is wrong costs no more than what flows back in the longest stop.
func (t *transport) lower(ctx context.Context, key string, c *correction) {
	// The response counts also if the policy cannot be lowered.
	_ = t.has.Lower(ctx, key, func(l ginlimit.Limit) (floor, limit int) {
		if l.Algorithm != ginlimit.TokenBucket && l.Period > t.maxStop {
			return 0, 0
		}
		left, known := c.said.remaining(l.Period)
		if !known {
			return 0, 0
		}
		since := int(math.Ceil(flowed(l, time.Since(c.took))))
		return min(left, math.MaxInt-since) + since, int(flowed(l, t.maxStop))
	})
}

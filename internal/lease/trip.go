package lease

import (
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// prefetchTime is how long a call that takes tokens ahead keeps others from doing so.
const prefetchTime = 2 * time.Second

// Trip is a call to Redis about a key, from before it is sent until it is answered. One goroutine
// owns it.
type Trip struct {
	cache       *Cache
	entry       *entry // nil if the key is not watched
	eligible    bool   // the key may be watched
	life        time.Duration
	charges     int64 // the caller's charges, of n tokens each
	n           int64
	ahead       int64  // further charges
	prefetching int64  // the value set in entry.prefetching
	era         uint64 // of the cache at Begin
}

// Begin begins a trip of a call for charges of n tokens, which may take tokens ahead for a life.
func (c *Cache) Begin(s Subject, life time.Duration, charges, n int64) Trip {
	t := Trip{cache: c, life: life, charges: charges, n: n, era: c.era()}
	for i := range s.Buckets {
		if perLife(&s.Buckets[i], life)/2 < n {
			return t // a lease would gain nothing
		}
	}
	t.eligible = true
	if t.entry = c.find(&s); t.entry == nil {
		return t
	}
	t.ahead = t.chargesAhead()
	return t
}

// Charges returns how many charges the call makes.
func (t *Trip) Charges() int64 { return t.charges + t.ahead }

// chargesAhead returns how many charges to make ahead, and if any, keeps other calls from doing so.
// It is limited to the tokens used within a life, to those that flow back in it, and to half of the
// tokens left.
func (t *Trip) chargesAhead() int64 {
	e, c := t.entry, t.cache
	now := time.Now()
	if !c.trusted(e.buckets) || c.changed(e.hash, now) || c.changedOften(e.hash) {
		return 0
	}
	tokens := min(e.usage.perLife(c.now(), t.life), (e.room.Load()-t.charges*t.n)/2)
	for i := range e.buckets {
		tokens = min(tokens, perLife(&e.buckets[i], t.life))
	}
	if l := c.current(e); l != nil {
		tokens -= l.valid(e.buckets, now.Sub(l.sent))
	}
	if tokens < t.n {
		return 0
	}
	at, since := int64(c.now()), e.prefetching.Load()
	if since != 0 && at-since < int64(prefetchTime) || !e.prefetching.CompareAndSwap(since, at) {
		return 0
	}
	t.prefetching = at
	return tokens / t.n
}

// End ends a trip: requested is the number of charges sent, found are the states that Redis found.
// It keeps the tokens taken ahead.
func (t *Trip) End(s Subject, requested int64, found []bucket.State, sent, received time.Time) {
	c, e := t.cache, t.entry
	if !t.eligible {
		return
	}
	if e == nil {
		if !c.visited(s.Hash) {
			return
		}
		if e = c.add(&s); e == nil {
			return
		}
		t.entry = e
	}
	defer t.endPrefetch()
	granted := min(requested, t.Charges())
	for i := range e.buckets {
		granted = e.buckets[i].Fit(found[i].Level, granted, t.n)
	}
	room, after := int64(bucket.MaxUnits), make([]bucket.State, len(found))
	for i := range e.buckets {
		b := &e.buckets[i]
		if after[i] = found[i]; granted > 0 {
			after[i] = b.Charged(found[i], granted, t.n)
		}
		room = min(room, b.Remaining(after[i].Level))
	}
	now := c.now()
	own := min(t.charges, granted)
	e.usage.rotate(now, t.life)
	e.usage.add(own * t.n)
	e.room.Store(room)
	e.last.Store(int64(now))
	if !c.clock.Always() {
		// levels fall by give-backs too
		if timed := bucket.Timed(e.buckets); timed >= 0 && !c.gaveBackSince(e.hash, sent) {
			e.watch.observe(c, e, timed, reading{
				found: found[timed], after: after[timed], sent: sent, received: received,
			})
		}
	}
	if granted > 0 {
		t.keepLease(granted, (granted-own)*t.n, found, after, sent, received)
	}
}

// keepLease stores a new lease after granted charges, of which ahead tokens were taken ahead. It
// includes the valid tokens of the lease before.
func (t *Trip) keepLease(granted, ahead int64, found, after []bucket.State, sent, received time.Time) {
	c, e := t.cache, t.entry
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.era != c.era() || c.changed(e.hash, sent) {
		return // its tokens may be void
	}
	l := &lease{own: make([]int64, len(after)), after: after, sent: sent, received: received, life: t.life, era: t.era}
	before := c.current(e)
	if before != nil && before.sent.After(sent) && bucket.Timed(e.buckets) >= 0 && !bucket.Tokens(e.buckets) {
		return // its tokens may be of an earlier window; a calendar's key names its period
	}
	if before == nil {
		for i := range e.buckets {
			l.own[i] = granted * e.buckets[i].Charge(t.n)
		}
	} else {
		l.charge(before, e.buckets, found, granted, t.n)
		left := before.valid(e.buckets, time.Since(before.sent)) // this decision renews its life
		// own may have been less in between: only their own charge covers these tokens
		if before.sent.After(sent) {
			for i := range e.buckets {
				if b := &e.buckets[i]; b.Kind == bucket.Token {
					ahead = min(ahead, undrained(b, granted*b.Charge(t.n), drained(time.Since(sent)))/b.Cost)
				}
			}
			l.after, l.sent, l.received = before.after, before.sent, before.received
		} else { // others may have given back more than their own
			for i := range e.buckets {
				left = min(left, found[i].Level/e.buckets[i].Cost)
			}
		}
		ahead += min(left, before.left.Swap(0))
	}
	l.left.Store(ahead)
	e.lease.Store(l)
}

// Fail ends a trip without an answer, or with an error. Tokens that it took ahead are lost.
func (t *Trip) Fail() {
	if t.entry != nil {
		t.cache.remove(t.entry) // its state is unknown now
	}
}

func (t *Trip) endPrefetch() {
	t.entry.prefetching.CompareAndSwap(t.prefetching, 0)
}

// usage counts the tokens used lately.
type usage struct {
	current, previous atomic.Int64 // in this span and in the previous one, each as long as a lease's life
	began             atomic.Int64 // when this span began, since the cache's start
}

func (u *usage) add(n int64) { u.current.Add(n) }

// rotate begins another span if this one is over.
func (u *usage) rotate(now, life time.Duration) {
	since := u.began.Load()
	passed := now - time.Duration(since)
	if passed < life || !u.began.CompareAndSwap(since, int64(now)) {
		return
	}
	current := u.current.Swap(0)
	if passed >= 2*life {
		current = 0
	}
	u.previous.Store(current)
}

// perLife returns the tokens used within a life, as if the previous span's tokens had been used
// evenly.
func (u *usage) perLife(now, life time.Duration) int64 {
	u.rotate(now, life)
	passed := now - time.Duration(u.began.Load())
	part := float64(max(0, life-passed)) / float64(life)
	return u.current.Load() + int64(float64(u.previous.Load())*part)
}

package lease

import (
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// prefetchTime is after how long another call may ask for tokens ahead, though one that does so has
// not ended.
const prefetchTime = 2 * time.Second

// Trip is a call to Redis about a key, from before it is sent until it was answered. One goroutine
// owns it.
type Trip struct {
	cache       *Cache
	entry       *entry // nil if the key is not watched
	worth       bool   // the key is worth watching
	life        time.Duration
	charges     int64 // that the caller wants, each of n tokens
	n           int64
	ahead       int64  // charges on top
	prefetching int64  // what entry.prefetching was set to
	era         uint64 // of the cache, when it began
}

// Begin begins a trip of a call for so many charges of n tokens, which may take tokens ahead for a
// life.
func (c *Cache) Begin(s Subject, life time.Duration, charges, n int64) Trip {
	t := Trip{cache: c, life: life, charges: charges, n: n, era: c.era()}
	for i := range s.Buckets {
		if perLife(&s.Buckets[i], life)/2 < n {
			return t // nothing to gain
		}
	}
	t.worth = true
	if t.entry = c.find(&s); t.entry == nil {
		return t
	}
	t.ahead = t.want()
	return t
}

// Charges returns how many charges the call is to make.
func (t *Trip) Charges() int64 { return t.charges + t.ahead }

// want returns how many charges to make ahead, and if there are any, has nobody else do so: for as
// many tokens as were used within a life, at most as many as flow back in it, and at most half of
// what is left.
func (t *Trip) want() int64 {
	e, c := t.entry, t.cache
	now := time.Now()
	if !c.trusted(e.buckets) || c.changed(e.hash, now) || c.restless(e.hash) {
		return 0
	}
	tokens := min(e.usage.within(c.now(), t.life), (e.room.Load()-t.charges*t.n)/2)
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

// End ends a trip by which so many charges were asked for: with the states that Redis found, and
// when it was asked and had answered. It keeps what was taken ahead.
func (t *Trip) End(s Subject, requested int64, found []bucket.State, sent, received time.Time) {
	c, e := t.cache, t.entry
	if !t.worth {
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
		if timed := bucket.Timed(e.buckets); timed >= 0 && !c.fell(e.hash, sent) { // what was given back does not flow back
			e.watch.learn(c, e, timed, reading{
				found: found[timed], after: after[timed], sent: sent, received: received,
			})
		}
	}
	if granted > 0 {
		t.keep(granted, (granted-own)*t.n, found, after, sent, received)
	}
}

// keep notes that so many charges were made, by which so many tokens were taken ahead. What was
// left of the lease before is part of the new one.
func (t *Trip) keep(granted, ahead int64, found, after []bucket.State, sent, received time.Time) {
	c, e := t.cache, t.entry
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.era != c.era() || c.changed(e.hash, sent) {
		return // nobody knows what is left of it
	}
	l := &lease{own: make([]int64, len(after)), after: after, sent: sent, received: received, life: t.life, era: t.era}
	before := c.current(e)
	if before != nil && before.sent.After(sent) && !bucket.Tokens(e.buckets) {
		return // they may be of a window that is over
	}
	if before == nil {
		for i := range e.buckets {
			l.own[i] = granted * e.buckets[i].Charge(t.n)
		}
	} else {
		l.charge(before, e.buckets, found, granted, t.n)
		left := before.valid(e.buckets, time.Since(before.sent)) // this decision renews its life
		if before.sent.After(sent) {                             // own may have been less meanwhile: only their own charge answers for these
			for i := range e.buckets {
				if b := &e.buckets[i]; b.Kind == bucket.Token {
					ahead = min(ahead, notDrained(b, granted*b.Charge(t.n), drained(time.Since(sent)))/b.Cost)
				}
			}
			l.after, l.sent, l.received = before.after, before.sent, before.received
		} else { // others may have given back more than was theirs
			for i := range e.buckets {
				left = min(left, found[i].Level/e.buckets[i].Cost)
			}
		}
		ahead += min(left, before.left.Swap(0))
	}
	l.left.Store(ahead)
	e.lease.Store(l)
}

// Fail ends a trip that was not answered, or was answered by an error. What it has taken ahead, if
// anything, is lost.
func (t *Trip) Fail() {
	if t.entry != nil {
		t.cache.remove(t.entry) // its figures are wrong now
	}
}

func (t *Trip) endPrefetch() {
	t.entry.prefetching.CompareAndSwap(t.prefetching, 0)
}

// usage is how many tokens were used lately.
type usage struct {
	current, before atomic.Int64 // in this span of time, and in the one before, which was as long as a lease's life
	since           atomic.Int64 // when this span began, since the cache's start
}

func (u *usage) add(n int64) { u.current.Add(n) }

// rotate begins another span if this one is over.
func (u *usage) rotate(now, life time.Duration) {
	since := u.since.Load()
	passed := now - time.Duration(since)
	if passed < life || !u.since.CompareAndSwap(since, int64(now)) {
		return
	}
	current := u.current.Swap(0)
	if passed >= 2*life {
		current = 0
	}
	u.before.Store(current)
}

// within returns how many tokens were used within a life, as if those of the span before had been
// used evenly.
func (u *usage) within(now, life time.Duration) int64 {
	u.rotate(now, life)
	passed := now - time.Duration(u.since.Load())
	part := float64(max(0, life-passed)) / float64(life)
	return u.current.Load() + int64(float64(u.before.Load())*part)
}

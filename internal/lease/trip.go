package lease

import (
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// maxWaiters is how many callers may wait for a call that finds that processes hold as much as they
// may. If there are more, the process takes nothing ahead for a quarter of a life, so that callers
// need not wait for each other.
const maxWaiters = 4

// windowShare is the part of what a window has left that a process takes ahead at most: others need
// some of it, too, before the window ends.
const windowShare = 8

// Trip is a call to Redis about a key, from before it is sent until it is answered. One goroutine
// owns it.
type Trip struct {
	cache *Cache
	entry *entry // nil if the key is not watched
	life  time.Duration
	op    bucket.Op // of the caller, with what is taken ahead
	own   *Prefetch // that it is itself, if it takes tokens ahead
	other *Prefetch // that takes tokens ahead
	era   uint64    // of the cache at Begin
}

// Prefetch is a call in flight that takes tokens ahead. Other callers of its key wait for it.
type Prefetch struct {
	Done    chan struct{} // closed when it has ended
	Err     error         // of the call, once Done is closed
	waiting atomic.Int64  // how many callers wait, or waited
}

// Begin begins a trip of a call that takes n tokens for each of its charges, and may take others
// ahead for a life.
func (c *Cache) Begin(s Subject, life time.Duration, charges, n int64) Trip {
	op := bucket.Op{Verb: bucket.Take, Charges: charges, N: n}
	t := Trip{cache: c, life: life, op: op, era: c.outages.Load()}
	if t.entry = c.find(&s); t.entry != nil {
		if t.other = t.entry.prefetch.Load(); t.other == nil {
			t.takeAhead()
		}
	}
	return t
}

// Other returns a call in flight that takes tokens of the same key ahead, for the caller to wait for,
// or nil. If there is one, the trip has not begun.
func (t *Trip) Other() *Prefetch {
	if t.other != nil {
		t.other.waiting.Add(1)
	}
	return t.other
}

// Op returns what the call does. Windows have no lease bucket: what is taken ahead of them are charges
// like the caller's.
func (t *Trip) Op() bucket.Op {
	op := t.op
	if t.entry != nil && !bucket.Tokens(t.entry.buckets) {
		op.Charges, op.Ahead, op.Held = op.Charges+op.Ahead, 0, 0
	}
	return op
}

// TakesAhead reports whether the call takes tokens ahead, or is to hold some for longer.
func (t *Trip) TakesAhead() bool { return t.op.Ahead+t.op.Held > 0 }

// takeAhead decides what to take ahead and to hold for longer, and if anything, keeps other calls
// from doing so.
func (t *Trip) takeAhead() {
	e, c, now := t.entry, t.cache, time.Now()
	if c.changed(e.hash, now) || int64(c.now()) < e.pausedUntil.Load() {
		return
	}
	wanted := min(e.usage.perLife(c.now(), t.life), bucket.MaxUnits)
	if bucket.Tokens(e.buckets) {
		wanted -= t.op.Charges * t.op.N // the caller's own
	}
	if wanted < t.op.N {
		return // a lease would gain nothing
	}
	held := int64(0)
	if l := c.current(e); l != nil {
		held = l.held(now.Sub(l.sent))
	}
	held = min(held, 2*wanted) // rather than give back what a little more use would take
	ahead := max(0, wanted-held)
	if !bucket.Tokens(e.buckets) {
		// Nothing flows back: leave others as much. What is held need not be taken again.
		ahead = min(ahead, (e.room.Load()-t.op.Charges*t.op.N)/windowShare)
	}
	ahead = max(0, ahead/t.op.N)
	if ahead+held == 0 {
		return
	}
	prefetch := &Prefetch{Done: make(chan struct{})}
	if !e.prefetch.CompareAndSwap(nil, prefetch) {
		t.other = e.prefetch.Load() // nil if it has just ended: then this call takes no more than its own
		return
	}
	t.own, t.op.Ahead, t.op.Held = prefetch, ahead, held
}

// End ends a trip with the states that Redis found of the limits, and of the lease bucket if there is
// one. It keeps what was taken ahead. It returns the limits' states after the trip, or nil of a key that is not
// watched and had enough, and whether the limit had less than was asked for.
func (t *Trip) End(s Subject, found []bucket.State, sent, received time.Time) (after []bucket.State, short bool) {
	ahead, held, debt := t.bounded(&s, found)
	if ahead < t.op.Ahead && t.own.waiting.Load() >= maxWaiters {
		t.entry.pausedUntil.Store(int64(t.cache.now() + t.life/4))
	}
	asked := t.op.Charges + ahead
	granted := asked
	for i := range s.Buckets {
		granted = s.Buckets[i].Fits(found[i], granted, t.op.N)
	}
	if !t.watches(&s) && granted == asked {
		return nil, false
	}
	after = make([]bucket.State, len(s.Buckets))
	for i := range s.Buckets {
		if after[i] = found[i]; granted > 0 {
			after[i] = s.Buckets[i].Charged(found[i], granted, t.op.N)
		}
	}
	if t.entry != nil {
		own := min(t.op.Charges, granted)
		t.note(after)
		if !bucket.Tokens(s.Buckets) {
			t.entry.usage.add(own * t.op.N)
		}
		if t.TakesAhead() {
			t.keepLease((granted-own)*t.op.N, held, debt, taken{after, sent, received})
		}
		t.Fail(nil)
	}
	return after, granted < asked
}

// watches reports whether the key is watched, if need be from now on.
func (t *Trip) watches(s *Subject) bool {
	if t.entry == nil && t.cache.visited(s.Hash) {
		t.entry = t.cache.add(s)
	}
	return t.entry != nil
}

// note notes what a decision left.
func (t *Trip) note(after []bucket.State) {
	c, e := t.cache, t.entry
	room := int64(bucket.MaxUnits)
	for i := range e.buckets {
		room = min(room, e.buckets[i].Remaining(after[i].Level))
	}
	now := c.now()
	e.usage.rotate(now, t.life)
	e.room.Store(room)
	e.last.Store(int64(now))
}

// bounded returns how many charges the lease bucket had room for, and for how many tokens that are
// held for longer. None are if a limit is blocked or in debt. See lease.lua.
func (t *Trip) bounded(s *Subject, found []bucket.State) (ahead, held int64, debt bool) {
	ahead, held = t.op.Ahead, t.op.Held
	if s.Ahead == nil || !t.TakesAhead() {
		return ahead, held, false
	}
	for i := range s.Buckets {
		if found[i].Level > s.Buckets[i].Capacity {
			held, debt = 0, true
		}
	}
	room := s.Ahead.Remaining(found[len(s.Buckets)].Level)
	held = min(held, room)
	return min(ahead, (room-held)/t.op.N), held, debt
}

// keepLease stores a new lease of tokens that were taken ahead, and of those held before. If the lease
// bucket has no room to hold all of these for longer that are wanted, the new lease ends when the one
// before would have ended. In debt, nothing is kept. It gives the others back.
func (t *Trip) keepLease(ahead, held int64, debt bool, call taken) {
	c, e := t.cache, t.entry
	e.mu.Lock()
	defer e.mu.Unlock()
	l := &lease{
		taken: call, own: ahead, life: t.life, end: windowEnd(e.buckets, call.after), era: t.era,
	}
	l.first = l.taken
	if before, current := e.lease.Load(), c.current(e); before != nil {
		// Redis has held them for longer before they were let go, and a window that has not ended by
		// now is the one that this decision found.
		age := time.Since(before.sent)
		n, kept := before.finish(), int64(0)
		switch wanted := min(n, t.op.Held); {
		case debt || before != current || age >= min(before.life, before.end):
		case held < wanted && age < usedFor(before.life):
			kept, l.sent = wanted, before.sent
		default:
			kept = min(n, held)
		}
		if c.closing.Load() { // nobody uses them: Drain gives them back
			kept = n
		}
		if kept > 0 {
			l.first = before.firstOf(n)
		}
		ahead += kept
		c.giveBack(e.unused(n-kept, before)...)
	}
	l.left.Store(ahead)
	e.lease.Store(l)
	c.returnLater(e, l)
}

// Fail ends a trip with an error, if it has not ended. What Redis may have taken ahead is lost.
func (t *Trip) Fail(err error) {
	if t.own == nil {
		return
	}
	t.entry.prefetch.CompareAndSwap(t.own, nil)
	t.own.Err = err
	close(t.own.Done)
	t.own = nil
}

// maxUsed bounds what one request counts for, so that the sum is exact.
const maxUsed = 1 << 32

// usage counts the tokens that were asked for lately, or of windows, where nothing flows back, those
// that were used.
type usage struct {
	current, previous atomic.Int64 // in this span and in the previous one, each as long as a lease's life
	began             atomic.Int64 // when this span began, since the cache's start
}

func (u *usage) add(n int64) { u.current.Add(min(n, maxUsed)) }

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
	u.previous.Store(int64(float64(current) * float64(life) / float64(passed)))
}

// perLife returns the tokens used within a life, as if the previous span's tokens had been used
// evenly.
func (u *usage) perLife(now, life time.Duration) int64 {
	u.rotate(now, life)
	passed := now - time.Duration(u.began.Load())
	part := float64(max(0, life-passed)) / float64(life)
	return u.current.Load() + int64(float64(u.previous.Load())*part)
}

package lease

import (
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// watch learns from the levels of a key how fast Redis' clock runs.
//
// The level of a token bucket falls by what drains, and rises by what is charged. What this process has charged between two
// answers it knows at least: what was answered after the one and before the other was sent. Others raise the level, or give tokens back, which looks like a fast clock. So else the
// bucket has drained for at least as long as the level says. A fixed window says itself how long it lasts.
//
// A bucket that fills up within milliseconds says little: no more than that Redis' clock has moved on. So readings are chained, each
// asked for after the one before was answered, and what the clock moved at least from one to the next is added up. A bucket that others
// keep busy, or that is full before each call, never shows all of it. But what it shows now and then says that the clock moves by itself.
type watch struct {
	begun, ended atomic.Int64 // tokens that this process has begun to charge, and that were charged for it
	chain        atomic.Pointer[chain]
}

// chain is readings one after another. It is not changed.
type chain struct {
	first, last reading
	moved       int64 // milliseconds that Redis' clock moved at least
}

// reading is what was known when a call was sent, and what Redis found.
type reading struct {
	ended int64 // of the watch, before the call was sent
	begun int64 // of the watch, after it was answered

	found, after   bucket.State // of the key's first bucket that is no calendar period
	sent, received time.Time
}

// begin notes that a call is about to be sent that charges so many tokens, and returns how many were charged before it.
func (w *watch) begin(tokens int64) (ended int64) {
	ended = w.ended.Load()
	w.begun.Add(tokens)
	return ended
}

// end notes an answer by which so many tokens were charged of those that the call has begun to charge.
func (w *watch) end(begun, charged int64) {
	w.begun.Add(charged - begun)
	w.ended.Add(charged)
}

// learn learns from an answer about a bucket.
func (w *watch) learn(c *Cache, e *entry, timed int, r reading) {
	r.begun = w.begun.Load()
	before, next := w.chain.Load(), &chain{first: r, last: r}
	if before != nil && !c.changed(e.hash, before.last.sent) { // else the level fell by what was given back
		if r.sent.Before(before.last.received) {
			return // which of the two was first, nobody knows
		}
		moved, ok := before.last.moved(&e.buckets[timed], &r)
		moved += before.moved
		longest := r.received.Sub(before.first.sent)
		if ok && longest <= maxWatch && !c.clock.Saw(moved, r.sent.Sub(before.first.received), longest) {
			next.first, next.moved = before.first, moved
		}
	}
	w.chain.CompareAndSwap(before, next)
}

// moved returns by how many milliseconds Redis' clock has moved at least until a later reading.
func (r *reading) moved(b *bucket.Bucket, later *reading) (ms int64, ok bool) {
	if b.Kind != bucket.Token { // one that began later ends later: then it is less
		return r.after.Reset - later.found.Reset, later.found.Reset > 0
	}
	charged := max(0, later.ended-r.begun)
	if charged > bucket.MaxUnits/b.Cost {
		return 0, false
	}
	return bucket.CeilDiv(max(0, r.after.Level+charged*b.Cost-later.found.Level), b.Drain), true
}

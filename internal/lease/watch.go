package lease

import (
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// watch learns from the levels of a key how fast Redis' clock runs.
//
// The level of a token bucket falls by what drains, and rises by what is charged in between. So the
// bucket has drained for at least as long as the level says, unless others gave tokens back, which
// looks like a fast clock. A fixed window says itself how long it lasts.
//
// A bucket that fills up within milliseconds says little: no more than that Redis' clock has moved
// on. So readings are chained, each asked for after the one before was answered, and what the clock
// moved at least from one to the next is added up. A bucket that others keep busy, or that is full
// before each call, never shows all of it. But what it shows now and then says that the clock moves
// by itself.
type watch struct{ chain atomic.Pointer[chain] }

// chain is readings one after another. It is not changed.
type chain struct {
	first, last reading
	moved       int64 // milliseconds that Redis' clock moved at least
}

// reading is what was known when a call was sent, and what Redis found.
type reading struct {
	found, after   bucket.State // of the key's first bucket that is no calendar period
	sent, received time.Time
}

// learn learns from an answer about a bucket.
func (w *watch) learn(c *Cache, e *entry, timed int, r reading) {
	before, next := w.chain.Load(), &chain{first: r, last: r}
	if before != nil && !c.fell(e.hash, before.last.sent) { // else the level fell by what was given back
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
	return bucket.CeilDiv(max(0, r.after.Level-later.found.Level), b.Drain), true
}

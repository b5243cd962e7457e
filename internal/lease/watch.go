package lease

import (
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// watch observes Redis' clock by the levels of a key.
//
// The level of a token bucket falls by its drain, and rises by the charges in between. So the
// bucket has drained for at least as long as the fall suggests. Only others' give-backs break this,
// and look like a fast clock. A fixed window replies how long it lasts.
//
// A bucket that fills up within milliseconds only shows that Redis' clock has moved. So readings
// are chained: each is sent after the one before was answered, and the least movements from one to
// the next are added up. A bucket that others keep busy, or that is full before each call, never
// shows all of the movement. The part that it shows now and then proves that the clock moves by
// itself.
type watch struct{ chain atomic.Pointer[chain] }

// chain is a series of readings. It is immutable.
type chain struct {
	first, last reading
	moved       int64 // least movement of Redis' clock, in milliseconds
}

// reading is a call's times, and the states before and after it.
type reading struct {
	found, after   bucket.State // of the key's first bucket that is no calendar period
	sent, received time.Time
}

// observe adds a reading.
func (w *watch) observe(c *Cache, e *entry, timed int, r reading) {
	before, next := w.chain.Load(), &chain{first: r, last: r}
	if before != nil && !c.gaveBackSince(e.hash, before.last.sent) { // else give-backs lowered the level
		if r.sent.Before(before.last.received) {
			return // their order is unknown
		}
		moved, ok := before.last.moved(&e.buckets[timed], &r)
		moved += before.moved
		longest := r.received.Sub(before.first.sent)
		if ok && longest <= maxWatch && !c.clock.Observe(moved, r.sent.Sub(before.first.received), longest) {
			next.first, next.moved = before.first, moved
		}
	}
	w.chain.CompareAndSwap(before, next)
}

// moved returns how many milliseconds Redis' clock has moved at least until a later reading.
func (r *reading) moved(b *bucket.Bucket, later *reading) (ms int64, ok bool) {
	if b.Kind != bucket.Token { // a window that began later ends later, so the difference is less
		return r.after.Reset - later.found.Reset, later.found.Reset > 0
	}
	return bucket.CeilDiv(max(0, r.after.Level-later.found.Level), b.Drain), true
}

package dispatch

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/goroutine"
)

// Batch is the calls that are sent together. It belongs to the goroutine that sends it, except for
// since and overdue, which Dispatcher.mu guards. Its memory is used again.
type Batch struct {
	Groups []*Group // in the order of their first calls; those behind the last one are used again

	ctx    *goroutine.Borrowed // of the transport, with the values of the first call's caller
	calls  []*Call
	newest map[uint64]*Group // by the hash of a key: the group that a further call may join

	since   time.Time // when it took its calls, or was answered last
	overdue bool      // it was late and has no slot

	inline   bool      // the caller of its only call sends it
	deadline *deadline // of ctx
	err      error     // of the transport
}

func newBatch() *Batch { return &Batch{newest: map[uint64]*Group{}} }

// coalesce makes groups of the calls. A call joins only the newest group on its key, so that Redis
// decides the calls on one key in their order. Of calls on several keys that is their first key.
func (b *Batch) coalesce() {
	for _, c := range b.calls {
		before := b.newest[c.Hash]
		if before != nil && before.joins(c) {
			before.last.next, before.last = c, c
			before.Charges += c.Op.Charges
			continue
		}
		n := len(b.Groups)
		if b.Groups = slices.Grow(b.Groups, 1)[:n+1]; b.Groups[n] == nil {
			b.Groups[n] = new(Group)
		}
		g := b.Groups[n]
		g.Call, g.last, g.Charges, g.First = c, c, c.Op.Charges, before == nil
		g.Found = append(g.Found[:0], c.States...)
		if c.Op.Tenant.Name != "" {
			g.tenants.begin(c)
		}
		if len(b.calls) > 1 {
			b.newest[c.Hash] = g
		}
	}
}

// run sends batches until nothing waits.
//
// It yields so that batches are larger, which costs no time if no other goroutine can run. It yields
// once before the first batch, so that callers of the same moment are queued before it leaves. It
// yields after each batch, so that callers that have just been answered and call again are queued
// before the next one leaves.
func (d *Dispatcher) run(b *Batch) {
	defer func() { // a hook of the client may end the goroutine
		d.mu.Lock()
		defer d.mu.Unlock()
		d.slots.release(b)
		d.startRunLocked()
	}()
	runtime.Gosched()
	for d.fill(b) {
		b.coalesce()
		within := &d.sending
		if slices.ContainsFunc(b.calls, func(c *Call) bool { return c.Op.Verb == bucket.Return }) {
			within = &d.timeout // a Return must not be done late
		}
		d.deliver(within, b)
		runtime.Gosched()
	}
}

// fill moves a part of the queue into b, and reports whether there is any.
func (d *Dispatcher) fill(b *Batch) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !b.overdue {
		d.queue.fill(b, d.slots.limit())
	}
	if len(b.calls) > 0 {
		first := &b.calls[0].caller
		b.ctx = d.contexts.Lend(first.ctx)
		first.borrowed = b.ctx
	}
	b.since = time.Now()
	d.startRunLocked() // the last answer may have shown that the server is healthy, so there may be a slot for the rest
	return len(b.calls) > 0
}

// deliver sends a batch within a deadline and answers all its calls, even if a hook of the client
// panics or ends the goroutine. On a cluster and a ring go-redis runs the hooks of a pipeline in
// goroutines of its own, where a panic cannot be caught.
func (d *Dispatcher) deliver(within *sharedDeadline, b *Batch) {
	b.deadline = within.use()
	b.ctx.Context = b.deadline
	b.err = goroutine.ErrGoexit
	defer d.answer(b)
	b.err = d.server.Transport.Send(b.ctx, b)
}

// answer answers the calls of a batch, after the transport has returned or could not. It is deferred.
func (d *Dispatcher) answer(b *Batch) {
	if p := recover(); p != nil {
		b.fail(fmt.Errorf("the Redis client panics: %v", p))
	} else if b.err == goroutine.ErrGoexit {
		b.fail(goroutine.ErrGoexit)
	}
	sentAt, received, err := b.since, time.Now(), b.err
	took, calls := received.Sub(sentAt), len(b.calls)
	late := took >= d.timeout.span
	if err == nil && late {
		err = ErrLate
	}
	var peek *Call
	if err != nil {
		peek = b.Groups[0].peek()
	}
	b.ctx.End()
	for _, g := range b.Groups {
		g.distribute(sentAt, received)
	}
	b.deadline.release()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.Batches++
	d.stats.Calls += uint64(calls)
	switch {
	case b.overdue: // its failure was counted when it gave up its slot
	case err != nil:
		d.failedLocked(sentAt, received, peek, err)
	default:
		d.slots.answered(took, calls)
		if d.breaker.answered() {
			d.stats.changed(closed, "")
		}
	}
	if b.inline && late {
		d.pauseInlineLocked(b.deadline, sentAt, received)
	}
	b.reset()
	if b.since = received; b.inline { // so it is not late
		d.slots.release(b)
		d.startRunLocked()
	}
}

// fail gives all calls of a batch an error.
func (b *Batch) fail(err error) {
	b.err = err
	for _, g := range b.Groups {
		g.Err = err
	}
}

// reset makes the batch empty.
func (b *Batch) reset() {
	b.ctx, b.deadline = nil, nil
	clear(b.calls)
	b.calls = b.calls[:0]
	clear(b.newest)
	for _, g := range b.Groups {
		g.Call, g.last, g.Err = nil, nil, nil
		if len(g.tenants.all) > 0 {
			g.tenants.reset()
		}
	}
	b.Groups = b.Groups[:0]
}

// Group is one or several calls on the same buckets, which Redis decides at once.
type Group struct {
	*Call                  // the first call, with what all calls have in common
	Charges int64          // of all calls
	First   bool           // on its key in this batch
	Found   []bucket.State // before the first call, as the transport found them
	Err     error          // of the transport, if the group was not decided
	last    *Call          // the end of the list that begins with the first call
	tenants tenants        // of the calls, if the buckets are shared
}

// joins reports whether c may join the group: it takes from the same buckets of the same keys by
// charges of the same size.
func (g *Group) joins(c *Call) bool {
	op := g.Op
	op.Charges = g.Charges
	return op.Merges(c.Op) && g.sameKeys(c) && bucket.Same(g.Buckets, c.Buckets) && g.admits(c)
}

// Attempts returns the newest attempt of the calls to take a slot of a bucket, which has the newest
// report of the slots that this process holds, and the numbers of all their attempts, each followed
// by a comma.
func (g *Group) Attempts(i int) (newest bucket.Attempt, numbers string) {
	var text []byte
	for c := g.Call; c != nil; c = c.next {
		attempt := c.of(i).Attempt
		if attempt.Number >= newest.Number {
			newest = attempt
		}
		if attempt.Number > 0 {
			text = append(strconv.AppendInt(text, attempt.Number, 10), ',')
		}
	}
	return newest, string(text)
}

// distribute answers the calls, each with the states that it would have found alone.
func (g *Group) distribute(sent, received time.Time) {
	for c := g.Call; c != nil; {
		next := c.next
		if g.Err == nil {
			if len(g.tenants.found) > 0 {
				g.tenants.choose(g, c)
			}
			copy(c.States, g.Found)
			c.Sent, c.Received = sent, received
			if next != nil {
				g.charge(c)
			}
		}
		c.next = nil
		c.caller.err = g.Err
		c.caller.done <- struct{}{} // from here on the call is its caller's
		c = next
	}
}

// charge changes the states to those after a call.
func (g *Group) charge(c *Call) {
	granted := c.Op.Charges
	for i := range c.Buckets {
		granted = c.Buckets[i].Fits(g.Found[i], granted, c.Op.Tokens(i))
	}
	if granted == 0 {
		return
	}
	for i := range c.Buckets {
		g.Found[i] = c.Buckets[i].Charged(g.Found[i], granted, c.Op.Tokens(i))
	}
	if len(g.tenants.found) > 0 {
		g.tenants.changed(g, c)
	}
}

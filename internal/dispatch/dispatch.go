// Package dispatch carries calls to a server in batches, each of them within a timeout, and keeps
// callers from waiting for a server that does not answer.
//
// It owns a server's queue, its batches in flight, its breaker and its prober. It does not know
// Redis: a [Transport] sends a batch, and says why the server does not answer.
package dispatch

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/internal/goroutine"
)

// connectTimeout is how long a batch that a goroutine sends may take, or a timeout where that is
// longer. Its callers leave before, but a new connection needs round trips of its own.
const connectTimeout = 900 * time.Millisecond

// Errors of [Dispatcher.Do] that are the dispatcher's own.
var (
	ErrClosed    = errors.New("the limiter is closed")
	ErrRetired   = errors.New("the dispatcher was retired")
	ErrOpen      = errors.New("circuit breaker open")
	ErrLate      = errors.New("no answer from Redis in time")
	ErrQueueFull = errors.New("too many decisions wait for Redis")
)

// Dispatcher carries calls to one server in batches.
//
// A call that finds a free slot goes at once, alone. Calls that arrive while all slots are taken
// wait, and are sent together when a slot is free again. In a batch, calls to take from the same
// buckets are merged into one, and each gets the levels that it would have found alone, in the
// order in which they came.
//
// A caller waits no longer than its context and the timeout. One that leaves before its batch does
// costs nothing; one that leaves later may have been charged. A batch that is late is overdue: it
// gives up its slot. While the breaker is open, nobody waits.
//
// Goroutines that end when nothing waits send batches. If the server is Inline, the caller of a
// call that goes alone sends it itself: handing it to another goroutine and back takes longer than
// Redis does.
type Dispatcher struct {
	server   Server
	timeout  sharedDeadline // of callers, and of a batch that a caller sends itself
	sending  sharedDeadline // of a batch that a goroutine sends
	reopened chan error     // gives the prober the error that has opened the breaker again
	life     lifetime

	mu       sync.Mutex // guards everything below, and life.ended
	queue    queue
	slots    *slots
	contexts goroutine.Lender // of batches
	inline   inlinePauses
	breaker  breaker
	probing  bool // the prober runs
	stats    Stats
}

// New returns a dispatcher for a server.
func New(timeout time.Duration, server Server) *Dispatcher {
	d := &Dispatcher{
		server: server, breaker: newBreaker(timeout), reopened: make(chan error, 1),
		timeout: sharedDeadline{span: timeout}, sending: sharedDeadline{span: max(timeout, connectTimeout)},
	}
	d.slots = newSlots(server, &d.life.running)
	d.life.begin()
	return d
}

// Do sends a call and waits for the answer. It returns early with an error if the caller's context
// or the timeout ends.
func (d *Dispatcher) Do(ctx context.Context, c *Call) error {
	if err := d.begin(ctx, c); err != nil {
		return err
	}
	if !d.sendsInlineLocked(&c.caller) {
		timeout := d.timeout.use()
		defer timeout.release()
		return orErr(ctx, d.queueLocked(timeout, c))
	}
	b := d.slots.take()
	b.ctx = d.contexts.Lend(ctx)
	d.mu.Unlock()
	c.caller.abandoned = true // until it is answered
	b.inline, b.calls = true, append(b.calls, c)
	b.coalesce()
	d.deliver(&d.timeout, b)
	<-c.caller.done
	c.caller.abandoned = false
	return c.caller.err
}

// DoWithin is [Dispatcher.Do] with a context in place of the timeout.
func (d *Dispatcher) DoWithin(ctx, timeout context.Context, c *Call) error {
	if err := d.begin(ctx, c); err != nil {
		return err
	}
	return orErr(ctx, d.queueLocked(timeout, c))
}

// DoAll is [Dispatcher.Do] of several calls, which leave together. It returns the error of each.
func (d *Dispatcher) DoAll(ctx context.Context, calls []*Call) []error {
	errs := make([]error, len(calls))
	err := d.begin(ctx, calls...)
	if err == nil {
		err = d.makeRoomLocked(calls...)
	}
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	timeout := d.timeout.use()
	defer timeout.release()
	for _, c := range calls {
		c.caller.timedOut = timeout.Done()
		d.queue.add(c)
	}
	d.startRunLocked()
	d.mu.Unlock()
	for i, c := range calls {
		errs[i] = d.wait(c)
	}
	for i, err := range errs { // when all calls have left
		errs[i] = orErr(ctx, err)
	}
	return errs
}

// begin notes the context of calls and locks the dispatcher. If it takes no call, begin says why and leaves it unlocked.
func (d *Dispatcher) begin(ctx context.Context, calls ...*Call) (err error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Time{}
	}
	ended := ctx.Done()
	for _, c := range calls {
		c.caller.ctx, c.caller.deadline, c.caller.ended = ctx, deadline, ended
	}
	d.mu.Lock()
	if d.life.ended == nil && d.breaker.state != open {
		return nil
	}
	defer d.mu.Unlock()
	return cmp.Or(d.life.ended, ErrOpen)
}

// sendsInlineLocked reports whether a caller may send its call itself.
func (d *Dispatcher) sendsInlineLocked(c *caller) bool {
	switch {
	case !d.server.Inline || !d.slots.healthy || len(d.queue.calls) > 0 || !d.slots.freeForOne():
		return false
	case c.ended != nil && d.timeout.span > maxInline:
		return false
	case !d.inline.end.IsZero() && time.Now().Before(d.inline.end):
		return false
	}
	return c.deadline.IsZero() || time.Until(c.deadline) > d.timeout.span+d.timeout.span/slackPart
}

// makeRoomLocked frees the slots of late batches, if no other is free. If calls cannot be queued, it says why and
// unlocks the dispatcher.
func (d *Dispatcher) makeRoomLocked(calls ...*Call) (err error) {
	if d.queue.full(len(calls)) {
		err = ErrQueueFull
	} else if !d.slots.free() {
		if d.expireLocked(calls[0]); d.breaker.state == open {
			err = ErrOpen
		}
	}
	if err != nil {
		d.mu.Unlock()
	}
	return err
}

// queueLocked queues a call and waits for the answer. It unlocks the dispatcher.
func (d *Dispatcher) queueLocked(timeout context.Context, c *Call) error {
	if err := d.makeRoomLocked(c); err != nil {
		return err
	}
	c.caller.timedOut = timeout.Done()
	d.queue.add(c)
	d.startRunLocked()
	d.mu.Unlock()
	return d.wait(c)
}

// wait waits for the answer to a call in the queue.
func (d *Dispatcher) wait(c *Call) error {
	answered, err := c.caller.wait()
	if answered {
		return err
	}
	d.mu.Lock()
	if c.caller.hasAnswer() { // at the last moment
		d.mu.Unlock()
		return c.caller.err
	}
	c.caller.abandoned, c.caller.late = true, c.progress == taken
	d.queue.abandon(c)
	d.expireLocked(c)
	d.mu.Unlock()
	if c.caller.borrowed != nil {
		c.caller.borrowed.End()
	}
	return err
}

// startRunLocked starts a goroutine that sends the queue, if there is a free slot.
func (d *Dispatcher) startRunLocked() {
	if len(d.queue.calls) > 0 && d.slots.free() {
		go d.run(d.slots.take())
	}
}

// expireLocked frees the slots of late batches. It is called for a call that was not answered.
func (d *Dispatcher) expireLocked(c *Call) {
	now := time.Now()
	if sentAt, late := d.slots.expire(now, d.timeout.span); late {
		d.failedLocked(sentAt, now, c, ErrLate)
		d.startRunLocked()
	}
}

// failedLocked notes that a batch failed that was sent at a time. It may open the breaker and start
// the prober, which peeks at the buckets of the call.
func (d *Dispatcher) failedLocked(sentAt, now time.Time, c *Call, err error) {
	d.slots.healthy = false
	if d.life.ended == ErrClosed || !d.breaker.failed(sentAt, now) {
		return
	}
	d.queue.fail(ErrOpen)
	if d.probing {
		select {
		case d.reopened <- err:
		default:
		}
		return
	}
	d.probing = true
	peek := c.peek()
	d.life.running.Go(func() { newProber(d, peek).run(err) })
}

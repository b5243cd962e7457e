package dispatch

import (
	"fmt"
	"runtime"
	"time"

	"github.com/ginlimit/ginlimit/internal/goroutine"
)

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
		d.releaseLocked(b)
	}()
	runtime.Gosched()
	for d.fill(b) {
		b.coalesce()
		deadline := &d.sending
		if b.urgent {
			deadline = &d.timeout
		}
		d.deliver(deadline, b)
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
		b.borrow(&d.stuck)
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
	if late := took >= d.timeout.span; err == nil && late {
		err = ErrLate
	}
	var peek *Call
	if err != nil {
		peek = b.Groups[0].peek()
	}
	for _, g := range b.Groups {
		g.distribute(sentAt, received)
	}
	b.deadline.release()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.sent(calls)
	switch {
	case b.overdue: // its failure was counted when it gave up its slot
	case err != nil:
		d.failedLocked(sentAt, received, peek, err)
	default:
		d.answeredLocked(took, calls)
	}
	if b.inline && took >= d.timeout.span {
		d.pauseInlineLocked(b.deadline, sentAt, received)
	}
	inline := b.inline
	b.reset()
	if b.since = received; inline { // so it is not late
		d.releaseLocked(b)
	}
}

// fail gives all calls of a batch an error.
func (b *Batch) fail(err error) {
	b.err = err
	for _, g := range b.Groups {
		g.Err = err
	}
}

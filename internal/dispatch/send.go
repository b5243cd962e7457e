package dispatch

import (
	"context"
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
	defer d.release(b)
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
		b.borrow(b.calls[0].caller.ends[0], &d.stuck)
	}
	b.since = time.Now()
	d.startRunLocked() // the last answer may have shown that the server is healthy, so there may be a slot for the rest
	return len(b.calls) > 0
}

// deliver sends a batch within a deadline and answers all its calls, even if a hook of the client
// panics or ends the goroutine. On a cluster and a ring go-redis runs the hooks of a pipeline in
// goroutines of its own, where a panic cannot be caught.
func (d *Dispatcher) deliver(within *sharedDeadline, b *Batch) {
	deadline := within.use()
	defer deadline.release()
	b.ctx.Context = deadline
	sentAt, err := b.since, goroutine.ErrGoexit
	defer func() {
		received := time.Now()
		if err == nil && received.Sub(sentAt) >= d.timeout.span {
			err = ErrLate
		}
		var peek *Call
		if err != nil {
			peek = b.Groups[0].peek()
		}
		for _, g := range b.Groups {
			g.distribute(sentAt, received)
		}
		if took := received.Sub(sentAt); took >= d.timeout.span {
			b.outlived = deadline.outlived(received)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		calls := len(b.calls)
		d.stats.sent(calls)
		b.reset()
		b.since = received // so it is not late
		switch {
		case b.overdue: // its failure was counted when it gave up its slot
		case err != nil:
			d.failedLocked(sentAt, received, peek, err)
		default:
			d.answeredLocked(received.Sub(sentAt), calls)
		}
	}()
	err = d.send(b.ctx, b)
}

// send sends a batch by the transport, and gives all its calls an error if that does not return.
func (d *Dispatcher) send(ctx context.Context, b *Batch) (err error) {
	done := false
	defer func() {
		if p := recover(); !done {
			err = fmt.Errorf("the Redis client panics: %v", p)
			for _, g := range b.Groups {
				g.Err = err
			}
		}
	}()
	err = d.server.Transport.Send(ctx, b)
	done = true
	return err
}

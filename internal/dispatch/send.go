package dispatch

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// run sends batches until nothing waits.
//
// It yields twice, each time so that a batch is larger; it costs no time where nothing else is to
// be run. First, so that callers that come at the same moment as the one that has started it are
// queued before the first batch leaves. Then after each batch, so that callers that have just been
// answered and ask again are queued before the next one leaves.
func (d *Dispatcher) run(b *Batch) {
	defer d.release(b)
	runtime.Gosched()
	for d.fill(b) {
		b.coalesce()
		deadline := &d.sending
		if b.urgent {
			deadline = &d.timeout
		}
		d.deliver(deadline.context(), b)
		runtime.Gosched()
	}
}

// take moves a part of the queue into b, and reports whether there is any.
func (d *Dispatcher) fill(b *Batch) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(b.calls) == 0 && len(d.queue) > 0 && !b.overdue {
		n := min(len(d.queue), max(minCalls, len(d.queue)/d.placesLocked()), maxCalls)
		for _, c := range d.queue[:n] {
			if c.progress == left {
				d.abandoned--
				continue
			}
			c.progress = taken
			if !c.callerLeaves() {
				b.calls = append(b.calls, c)
			}
		}
		d.queue = slices.Delete(d.queue, 0, n)
	}
	if len(b.calls) > 0 {
		b.borrow(b.calls[0].ends[0])
	}
	b.since = time.Now()
	d.startRunLocked() // the last batch may have found the server healthy, so that there is another slot for the rest
	return len(b.calls) > 0
}

// deliver sends a batch within a deadline and answers everyone in it, even if a hook of the client
// panics or ends the goroutine. On a cluster and a ring go-redis runs the hooks of a pipeline in
// goroutines of its own, where nobody can help.
func (d *Dispatcher) deliver(deadline context.Context, b *Batch) {
	b.ctx.Context = deadline
	sentAt, err := b.since, ErrGoexit
	defer func() {
		received := time.Now()
		if err == nil && received.Sub(sentAt) >= d.timeout.span {
			err = ErrLate
		}
		var peek *Call
		if err != nil {
			peek = b.Groups[0].peek()
		}
		for _, m := range b.Groups {
			m.distribute(sentAt, received)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		calls := len(b.calls)
		d.stats.Batches++
		d.stats.Calls += uint64(calls)
		b.reset()
		b.since = received // it is late no more
		switch {
		case b.overdue: // it has counted when it gave up its slot
		case err != nil:
			d.failedLocked(sentAt, received, peek, err)
		default:
			d.healthy = true
			if d.breaker.answered() {
				d.countLocked(closed, "")
			}
			d.measureLocked(received.Sub(sentAt), calls)
		}
	}()
	err = d.send(b.ctx, b)
}

// send has the transport send a batch, and gives all its calls an error if that does not return.
func (d *Dispatcher) send(ctx context.Context, b *Batch) (err error) {
	done := false
	defer func() {
		if p := recover(); !done {
			err = fmt.Errorf("the Redis client panics: %v", p)
			for _, m := range b.Groups {
				m.Err = err
			}
		}
	}()
	err = d.server.Transport.Send(ctx, b)
	done = true
	return err
}

// sendInline sends a call alone.
func (d *Dispatcher) sendInline(ctx context.Context, b *Batch, c *Call) error {
	c.abandoned = true // until it is answered here
	defer d.release(b)
	b.calls = append(b.calls, c)
	b.borrow(ctx)
	b.coalesce()
	sentAt := b.since
	defer func() { // a hook may end the goroutine
		if b.since.Sub(sentAt) > d.timeout.span+2*d.timeout.slack()+inlineGrace { // a hook, say, does not end with the context
			d.pauseInline(sentAt, b.since)
		}
	}()
	d.deliver(d.timeout.context(), b)
	<-c.done
	c.abandoned = false
	return c.err
}

// pauseInline has no caller send its call itself for a while, as one that was sent at a time was
// far too late. The pause is twice the last one, unless callers have sent their calls for as long
// as that one since its end.
func (d *Dispatcher) pauseInline(sentAt, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	pause := inlinePause
	if sentAt.Sub(d.inlineFrom) < d.inlineLast {
		pause = 2 * d.inlineLast
	}
	d.inlineFrom, d.inlineLast = now.Add(pause), pause
}

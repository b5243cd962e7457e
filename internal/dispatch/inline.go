package dispatch

import (
	"context"
	"time"
)

const (
	// maxInline is the longest timeout for which a caller sends its call itself, since it then does
	// not look at the end of its context.
	maxInline = 100 * time.Millisecond
	// inlinePause is for how long no caller sends its call itself after such a call has outlived
	// its context. It doubles if that happens again soon.
	inlinePause = time.Minute
	// inlineGrace is how much later than its context such a call may be on a busy machine.
	inlineGrace = 10 * time.Millisecond
)

// inlinePauses are times in which no call is sent inline, because one that was has outlived its
// context. They have no lock of their own: their owner, a dispatcher, calls them behind its lock.
type inlinePauses struct {
	end     time.Time     // of the last pause
	longEnd time.Time     // of the last pause that begin made
	long    time.Duration // how long that one was made
}

// active reports whether there is a pause now.
func (p *inlinePauses) active() bool { return !p.end.IsZero() && time.Now().Before(p.end) }

// beginShort begins a pause after a call that was sent inline and not answered in time: perhaps it
// needed a new connection, which only a batch that a goroutine sends has the time to make.
func (p *inlinePauses) beginShort(now time.Time) {
	if end := now.Add(connectTimeout); end.After(p.end) {
		p.end = end
	}
}

// begin begins a long pause after a call that was sent inline at a time and outlived its context.
// It is twice the last long one, unless calls were sent inline for as long as that one since it
// ended. A call that was sent before the last long pause doubles nothing: both were late at once.
func (p *inlinePauses) begin(sentAt, now time.Time) {
	switch good := sentAt.Sub(p.longEnd); {
	case good < 0:
	case good < p.long:
		p.long *= 2
	default:
		p.long = inlinePause
	}
	p.longEnd = now.Add(p.long)
	p.end = p.longEnd
}

// sendsInlineLocked reports whether a caller may send its call itself.
func (d *Dispatcher) sendsInlineLocked(ctx context.Context) bool {
	if !d.server.Inline || ctx.Done() != nil && d.timeout.span > maxInline || d.inline.active() {
		return false
	}
	deadline, ok := ctx.Deadline()
	return !ok || time.Until(deadline) > d.timeout.span+d.timeout.slack()
}

// sendInline sends a call alone, in its caller's goroutine.
func (d *Dispatcher) sendInline(ctx context.Context, b *Batch, c *Call) error {
	c.caller.abandoned = true // until it is answered here
	defer d.release(b)
	b.calls = append(b.calls, c)
	b.borrow(ctx)
	b.coalesce()
	sentAt := b.since
	defer func() { // a hook may end the goroutine
		took, limit := b.since.Sub(sentAt), d.timeout.span+2*d.timeout.slack()+inlineGrace
		if took >= d.timeout.span {
			// Beyond the limit a hook, for example, does not end with the context.
			d.pauseInline(sentAt, b.since, took > limit)
		}
	}()
	d.deliver(&d.timeout, b)
	<-c.caller.done
	c.caller.abandoned = false
	return c.caller.err
}

func (d *Dispatcher) pauseInline(sentAt, now time.Time, long bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if long {
		d.inline.begin(sentAt, now)
	} else {
		d.inline.beginShort(now)
	}
}

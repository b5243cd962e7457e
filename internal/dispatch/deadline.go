package dispatch

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A shared context ends up to a slackPart-th of its span late.
const slackPart = 10

// sharedDeadline hands out contexts that end after a span, or up to a tenth (slackPart) of it later. Calls of
// about the same time share one.
//
// All its contexts share one timer, too. It is set for the first of them to end that somebody uses, and
// stays set when all are released. So it goes off about once in a span while calls are made. A timer for
// each context would wake an idle process for each of them.
type sharedDeadline struct {
	span time.Duration

	mu     sync.Mutex
	latest *deadline
	fresh  time.Time   // until when it is handed out
	all    []*deadline // that have not ended, by their ends
	timer  *time.Timer
	set    bool // the timer will go off
}

// deadline is a context that several calls use. It may end before its time once all have released it.
type deadline struct {
	of    *sharedDeadline
	end   time.Time
	users atomic.Int64
	after []*func() // of.mu guards it
	done  chan struct{}
	err   error     // once done is closed
	ended time.Time // when done was closed, once it is
}

// use returns a context, until its user calls release.
func (d *sharedDeadline) use() *deadline {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, slack := time.Now(), d.span/slackPart // a busy machine may let a caller wait for the lock
	if !now.Before(d.fresh) {
		d.latest = &deadline{of: d, end: now.Add(d.span + slack), done: make(chan struct{})}
		d.fresh = now.Add(slack)
		d.all = append(d.all, d.latest)
	}
	if d.latest.users.Add(1); !d.set {
		d.setLocked(now)
	}
	return d.latest
}

// setLocked sets the timer for the first end of a context that somebody uses, if there is one.
func (d *sharedDeadline) setLocked(now time.Time) {
	i := slices.IndexFunc(d.all, func(c *deadline) bool { return c.users.Load() > 0 })
	if d.set = i >= 0; !d.set {
		return
	}
	if left := d.all[i].end.Sub(now); d.timer == nil {
		d.timer = time.AfterFunc(left, d.goOff)
	} else {
		d.timer.Reset(left)
	}
}

// goOff ends the contexts whose time has come, and all if nobody uses any of the others.
func (d *sharedDeadline) goOff() {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	n := slices.IndexFunc(d.all, func(c *deadline) bool { return now.Before(c.end) })
	if n < 0 {
		n = len(d.all)
	}
	d.endLocked(n, now, context.DeadlineExceeded)
	if d.setLocked(now); !d.set {
		d.endLocked(len(d.all), now, context.Canceled)
	}
}

// end ends all contexts, when no call uses them any more.
func (d *sharedDeadline) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.set = false; d.timer != nil {
		d.timer.Stop()
	}
	d.endLocked(len(d.all), time.Now(), context.Canceled)
}

// endLocked ends the first n contexts.
func (d *sharedDeadline) endLocked(n int, now time.Time, err error) {
	for _, c := range d.all[:n] {
		c.err, c.ended = err, now
		close(c.done)
		for _, f := range c.after {
			go (*f)()
		}
		c.after = nil
	}
	d.all = slices.Delete(d.all, 0, n)
	if len(d.all) == 0 {
		d.fresh = time.Time{} // the latest has ended
	}
}

func (d *deadline) release() { d.users.Add(-1) }

// outlived reports whether a call that ends now went on after the end of the context. It did not if the
// context itself ended late: then the process stood still, and the call may have stood still with it.
func (d *deadline) outlived(now time.Time) bool {
	return d.Err() != nil && d.ended.Sub(d.end) <= inlineGrace && now.Sub(d.ended) > inlineGrace
}

// Deadline implements [context.Context].
func (d *deadline) Deadline() (end time.Time, ok bool) { return d.end, true }

// Done implements [context.Context].
func (d *deadline) Done() <-chan struct{} { return d.done }

// Err implements [context.Context].
func (d *deadline) Err() error {
	select {
	case <-d.done:
		return d.err
	default:
		return nil
	}
}

// Value implements [context.Context]: there are no values.
func (d *deadline) Value(any) any { return nil }

// AfterFunc calls f in a goroutine of its own once the context has ended, unless stop is called before.
// Package context calls it for contexts that are derived from this one, and so needs no goroutine.
func (d *deadline) AfterFunc(f func()) (stop func() bool) {
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	if d.Err() != nil {
		go f()
		return func() bool { return false }
	}
	d.after = append(d.after, &f)
	return func() bool {
		d.of.mu.Lock()
		defer d.of.mu.Unlock()
		i := slices.Index(d.after, &f)
		if i >= 0 {
			d.after = slices.Delete(d.after, i, i+1)
		}
		return i >= 0
	}
}

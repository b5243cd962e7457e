package engine

import (
	"context"
	"errors"
	"time"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// ErrLeft is the error of a request that left its line, as its queue's Leaves wanted.
var ErrLeft = errors.New("ginlimit: the request left its line")

// forever is longer than any context lasts.
const forever time.Duration = 1 << 62

// wait returns for how long a request waits in the queue.
func (q Queue) wait() time.Duration {
	if q.Endless && q.Wait == 0 {
		return forever
	}
	return q.Wait
}

// waiter is a request that may wait. It waits in the line of the Ask that lacks something. Only the first of
// a line tries; the others follow in order of arrival. Whoever lacks something of another Ask then changes
// to its line.
type waiter struct {
	Request
	e       *Engine
	ctx     context.Context // ends a timeout after the longest wait at the latest
	endless bool
	leaving func() bool // may be nil
	began   time.Time   // in a line it stands before those that came later
	ends    time.Time   // it waits no longer, in whatever line
	leaves  time.Time   // it waits no longer in its line
	changes uint64      // of the engine, before the last try
	tried   time.Time   // when the last try or look began
	place   string      // that it has in its line; "" is none
	full    bool        // its line has no place
}

// takeInLine takes what a request asks for as soon as it is there.
func (e *Engine) takeInLine(ctx context.Context, r Request) error {
	if !r.mayWait() {
		return e.takeNow(ctx, r.Asks, r.Answers)
	}
	queue := &r.Asks[0].Queue
	w := &waiter{Request: r, e: e, ctx: ctx, endless: queue.Endless, leaving: queue.Leaves, began: queue.Since}
	if w.began.IsZero() {
		w.began = time.Now().Add(-r.Waited)
	}
	w.begin()
	l, busy := w.busyLine()
	if !busy {
		lacks, waits, err := w.try()
		if err != nil || !waits {
			return err
		}
		l = lacks
	}
	defer w.bound()()
	defer w.leave()
	return w.wait(l, busy)
}

// mayWait reports whether waiting may help.
func (r *Request) mayWait() bool {
	counted := false
	for i := range r.Asks {
		ask := &r.Asks[i]
		if ask.Set.Prohibits() || ask.Set.Counted && ask.N > ask.Set.Burst {
			return false
		}
		counted = counted || ask.N > 0 && ask.Set.Counted && ask.queues()
	}
	return counted
}

// begin says that the request waits, and for how long at most.
func (w *waiter) begin() {
	var longest time.Duration
	for i := range w.Asks {
		if ask := &w.Asks[i]; ask.queues() {
			longest, ask.turn = max(longest, ask.Queue.wait()), w.e.turn(slotPause)
		}
	}
	w.ends = w.began.Add(longest)
}

// enter has the request wait for what it lacks, in no other line. It reports whether it may: there is a
// place, and what it lacks comes in time.
func (w *waiter) enter(l lack) bool {
	w.leave()
	w.leaves, w.full = w.end(l.ask), false
	switch {
	case w.expected(l).After(w.until(w.leaves)):
		return false
	case w.endless:
		return true
	}
	ask := &w.Asks[l.ask]
	who := whoOf(w.e.key(&ask.Subject), ask.Tenant)
	if w.full = !w.e.places.Take(string(who), ask.Queue.Length); !w.full {
		w.place = string(who)
	}
	return !w.full
}

// leave gives the place in a line back.
func (w *waiter) leave() {
	if w.place != "" {
		w.e.places.Leave(w.place)
		w.place = ""
	}
}

// end returns until when a request waits that begins to wait for what it lacks of an Ask.
func (w *waiter) end(ask int) time.Time {
	if own := time.Now().Add(w.Asks[ask].Queue.wait()); own.Before(w.ends) {
		return own
	}
	return w.ends
}

// until returns by when a request that waits to an end needs what it lacks: its context may end before.
func (w *waiter) until(end time.Time) time.Time {
	if deadline, ok := w.ctx.Deadline(); ok && deadline.Before(end) {
		return deadline
	}
	return end
}

// bound gives all further calls of the request one deadline, until the function that it returns is called.
func (w *waiter) bound() (end func()) {
	if w.endless {
		return func() {}
	}
	w.ctx, end = w.e.within(w.ctx, w.ends)
	return end
}

// try takes what the request asks for, or returns what it lacks. It does not wait if it is allowed, if
// waiting does not help, or for an error.
func (w *waiter) try() (l lack, waits bool, err error) {
	if w.leaving != nil && w.leaving() {
		return lack{}, false, ErrLeft
	}
	w.changes, w.tried = w.e.changes.Load(), time.Now()
	for i := range w.Asks {
		w.Asks[i].Set = w.Asks[i].Set.Now() // a calendar period may be over
	}
	err = w.e.takeNow(w.ctx, w.Asks, w.Answers)
	for i := range w.Asks {
		w.Asks[i].again = true
	}
	if err != nil && w.endless && w.outlasts(err) {
		return w.lackOf(0), true, nil
	}
	if err != nil {
		return lack{}, false, err
	}
	if l, waits = w.lacks(); !waits {
		err = w.ban(lack{ask: none})
	}
	return l, waits, err
}

// outlasts reports whether an error is one of an outage in which nobody else may decide.
func (w *waiter) outlasts(err error) bool {
	return w.Asks[0].Failure == FailClosed && errors.Is(err, ErrUnavailable) &&
		!redisstore.IsCommandError(err) && !errors.Is(err, dispatch.ErrClosed)
}

// lacks returns what a denied request lacks for longest: tokens that come too late for it, if there are. It is false
// if the request is not denied, waiting does not help, or an Ask that denies it has no queue.
func (w *waiter) lacks() (l lack, waits bool) {
	at, late := none, false
	for i := range w.Answers {
		a := &w.Answers[i]
		switch tooLate := w.tooLate(i); {
		case !a.Decided || a.Allowed || a.RetryAfter == 0: // another Ask is denied
		case a.RetryAfter == rules.Never || a.Banned && !w.endless || !w.Asks[i].queues():
			return lack{}, false
		case at == none || tooLate && !late || tooLate == late && a.RetryAfter > w.Answers[at].RetryAfter:
			at, late = i, tooLate
		}
	}
	if at == none {
		return lack{}, false
	}
	return w.lackAt(at), true
}

// lackAt returns what a request lacks of an Ask that denies it: a slot, unless tokens come too late.
func (w *waiter) lackAt(i int) lack {
	l, answer := w.lackOf(i), &w.Answers[i]
	wait := answer.RetryAfter
	if l.resource = answer.Resource; l.resource == w.Asks[i].Set.Slots() && !answer.Banned {
		if l.slot = !w.tooLate(i); l.slot {
			return l
		}
		wait = answer.TokensAfter
	}
	l.at = time.Now().Add(wait)
	return l
}

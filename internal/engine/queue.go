package engine

import (
	"context"
	"errors"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// Request asks for the tokens of all its Asks, and a slot of each that takes one, or for nothing.
type Request struct {
	Asks    []Ask    // the first one's client waits
	Answers []Answer // one for each Ask
	Queue   Queue
}

// Queue says how a request waits for what it lacks. The zero Queue does not wait.
type Queue struct {
	Length int           // how many requests of a client wait in this process
	Wait   time.Duration // for how long
	// Endless is the queue of a Wait: it has no length, and lasts as long as the context, through bans,
	// and through an outage in which nobody else may decide. It ends with an error, not with a denial.
	Endless bool
}

// waiter is a request that may wait. It waits in the line of the key that lacks something. Only the first
// of a line tries; the others follow in order of arrival. Whoever lacks something of another key then
// changes to its line.
type waiter struct {
	*Request
	e       *Engine
	ctx     context.Context // the caller's
	calls   context.Context // of all calls: they end a timeout after the wait at the latest
	began   time.Time       // in a line it stands before those that came later
	ends    time.Time       // it waits no longer; zero is as long as ctx lasts
	until   time.Time       // by when it needs what it lacks: ends, or a deadline of ctx before; or zero
	bans    []bucket.Bans   // of the Asks, if a denial bans
	changes uint64          // of the engine, before the last try
}

// takeInLine takes what a request asks for as soon as it is there.
func (e *Engine) takeInLine(ctx context.Context, r *Request) error {
	if !r.mayWait() {
		return e.takeNow(ctx, ctx, r.Asks, r.Answers)
	}
	w := &waiter{Request: r, e: e, ctx: ctx, calls: ctx, began: time.Now()}
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
	late, room := w.late(w.expected(l)), true
	if !r.Queue.Endless {
		own := &r.Asks[0]
		who, _ := subject(e.key(own), own.Tenant)
		if room = e.places.Take(string(who), r.Queue.Length); room {
			defer e.places.Leave(string(who))
		}
	}
	switch {
	case !busy && (late || !room):
		return w.deny(l)
	case late || !room:
		return w.denyBehind(l)
	case busy:
		if done, err := w.look(l, len(r.Asks) > 1 || r.Asks[0].attempts() || w.bans != nil, true); done {
			return err
		}
	}
	return w.wait(l, busy)
}

// mayWait reports whether waiting may help.
func (r *Request) mayWait() bool {
	counted := false
	for i := range r.Asks {
		ask := &r.Asks[i]
		verdict, static := ask.Set.Static(ask.Scope, ask.N)
		if static && !verdict.Allowed || ask.N > ask.Set.Burst() {
			return false
		}
		counted = counted || ask.N > 0 && !static
	}
	return counted
}

// begin keeps which denials ban the client, as a try is no denial, and for how long the request waits.
func (w *waiter) begin() {
	for i := range w.Asks {
		ask := &w.Asks[i]
		if !w.Queue.Endless && ask.bans() && ask.Bans != bucket.NoBans {
			if w.bans == nil {
				w.bans = make([]bucket.Bans, len(w.Asks))
			}
			w.bans[i] = ask.Bans
		}
		ask.Bans, ask.Waits, ask.turn = bucket.NoBans, true, w.e.turn(slotPause)
	}
	if !w.Queue.Endless {
		w.ends = w.began.Add(w.Queue.Wait)
		w.until = w.ends
	}
	if deadline, ok := w.ctx.Deadline(); ok && (w.until.IsZero() || deadline.Before(w.until)) {
		w.until = deadline
	}
}

// bound gives all further calls of the request one deadline, until the function that it returns is called.
func (w *waiter) bound() (end func()) {
	if w.ends.IsZero() || w.e.redis == nil {
		return func() {}
	}
	calls, cancel := context.WithDeadline(w.ctx, w.ends.Add(w.e.Timeout))
	w.calls = calls
	return cancel
}

// late reports whether a time is later than the request needs it to be.
func (w *waiter) late(at time.Time) bool { return !w.until.IsZero() && at.After(w.until) }

// try takes what the request asks for, or returns what it lacks. It does not wait if it is allowed, if
// waiting does not help, or for an error.
func (w *waiter) try() (l lack, waits bool, err error) {
	w.changes = w.e.changes.Load()
	for i := range w.Asks {
		w.Asks[i].Set = w.Asks[i].Set.Now() // a calendar period may be over
	}
	err = w.e.takeNow(w.ctx, w.calls, w.Asks, w.Answers)
	for i := range w.Asks {
		w.Asks[i].again = true
	}
	if err != nil && w.Queue.Endless && w.outlasts(err) {
		return w.lackOf(0), true, nil
	}
	if err != nil {
		return lack{}, false, err
	}
	l, waits = w.lacks()
	return l, waits, nil
}

// outlasts reports whether an error is one of an outage in which nobody else may decide.
func (w *waiter) outlasts(err error) bool {
	return w.Asks[0].Failure == FailClosed && errors.Is(err, ErrUnavailable) &&
		!redisstore.IsCommandError(err) && !errors.Is(err, dispatch.ErrClosed)
}

// lacks returns what a denied request lacks for longest. It is false if the request is not denied, or
// waiting does not help.
func (w *waiter) lacks() (l lack, waits bool) {
	at := -1
	for i := range w.Answers {
		a := &w.Answers[i]
		switch {
		case !a.Decided || a.Allowed:
		case a.RetryAfter < 0 || a.Banned && !w.Queue.Endless:
			return lack{}, false
		case at < 0 || a.RetryAfter > w.Answers[at].RetryAfter:
			at = i
		}
	}
	if at < 0 {
		return lack{}, false
	}
	l = w.lackOf(at)
	if l.resource = w.Answers[at].Resource; l.resource == w.Asks[at].Set.Slots() && !w.Answers[at].Banned {
		l.slot = true
	} else {
		l.at = time.Now().Add(w.Answers[at].RetryAfter)
	}
	return l, true
}

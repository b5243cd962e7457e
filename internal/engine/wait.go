package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/fifo"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/rules"
)

const (
	// slotPause is after how long a caller that waits for a slot looks again: another process may
	// have released one.
	slotPause = 100 * time.Millisecond
	// turnPause is the same for the process whose turn it is, and for each place after it.
	turnPause = 20 * time.Millisecond
	// maxLooks is how often a second an engine looks for slots of all clients together. If many
	// callers wait, each looks more seldom.
	maxLooks = 500
	// outagePause is the pause before a Wait tries again after Redis did not answer.
	outagePause = 200 * time.Millisecond
	// maxSleep is the longest pause between two tries: another process may have given tokens back.
	maxSleep = 10 * time.Second
)

// takeInLine takes what a request asks for as soon as it is there.
func (e *Engine) takeInLine(ctx context.Context, r Request) error {
	if !r.mayWait() {
		return e.takeNow(ctx, r.Asks, r.Answers)
	}
	w := &waiter{Request: r, e: e, ctx: ctx, endless: r.Asks[0].Queue.Length == Endless}
	if w.Since.IsZero() {
		w.Since = time.Now().Add(-r.Waited)
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
	w.ends = w.Since.Add(longest)
}

// try takes what the request asks for, or returns what it lacks. It does not wait if it is allowed, if
// waiting does not help, or for an error.
func (w *waiter) try() (l lack, waits bool, err error) {
	if w.Leaves != nil && w.Leaves() {
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

// bound gives all further calls of the request one deadline, until the function that it returns is called.
func (w *waiter) bound() (end func()) {
	if w.endless {
		return func() {}
	}
	w.ctx, end = w.e.within(w.ctx, w.ends)
	return end
}

// busyLine returns the first line of the Asks in which others wait.
func (w *waiter) busyLine() (l lack, busy bool) {
	for i := range w.Asks {
		ask := &w.Asks[i]
		if w.e.waiting.Empty() {
			break
		}
		if !ask.queues() || !ask.Set.Counts(rules.All) || ask.N == 0 {
			continue
		}
		l = w.lackOf(i)
		if line := w.e.waiting.Before(l.line, w.Since); line.Callers > 0 {
			l.resource = line.Expects.Resource
			l.slot = l.resource == ask.Set.Slots()
			return l, true
		}
	}
	return lack{}, false
}

// wait waits in lines until the request is allowed or waits no more. If it came into a line behind others,
// it has not tried yet.
func (w *waiter) wait(l lack, behind bool) error {
	for {
		switch may := w.enter(l); {
		case !may && behind:
			return w.denyBehind(l)
		case !may:
			return w.deny(l)
		case behind || w.undecided():
			behind = true // it has not tried since
			if done, err := w.look(l, true); done {
				return err
			}
		}
		next, moves, err := w.waitIn(l, behind)
		if !moves {
			return err
		}
		l, behind = next, false
	}
}

// undecided reports whether the last try did not get to an Ask that denies at once.
func (w *waiter) undecided() bool {
	for i := range w.Asks {
		if !w.Asks[i].queues() && !w.Answers[i].Decided {
			return true
		}
	}
	return false
}

// waitIn waits in one line. If it came there behind others, or others go before it, it has not tried since.
func (w *waiter) waitIn(l lack, behind bool) (next lack, moves bool, err error) {
	turn := w.e.waiting.Join(l.line, fifo.Caller{
		Since: w.Since, Wants: w.Asks[l.ask].N, Expects: fifo.Expectation{At: l.at, Resource: l.resource},
	})
	leave := sync.OnceFunc(turn.Leave)
	defer leave()
	if waiting := w.Asks[l.ask].Waiting; waiting != nil {
		waiting.Add(1)
		defer waiting.Add(-1)
	}
	if w.Waits != nil {
		w.Waits()
	}
	if !turn.AtOnce {
		woken, err := w.sleep(l, time.Until(w.leaves), turn.Wake)
		if !woken {
			leave() // it hears of those before it, and not of itself
			if err == nil {
				err = w.denyBehind(l)
			}
			return lack{}, false, err
		}
	}
	// What a change gave back before the request was in the line has woken nobody.
	return w.inTurn(l, turn, behind || !turn.AtOnce || w.changes != w.e.changes.Load())
}

// inTurn is what a request does while it is the first of a line. It moves to the next if it lacks something
// else.
func (w *waiter) inTurn(l lack, turn *fifo.Turn, now bool) (next lack, moves bool, err error) {
	for ; ; now = true {
		if now {
			lacks, waits, err := w.try()
			switch {
			case err != nil || !waits:
				return lack{}, false, err
			case lacks.line != l.line:
				return lacks, true, nil
			}
			l = lacks
		}
		if over := l.at.IsZero() && !l.slot && !time.Now().Before(w.leaves); over || l.at.After(w.until(w.leaves)) {
			return lack{}, false, w.deny(l)
		}
		turn.Expect(fifo.Expectation{At: l.at, Resource: l.resource})
		if over, err := w.pause(l, turn.Wake); over || err != nil {
			return lack{}, false, err
		}
	}
}

// pause pauses before another try of what a request lacks. It is over if the request waits no longer.
func (w *waiter) pause(l lack, wake <-chan struct{}) (over bool, err error) {
	e, d := w.e, min(maxSleep, time.Until(l.at))
	switch {
	case l.slot:
		e.looking.Add(1)
		defer e.looking.Add(-1)
		d = slotPause
		if place := w.Answers[l.ask].place; 0 < place && place < int64(slotPause/turnPause) {
			d = time.Duration(place) * turnPause
		}
		d = max(d, time.Duration(e.looking.Load())*time.Second/maxLooks)
		w.Asks[l.ask].turn = e.turn(d)
		if last := time.Until(w.until(w.leaves).Add(-e.Timeout)); last > 0 {
			d = min(d, last) // it looks once more before it leaves
		}
		d = min(d, time.Until(w.leaves))
	case l.at.IsZero():
		d = outagePause
	}
	if _, err := w.sleep(l, d, wake); err != nil {
		return false, err
	}
	return l.slot && time.Until(w.leaves) <= 0, nil
}

// sleep returns after a time, at the end of the request's calls, or when it is woken. The error is that its caller
// has left, or that the engine ended.
func (w *waiter) sleep(l lack, d time.Duration, wake <-chan struct{}) (woken bool, err error) {
	timer, start := time.NewTimer(d), time.Now()
	defer func() {
		timer.Stop()
		w.Answers[l.ask].Waited += time.Since(start)
	}()
	select {
	case <-timer.C:
	case <-wake:
		woken = true
	case <-w.ctx.Done():
		if left(w.ctx) {
			err = ended(w.ctx)
		}
	case <-w.e.closed:
		err = errClosed()
	}
	return woken, err
}

// turn returns for how long a process is known to wait for a slot if it looks again after a pause.
func (e *Engine) turn(pause time.Duration) time.Duration {
	return 2*max(pause, slotPause) + min(e.Timeout, slotPause)
}

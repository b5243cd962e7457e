package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// errTooLate is the error of a Wait whose context ends before there are tokens.
func errTooLate() error {
	return fmt.Errorf("ginlimit: the tokens come after the deadline: %w", context.DeadlineExceeded)
}

// deny denies a request that has just tried, or looked. It bans for tokens that it lacks.
func (w *waiter) deny(l lack) error {
	if w.endless {
		return errTooLate()
	}
	w.Asks[l.ask].turn = 0
	ctx, cancel := w.rest()
	defer cancel()
	w.e.lookAtRest(ctx, w.Asks, w.Answers)
	if !l.slot {
		if denied, err := w.e.banFor(ctx, w.Asks[l.ask:l.ask+1], w.Answers[l.ask:l.ask+1]); err != nil {
			return err
		} else if !denied {
			return w.e.takeNow(ctx, w.Asks, w.Answers)
		}
	}
	answer := &w.Answers[l.ask]
	answer.RetryAfter = max(answer.RetryAfter, w.retryAfter(l)) // those who wait before need as long
	answer.ResetAfter = max(answer.ResetAfter, answer.RetryAfter)
	answer.QueueFull = w.full
	return w.banRest()
}

// rest returns a context for calls that follow the last try: together they take one timeout.
func (w *waiter) rest() (context.Context, context.CancelFunc) {
	start := w.tried
	if time.Since(start) >= w.e.Timeout { // it has waited since
		start = time.Now()
	}
	return w.e.within(w.ctx, start)
}

// banRest bans, as the request is denied, the clients of Asks whose tokens come too late to wait for.
func (w *waiter) banRest() (err error) {
	var ctx context.Context // of all calls, once there is one
	for i := range w.Asks {
		if w.tooLate(i) && err == nil {
			if ctx == nil {
				own, cancel := w.rest()
				defer cancel()
				ctx = own
			}
			w.Asks[i].turn = 0
			_, err = w.e.banFor(ctx, w.Asks[i:i+1], w.Answers[i:i+1])
		}
	}
	return err
}

// tooLate reports whether an Ask with a queue denies for want of tokens that come later than the request waits.
func (w *waiter) tooLate(i int) bool {
	ask, answer := &w.Asks[i], &w.Answers[i]
	return !w.endless && ask.queues() && denies(*answer) && answer.RetryAfter > 0 &&
		answer.Resource != ask.Set.Slots() && w.lateFor(w.end(lack{ask: i}), time.Now().Add(answer.RetryAfter))
}

// denyBehind denies a request that finds no place in a line, would wait there for too long, or has
// waited there without a turn. It hears when the line's tokens come, without asking Redis; only if a
// denial bans it has to be asked.
func (w *waiter) denyBehind(l lack) error {
	if w.endless {
		return errTooLate()
	}
	bans := slices.ContainsFunc(w.Asks, func(a Ask) bool { return a.queues() && a.Set.Bans() })
	if done, err := w.look(l, bans, false); done {
		return err
	}
	ask, answer := &w.Asks[l.ask], &w.Answers[l.ask]
	ask.Set = ask.Set.Now() // a calendar period may be over
	wait := w.retryAfter(l)
	answer.Verdict = rules.Verdict{Resource: l.resource, RetryAfter: wait, ResetAfter: wait}
	if !l.slot {
		answer.ResetAfter += ask.Set.Regain(ask.Set.Burst()-ask.N, 0, 1)
	}
	answer.Decided, answer.Source, answer.Hash, answer.QueueFull = true, FromStatic, w.e.Hash(&ask.Subject), w.full
	if buckets := ask.Set.Buckets(rules.All); l.resource >= 0 && ask.Report != rules.ReportNone {
		b := &buckets[l.resource]
		status := rules.Status{Resource: int32(l.resource), Full: min(b.Burst, b.Capacity), More: wait, Denies: true}
		if ask.Report == rules.ReportFull {
			status.Retry, status.Reset = wait, answer.ResetAfter
		}
		answer.Statuses = append(answer.Statuses, status)
	}
	return nil
}

// look looks, for a request that others stand before, at what it need not lack: it is done if the request
// is banned, or lacks tokens for too long or of the line in which it has no room. If it does not ask, it uses
// only what this process knows.
func (w *waiter) look(l lack, asks, room bool) (done bool, err error) {
	w.tried = time.Now()
	for i := range w.Answers {
		w.Answers[i].reset()
	}
	for i := range w.Asks {
		ask, answer := &w.Asks[i], &w.Answers[i]
		if !ask.Set.Counts(rules.Tokens) || ask.N == 0 {
			continue
		}
		ask.Set = ask.Set.Now()
		if err := w.e.lookAt(w.ctx, *ask, answer, rules.Tokens, asks, nil); err != nil {
			return true, err
		}
		if denies(*answer) {
			own, waits := w.lacks()
			switch {
			case !ask.queues():
				if denied, err := w.e.banFor(w.ctx, w.Asks[i:i+1], w.Answers[i:i+1]); denied || err != nil {
					return true, err
				}
			case !waits:
				return true, nil
			case !room && i == l.ask || w.lateFor(w.end(own), own.at):
				w.full = w.full && i == l.ask // not of another policy's line
				return true, w.deny(own)
			}
		}
		answer.reset()
	}
	return false, nil
}

// lookAt finds whether a request lacks tokens of an Ask or is banned, without taking anything. The answer
// is not decided if that is not known, and it may not ask. The store is not asked in an outage.
func (e *Engine) lookAt(ctx context.Context, ask Ask, answer *Answer, scope rules.Scope, asks bool,
	outage error) error {
	ask.scope = scope
	c := e.call(takeOf(&ask), &ask.Subject, scope)
	defer e.release(c)
	answer.begin(e, &ask, c)
	if e.isDenied(c, &ask) {
		answer.judge(c, &ask, FromCache)
		return nil
	}
	if !asks {
		return nil
	}
	c.Op = bucket.Op{Verb: bucket.Peek(ask.N).Verb, N: ask.N, Tenant: c.Op.Tenant}
	if outage == nil {
		outage = e.store.Do(ctx, c)
	}
	if outage != nil {
		return e.fallBack(ctx, c, &ask, answer, outage)
	}
	answer.judge(c, &ask, FromStore)
	if !answer.Allowed {
		c.Op.Charges = 1
		e.noteDecision(c, false)
	}
	return nil
}

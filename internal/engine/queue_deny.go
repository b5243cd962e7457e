package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// errTooLate is the error of a Wait whose context ends before there are tokens.
func errTooLate() error {
	return fmt.Errorf("ginlimit: the tokens come after the deadline: %w", context.DeadlineExceeded)
}

// deny denies a request that has just tried. If it lacks tokens, and a denial for want of them bans its
// client, it is denied once more, which does.
func (w *waiter) deny(l lack) error {
	switch {
	case w.endless:
		return errTooLate()
	case w.bans == nil || l.slot:
		w.Answers[l.ask].delay(w.retryAfter(l))
		w.Answers[l.ask].QueueFull = w.full
		return nil
	}
	for i := range w.Asks {
		if w.Asks[i].turn = 0; w.bans[i] != bucket.NoBans {
			w.Asks[i].Bans = bucket.LimitBans
		}
	}
	_, _, err := w.try()
	w.Answers[l.ask].QueueFull = w.full && err == nil && !w.Answers[l.ask].Allowed
	return err
}

// denyBehind denies a request that finds no place in a line, would wait there for too long, or has
// waited there without a turn. It hears when the line's tokens come, without asking Redis; only if a
// denial bans it has to be asked.
func (w *waiter) denyBehind(l lack) error {
	if w.endless {
		return errTooLate()
	}
	if done, err := w.look(l, w.bans != nil, false); done {
		return err
	}
	ask, answer := &w.Asks[l.ask], &w.Answers[l.ask]
	ask.Set = ask.Set.Now() // a calendar period may be over
	wait := w.retryAfter(l)
	answer.Verdict = rules.Verdict{Resource: l.resource, RetryAfter: wait, ResetAfter: wait}
	if !l.slot {
		answer.ResetAfter += ask.Set.Regain(ask.Set.Burst()-ask.N, 0, 1)
	}
	answer.Decided, answer.Source, answer.Hash, answer.QueueFull = true, FromStatic, w.e.Hash(ask), w.full
	if buckets := ask.Set.Buckets(ask.Scope); l.resource >= 0 && ask.Report != rules.ReportNone {
		b := &buckets[l.resource]
		status := rules.Status{Resource: int32(l.resource), Full: min(b.Burst, b.Capacity), More: wait, Denies: true}
		if ask.Report == rules.ReportFull {
			status.Retry, status.Reset = wait, answer.ResetAfter
		}
		answer.Statuses = append(answer.Statuses, status)
	}
	return nil
}

// delay makes a denial last for as long as those who wait before need.
func (a *Answer) delay(wait time.Duration) {
	a.RetryAfter = max(a.RetryAfter, wait)
	a.ResetAfter = max(a.ResetAfter, a.RetryAfter)
}

// look looks, for a request that others stand before, at what it need not lack: it is done if the request
// is banned or lacks tokens for too long, or has no room to wait. If it does not ask, it uses only what
// this process knows.
func (w *waiter) look(l lack, asks, room bool) (done bool, err error) {
	for i := range w.Answers {
		w.Answers[i].reset()
	}
	for i := range w.Asks {
		ask, answer := &w.Asks[i], &w.Answers[i]
		if !ask.Set.Counts(rules.Tokens) || ask.N == 0 {
			continue
		}
		ask.Set = ask.Set.Now()
		if err := w.e.lookAt(w.ctx, w.calls, *ask, answer, asks, nil); err != nil {
			return true, err
		}
		if answer.Decided && !answer.Allowed {
			own, waits := w.lacks()
			switch {
			case !ask.queues() && ask.bans() && !answer.Banned:
				if denied, err := w.denyOnly(i); denied || err != nil {
					return true, err
				}
			case !waits:
				return true, nil
			case room && !w.lateFor(w.end(own), own.at):
			case room || asks || answer.RetryAfter > w.retryAfter(l):
				if own.line != l.line {
					l = own
				}
				return true, w.deny(l)
			}
		}
		answer.reset()
	}
	return false, nil
}

// denyOnly denies a request for want of tokens of an Ask that has no queue, so that it bans: a look does not.
// It is false if there are tokens meanwhile, which are given back.
func (w *waiter) denyOnly(i int) (denied bool, err error) {
	w.Asks[i].Settles, w.Asks[i].Leases = true, false
	err = w.e.takeOne(w.ctx, w.calls, &w.Asks[i], &w.Answers[i])
	if err != nil || !w.Answers[i].Allowed {
		return true, err
	}
	w.e.giveBackAll(w.calls, w.Asks[i:i+1], w.Answers[i:i+1])
	return false, nil
}

// lookAt finds whether a request lacks tokens of an Ask or is banned, without taking anything. The answer
// is not decided if that is not known, and it may not ask. The store is not asked in an outage.
func (e *Engine) lookAt(ctx, within context.Context, ask Ask, answer *Answer, asks bool, outage error) error {
	ask.Scope = min(ask.Scope, rules.Tokens)
	c := e.call(takeAll(&ask), &ask, ask.Scope)
	defer e.release(c)
	answer.begin(e, &ask, c)
	if e.isDenied(c, &ask) {
		answer.judge(c, c.Op, &ask, FromCache)
		return nil
	}
	if !asks {
		return nil
	}
	c.Op = bucket.Op{Verb: bucket.Peek(ask.N).Verb, N: ask.N, Tenant: c.Op.Tenant}
	if outage == nil {
		outage = e.store.Do(within, c)
	}
	if outage != nil {
		return e.fallBack(ctx, c, c.Op, &ask, answer, outage)
	}
	answer.judge(c, c.Op, &ask, FromStore)
	if !answer.Allowed {
		c.Op.Charges = 1
		e.remember(c)
	}
	return nil
}

package engine

import (
	"context"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/denycache"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// layer decides on a call, or leaves it to the next one. An error leaves it to this process (see fallBack).
type layer func(e *Engine, ctx context.Context, c *dispatch.Call, ask *Ask, answer *Answer) (done bool, err error)

// layers decide on calls, in this order.
var layers = [...]layer{(*Engine).askLease, (*Engine).askDenyCache, (*Engine).askStore}

// Take takes what a request asks for, or nothing, and fills in its answers. Trials are decided at the same time.
//
// Answers that are not Decided are of Asks that nobody looked at, as another one was denied.
func (e *Engine) Take(ctx context.Context, r Request) error {
	queues := r.queues()
	if r.Waited > 0 && !queues {
		within, cancel := e.within(ctx, time.Now().Add(-r.Waited))
		defer cancel()
		ctx = within
	}
	switch {
	case r.Trials > 0:
		return e.takeWithTrials(ctx, r)
	case queues:
		return e.takeInLine(ctx, r)
	}
	return e.takeNow(ctx, r.Asks, r.Answers)
}

// takeNow takes the tokens of each Ask, or none of any.
func (e *Engine) takeNow(ctx context.Context, asks []Ask, answers []Answer) error {
	for i := range answers {
		answers[i].reset()
	}
	if err := e.Ready(ctx); err != nil {
		return err
	}
	counted := 0
	for i := range asks {
		ask, answer := &asks[i], &answers[i]
		if !e.static(ask.N, ask, answer) {
			counted++
		} else if !answer.Allowed {
			for j := range answers[:i] {
				answers[j].Decided = false
			}
			return nil // nobody else is asked
		}
	}
	switch {
	case counted == 0:
		return nil
	case len(asks) == 1:
		return e.take(ctx, takeOf(&asks[0]), asks[0].N, &asks[0], &answers[0])
	}
	return e.takeSeveral(ctx, asks, answers)
}

// Peek looks at what one token would meet under each Ask, one after another, within one timeout. It
// ends at an Ask that no waiting makes allowed; later answers are not Decided.
func (e *Engine) Peek(ctx context.Context, asks []Ask, answers []Answer) error {
	if err := e.Ready(ctx); err != nil {
		return err
	}
	if len(asks) > 1 {
		within, cancel := e.within(ctx, time.Now())
		defer cancel()
		ctx = within
	}
	for i := range asks {
		answers[i].reset()
		if !e.static(0, &asks[i], &answers[i]) {
			if err := e.take(ctx, bucket.Peek(1), 1, &asks[i], &answers[i]); err != nil {
				return err
			}
		}
		if answers[i].RetryAfter == rules.Never {
			return nil
		}
	}
	return nil
}

// Status looks at every resource of an Ask, also if a limit prohibits: the answer's Statuses are of
// one token each.
func (e *Engine) Status(ctx context.Context, ask *Ask, answer *Answer) error {
	if err := e.Ready(ctx); err != nil {
		return err
	}
	answer.reset()
	if !ask.Set.Counts(rules.All) {
		return nil
	}
	ask.Report = rules.ReportFull
	return e.take(ctx, bucket.Peek(1), 1, ask, answer)
}

// static answers an Ask that needs no bucket.
func (e *Engine) static(n int64, ask *Ask, answer *Answer) bool {
	verdict, ok := ask.Set.Static(rules.All, n)
	if !ok {
		return false
	}
	answer.Verdict, answer.Decided, answer.Source = verdict, true, FromStatic
	if !verdict.Allowed && ask.Report != rules.ReportNone {
		answer.Statuses = append(answer.Statuses, rules.Status{Resource: rules.Prohibited, Denies: true})
	}
	return true
}

// takeOf returns the operation that takes the tokens of an Ask or none, or as many as there are. It only looks
// for 0 tokens, and for more than there ever are.
func takeOf(ask *Ask) bucket.Op {
	switch n := ask.N; {
	case ask.UpTo:
		return bucket.Op{Verb: bucket.Take, Charges: min(n, ask.Set.Burst()), N: 1}
	case n == 0:
		return bucket.Peek(1)
	case n > ask.Set.Burst():
		return bucket.Peek(n)
	default:
		return bucket.Op{Verb: bucket.Take, Charges: 1, N: n}
	}
}

// take decides on one Ask that has buckets.
func (e *Engine) take(ctx context.Context, op bucket.Op, n int64, ask *Ask, answer *Answer) (err error) {
	c := e.call(op, &ask.Subject, rules.All)
	defer e.release(c)
	answer.begin(e, ask, c)
	if ask.Set.Guarded() {
		err = e.decideGuarded(ctx, c, ask, answer)
	} else {
		err = e.decide(ctx, c, ask, answer)
	}
	answer.allowFree(n)
	return err
}

// begin fills in what is known of an answer before the decision.
func (a *Answer) begin(e *Engine, ask *Ask, c *dispatch.Call) {
	if a.Hash = c.Hash; ask.Settles {
		a.receipt = newReceipt(e.Timeout)
	}
}

// allowFree allows a request for 0 tokens, whatever is left.
func (a *Answer) allowFree(n int64) {
	if n == 0 {
		a.Allowed, a.RetryAfter = true, 0
	}
}

// decide decides on a call by the first layer that can.
func (e *Engine) decide(ctx context.Context, c *dispatch.Call, ask *Ask, answer *Answer) error {
	for _, layer := range layers {
		if done, err := layer(e, ctx, c, ask, answer); err != nil {
			answer.recalled = e.recallOne(ctx, c, ask)
			return e.fallBack(ctx, c, ask, answer, err)
		} else if done {
			break
		}
	}
	return nil
}

// askStore has the store decide.
func (e *Engine) askStore(ctx context.Context, c *dispatch.Call, ask *Ask, answer *Answer) (done bool, err error) {
	if err := e.store.Do(ctx, c); err != nil {
		return false, err
	}
	answer.receipt.fill(c.Sent, c.States)
	answer.judge(c, ask, FromStore)
	e.noteDecision(c, answer.Allowed, denycache.Beside{})
	return true, nil
}

// judge fills in the answer from the states of a call.
func (a *Answer) judge(c *dispatch.Call, ask *Ask, source Source) {
	a.Verdict, a.Statuses = ask.Set.Judge(ask.scope, c.States, c.Op, ask.Report, a.Statuses)
	a.Decided, a.Source = true, source
}

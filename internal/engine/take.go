package engine

import (
	"context"
	"time"

	"github.com/ginlimit/ginlimit/internal/rules"
)

// Take takes what a request asks for, or nothing, and fills in its answers. Trials are decided at the same time.
//
// Answers that are not Decided are of Asks that nobody looked at, as another one was denied.
func (e *Engine) Take(ctx context.Context, r Request) error {
	if len(r.Asks) == 1 && r.Trials == 0 && r.Waited == 0 && r.Asks[0].Queue.Length == 0 {
		return e.take(ctx, &r.Asks[0], &r.Answers[0])
	}
	queues := false
	for i := range r.Asks {
		queues = queues || r.Asks[i].Queue.Length != 0
	}
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
	if len(asks) == 1 {
		return e.take(ctx, &asks[0], &answers[0])
	}
	for i := range answers {
		answers[i].reset()
	}
	if err := e.Ready(ctx); err != nil {
		return err
	}
	counted := 0
	for i := range asks {
		if asks[i].Set.Counted {
			counted++
		} else if answers[i].answerStatic(&asks[i]); !answers[i].Allowed {
			for j := range answers[:i] {
				answers[j].Decided = false
			}
			return nil // nobody else is asked
		}
	}
	if counted == 0 {
		return nil
	}
	return e.several(asks, answers).take(ctx)
}

// take decides on one Ask: by a lease if it has one, by the deny cache, or by the store. After an error this process
// decides.
func (e *Engine) take(ctx context.Context, ask *Ask, answer *Answer) (err error) {
	answer.reset()
	if err := e.Ready(ctx); err != nil {
		return err
	}
	switch {
	case !ask.Set.Counted && ask.looks != everything:
		answer.answerStatic(ask)
		return nil
	case ask.Set.Guarded:
		d := e.emptySeveral()
		d.add(ask, answer)
		return d.take(ctx)
	}
	c := e.call(ask.op(), &ask.Subject, rules.All)
	defer e.release(c)
	answer.Hash = c.Hash
	switch takes := c.Op.Charges > 0; {
	case ask.Leases && ask.Set.Life > 0 && e.redis != nil && !(takes && ask.Settles):
		err = e.askLease(ctx, c, ask, answer)
	case takes && e.denied != nil && e.isDenied(c, ask):
		e.judgeDenied(c, ask, answer)
	default:
		err = e.askStore(ctx, c, ask, answer)
	}
	if err != nil {
		e.recallOne(ctx, c, ask, err)
		return e.fallBack(ctx, c, ask, answer, err)
	}
	return nil
}

// Peek looks at what one token would meet under an Ask.
func (e *Engine) Peek(ctx context.Context, ask *Ask, answer *Answer) error {
	return e.look(ctx, ask, answer, limits)
}

// Status looks at every resource of an Ask, also if a limit prohibits: the answer's Statuses are of
// one token each.
func (e *Engine) Status(ctx context.Context, ask *Ask, answer *Answer) error {
	if answer.reset(); !ask.Set.Counts(rules.All) {
		return e.Ready(ctx)
	}
	ask.Report = rules.ReportFull
	return e.look(ctx, ask, answer, everything)
}

// look looks at what one token would meet under an Ask.
func (e *Engine) look(ctx context.Context, ask *Ask, answer *Answer, at looks) error {
	n := ask.N
	ask.N, ask.looks = 1, at
	err := e.take(ctx, ask, answer)
	ask.N, ask.looks = n, nothing
	return err
}

package engine

import (
	"context"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// layer decides on a call, or leaves it to the next one. An error leaves it to this process (see fallBack).
type layer func(e *Engine, ctx context.Context, c *dispatch.Call, ask *Ask, answer *Answer) (done bool, err error)

// layers decide on calls, in this order.
var layers = [...]layer{(*Engine).askLease, (*Engine).askDenyCache, (*Engine).askStore}

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
		return e.take(ctx, &asks[0], &answers[0])
	}
	return e.several(asks, answers).take(ctx)
}

// take decides on one Ask that has buckets.
func (e *Engine) take(ctx context.Context, ask *Ask, answer *Answer) error {
	if ask.Set.Guarded() {
		d := e.emptySeveral()
		d.add(ask, answer)
		return d.take(ctx)
	}
	c := e.call(ask.op(), &ask.Subject, rules.All)
	defer e.release(c)
	answer.begin(e, ask, c)
	err := e.decide(ctx, c, ask, answer)
	answer.allowFree(ask.N)
	return err
}

// decide decides on a call by the first layer that can.
func (e *Engine) decide(ctx context.Context, c *dispatch.Call, ask *Ask, answer *Answer) error {
	for _, layer := range layers {
		if done, err := layer(e, ctx, c, ask, answer); err != nil {
			e.recallOne(ctx, c, ask)
			return e.fallBack(ctx, c, ask, answer, err)
		} else if done {
			break
		}
	}
	return nil
}

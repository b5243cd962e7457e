package ginlimit

import (
	"context"

	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// Take takes n tokens as a handler of an algorithm does, and returns how they are given back.
func Take(ctx context.Context, l *Limiter, a Algorithm, key string, n int,
	limits ...Limit) (Result, func() error, error) {
	set, err := newLimitSet(a, limits...)
	if err != nil {
		return Result{}, nil, err
	}
	q := l.adHoc()
	q.set, q.asks[0] = set, engine.Ask{
		Client: key, Set: &set.rules, Scope: rules.Tokens, Failure: engine.Failure(l.defaults.failure), Settles: true,
	}
	r, err := q.end(ctx, n, l.engine.Take(ctx, int64(n), q.asks[:], q.answers[:]))
	return r, func() error { return l.engine.GiveBack(ctx, &q.answers[0].Charge) }, err
}

package ginlimit

import (
	"context"

	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// Take takes n tokens as a handler of an algorithm does, and returns how they are given back.
func Take(ctx context.Context, l *Limiter, a Algorithm, key string, n int, limits ...Limit) (Result, func() error, error) {
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

// Script returns the script of an algorithm, and what it is told of a limit.
func Script(a Algorithm, l Limit) (source string, args []any, err error) {
	set, err := newLimitSet(a, l)
	if err != nil {
		return "", nil, err
	}
	b := &set.rules.Buckets(rules.Limits)[0]
	return sources().Server[b.Kind], b.Args[:], nil
}

// Sources are the scripts of a store in Redis.
func Sources() redisstore.Sources { return sources() }

// Scripts are all scripts of limits, bans and slots.
func Scripts() [redisstore.Scripts]string { return sources().Server }

// NodeScript returns the script of an algorithm for a node of a cluster.
func NodeScript(a Algorithm, l Limit) (string, error) {
	set, err := newLimitSet(a, l)
	if err != nil {
		return "", err
	}
	return sources().Node[set.rules.Buckets(rules.Limits)[0].Kind], nil
}

package ginlimit

import (
	"context"

	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// Take takes n tokens as a handler of an algorithm does, and returns how they are given back.
func Take(ctx context.Context, l *Limiter, a Algorithm, key string, n int, limits ...Limit) (Result, func() error, error) {
	set, err := newLimitSet(a, limits...)
	set.failure = l.defaults.failure
	if err != nil {
		return Result{}, nil, err
	}
	s := &subject{client: key, limits: &set, receipt: l.newReceipt()}
	res, _, err := l.allow(ctx, s, n)
	return res, func() error { return l.giveBack(ctx, &charge{*s, res.Granted, res.Source}) }, err
}

// Script returns the script of an algorithm, and what it is told of a limit.
func Script(a Algorithm, l Limit) (source string, args []any, err error) {
	set, err := newLimitSet(a, l)
	if err != nil {
		return "", nil, err
	}
	b := &set.buckets[0]
	return scripts()[b.Kind], b.Args[:], nil
}

// Scripts are all scripts of limits, bans and slots.
func Scripts() [redisstore.Scripts]string { return scripts() }

// CrossSlotScript comes before those of limits, in calls for several clients on a node of a cluster.
func CrossSlotScript() string { return crossSlotSource }

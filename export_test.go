package ginlimit

import "context"

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

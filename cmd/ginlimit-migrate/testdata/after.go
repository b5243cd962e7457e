package app

import (
	"time"

	rate "github.com/ginlimit/ginlimit"
)

const perHour = 300

func routes(rdb any, key func() string, plan func() []rate.Limit, limit rate.Limit) {
	limiter, err := rate.NewLimiter(rdb, rate.WithDenyCache(10), rate.WithFailureMode(rate.FailOpen))
	if err == rate.ErrInvalidArgument {
		return
	}

	use(rate.New(rdb, rate.PerMinute(100).WithAlgorithm(rate.FixedWindow)))
	use(limiter.Handler("100/m", rate.PerMinute(100)))
	use(limiter.Handler("10/s burst 20, 300/h, 9/d by key", rate.PerSecond(10).WithBurst(20), rate.PerHour(perHour), rate.PerDay(9), // nine

		rate.WithKey(rate.ByAny(key))))
	use(limiter.Handler("login", rate.Limit{Rate: 5, Period: 15 * time.Minute, Burst: 5}.WithAlgorithm(rate.FixedWindow))) // a comment
	// another

	use(limiter.Handler("slots", rate.InFlight(2)))
	use(limiter.Handler("report", rate.PerDay(7), rate.InFlight(2)))
	use(limiter.Handler("plan", rate.WithLimitFunc(plan)))
	use(limiter.Handler("TODO", limit))
	use(limiter.Handler("all", rate.PerDay(1).WithAlgorithm(rate.FixedWindow),
		rate.WithIdentity("everybody", key, rate.PerSecond(9).WithAlgorithm(rate.FixedWindow), limit.WithAlgorithm(rate.FixedWindow))))
	var failure rate.FailureMode
	_ = limiter.Policy("x", limit, rate.WithFailureMode(failure)).Allow("client")
	_ = limiter.Allow("key", limit)
	_ = []any{rate.FromCache, rate.OutcomeDenied, rate.OutcomeOpen, rate.LocalBuckets}
}

func use(rate.Handler) {}

package app

import (
	"time"

	rate "github.com/ginlimit/ginlimit"
)

const perHour = 300

func routes(rdb any, key func() string, plan func() []rate.Limit, limit rate.Limit) {
	limiter, err := rate.NewLimiter(rdb, rate.WithDenyMemory(10), rate.WithFailure(rate.FailOpen))
	if err == rate.ErrInvalidLimit {
		return
	}

	use(rate.New(rdb, rate.PerMinute(100), rate.WithAlgorithm(rate.FixedWindow)))
	use(limiter.Handler(rate.PerMinute(100)))
	use(limiter.Handler(rate.PerSecond(10).WithBurst(20), rate.WithLimits(rate.PerHour(perHour), rate.PerDay(9)), // nine

		rate.WithKey(rate.ByFirst(key))))
	use(limiter.Handler(rate.Limit{Rate: 5, Period: 15 * time.Minute, Burst: 5}, // a comment
		rate.WithName("login"), // another
		rate.WithAlgorithm(rate.FixedWindow),
	))
	use(limiter.Handler(rate.PerDay(-1), rate.WithConcurrency(2), rate.WithName("slots")))
	use(limiter.Handler(rate.PerDay(7), rate.WithConcurrency(2), rate.WithName("report")))
	use(limiter.Handler(rate.PerDay(1), rate.WithName("plan"), rate.WithLimitFunc(plan)))
	use(limiter.Handler(limit))
	use(limiter.Handler(rate.PerDay(1), rate.WithName("all"), rate.WithAlgorithm(rate.FixedWindow),
		rate.WithIdentity("everybody", key, rate.PerSecond(9), limit)))
	var failure rate.Failure
	_ = limiter.Policy(limit, rate.WithName("x"), rate.WithFailure(failure)).Allow("client")
	_ = limiter.Allow("key", limit)
	_ = []any{rate.FromMemory, rate.OutcomeRefused, rate.OutcomeOpen, rate.LocalBuckets}
}

func use(rate.Handler) {}

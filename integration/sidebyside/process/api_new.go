//go:build !before_rewrite

package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/integration/sidebyside"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// The library of this tree.

// newLimiter returns a limiter of such policies.
func newLimiter(rdb *redis.Client, p sidebyside.Policy) (*ginlimit.Limiter, error) {
	opts := []ginlimit.LimiterOption{
		ginlimit.WithPrefix(p.Prefix), ginlimit.WithTimeout(timeout),
		ginlimit.WithFailureMode(ginlimit.FailClosed), ginlimit.WithDenyCache(0),
	}
	if p.Secret != "" {
		opts = append(opts, ginlimit.WithKeySecret([]byte(p.Secret)))
	}
	l, err := ginlimit.NewLimiter(rdb, opts...)
	if err == nil && p.Lease > 0 {
		testkit.TrustClock(l)
	}
	return l, err
}

func newPolicy(l *ginlimit.Limiter, p sidebyside.Policy) (*ginlimit.Policy, error) {
	opts := []ginlimit.PolicyOption{
		ginlimit.WithHeaders(ginlimit.XRateLimit | ginlimit.RateLimitDraft), ginlimit.WithFloor(p.Floor),
		ginlimit.WithLease(p.Lease),
	}
	for _, limit := range p.Limits {
		if limit.Calendar == (ginlimit.Calendar{}) {
			limit = limit.WithAlgorithm(p.Algorithm)
		}
		opts = append(opts, limit)
	}
	if p.Slots > 0 {
		opts = append(opts, ginlimit.InFlight(p.Slots))
	}
	if p.Ban[0] > 0 {
		opts = append(opts, ginlimit.WithBan(p.Ban[0], p.Ban[1]))
	}
	return l.Policy(p.Name, opts...)
}

func newPlans(rdb *redis.Client, name string, life time.Duration,
	source func(context.Context, string) ([]ginlimit.Limit, error)) (*ginlimit.Plans, error) {
	l, err := ginlimit.NewLimiter(rdb, ginlimit.WithTimeout(timeout))
	if err != nil {
		return nil, err
	}
	return l.NewPlans(name, life, source)
}

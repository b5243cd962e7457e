//go:build before_rewrite

package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/integration/sidebyside"
)

// The library of the commit before the rewrite.

// newLimiter returns a limiter of such policies.
func newLimiter(rdb *redis.Client, p sidebyside.Policy) (*ginlimit.Limiter, error) {
	opts := []ginlimit.Option{
		ginlimit.WithPrefix(p.Prefix), ginlimit.WithAlgorithm(p.Algorithm), ginlimit.WithTimeout(timeout),
		ginlimit.WithFailure(ginlimit.FailClosed), ginlimit.WithDenyMemory(0),
	}
	if p.Secret != "" {
		opts = append(opts, ginlimit.WithKeySecret([]byte(p.Secret)))
	}
	if p.Lease > 0 { // a size that is given says that the clocks agree
		opts = append(opts, ginlimit.WithDenyMemory(ginlimit.DefaultDenyMemory))
	}
	return ginlimit.NewLimiter(rdb, opts...)
}

func newPolicy(l *ginlimit.Limiter, p sidebyside.Policy) (*ginlimit.Policy, error) {
	opts := []ginlimit.Option{ginlimit.WithHeaders(ginlimit.XRateLimit | ginlimit.RateLimitDraft)}
	if !p.Unnamed {
		opts = append(opts, ginlimit.WithName(p.Name))
	}
	limit := ginlimit.PerSecond(-1) // slots need one
	if len(p.Limits) > 0 {
		limit = p.Limits[0]
		opts = append(opts, ginlimit.WithLimits(p.Limits[1:]...))
	}
	if p.Floor > 0 {
		opts = append(opts, ginlimit.WithFloor(p.Floor))
	}
	if p.Slots > 0 {
		opts = append(opts, ginlimit.WithConcurrency(p.Slots))
	}
	if p.Ban[0] > 0 {
		opts = append(opts, ginlimit.WithBan(p.Ban[0], p.Ban[1]))
	}
	if p.Lease > 0 {
		opts = append(opts, ginlimit.WithLease(p.Lease))
	}
	return l.Policy(limit, opts...)
}

func newPlans(rdb *redis.Client, name string, life time.Duration,
	source func(context.Context, string) ([]ginlimit.Limit, error)) (*ginlimit.Plans, error) {
	return ginlimit.NewPlans(rdb, life, source, ginlimit.WithName(name), ginlimit.WithTimeout(timeout))
}

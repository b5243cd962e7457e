package testkit

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// PlansOfProcess returns the plans of a process that knows none yet, whose timeout is the default.
func PlansOfProcess(t *testing.T, b *Bubble, source func(context.Context, string) (ginlimit.Limit, error),
	opts ...ginlimit.LimiterOption) *ginlimit.Plans {
	t.Helper()
	limiter, err := ginlimit.NewLimiter(b.Connect(t),
		append([]ginlimit.LimiterOption{
			ginlimit.WithLogger(slog.New(slog.DiscardHandler)), ginlimit.WithReplicas(1)}, opts...)...)
	require.NoError(t, err)
	plans, err := limiter.NewPlans("plans", time.Hour, SingleLimit(source))
	require.NoError(t, err)
	return plans
}

// Source is what a database would be.
type Source struct {
	Mu    sync.Mutex
	Plans map[string]ginlimit.Limit
	err   error
	Asked atomic.Int64
	Held  chan struct{} // a question waits for it, if it is not nil
}

// Ask returns a client's plan.
func (s *Source) Ask(ctx context.Context, client string) (ginlimit.Limit, error) {
	s.Asked.Add(1)
	s.Mu.Lock()
	limit, ok := s.Plans[client]
	err, held := s.err, s.Held
	s.Mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return ginlimit.Limit{}, ctx.Err()
		}
	}
	switch {
	case err != nil:
		return ginlimit.Limit{}, err
	case !ok:
		return ginlimit.Limit{}, ginlimit.ErrUnknownClient
	}
	return limit, nil
}

// Set changes a client's plan, and the error that every answer is from now on.
func (s *Source) Set(client string, limit ginlimit.Limit, err error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Plans[client], s.err = limit, err
}

// NewSource returns a source of three plans.
func NewSource() *Source {
	return &Source{Plans: map[string]ginlimit.Limit{"three": ginlimit.PerMinute(3),
		"unlimited": ginlimit.PerMinute(-1), "prohibited": ginlimit.PerMinute(0)}}
}

// NewPlans returns plans that a source knows for an hour.
func NewPlans(t *testing.T, rdb redis.UniversalClient, s *Source, opts ...ginlimit.LimiterOption) *ginlimit.Plans {
	t.Helper()
	plans, err := NewLimiter(t, rdb, opts...).NewPlans("plans", time.Hour, SingleLimit(s.Ask))
	require.NoError(t, err)
	return plans
}

// SingleLimit is a source of one limit for each client.
func SingleLimit(source func(context.Context, string) (ginlimit.Limit, error)) func(context.Context,
	string) ([]ginlimit.Limit, error) {
	return func(ctx context.Context, client string) ([]ginlimit.Limit, error) {
		l, err := source(ctx, client)
		return []ginlimit.Limit{l}, err
	}
}

// LimitOf returns the one limit of a client.
func LimitOf(p *ginlimit.Plans, ctx context.Context, client string) (ginlimit.Limit, error) {
	limits, err := p.Limits(ctx, client)
	if err != nil {
		return ginlimit.Limit{}, err
	}
	return limits[0], nil
}

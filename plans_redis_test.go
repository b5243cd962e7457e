//go:build integration

package ginlimit_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/harness"
)

// aging shortens what keys have left to live, as time does.
func aging(t *testing.T, rdb *redis.Client, d time.Duration) {
	t.Helper()
	for _, key := range rdb.Keys(t.Context(), "*").Val() {
		require.NoError(t, rdb.PExpire(t.Context(), key, rdb.PTTL(t.Context(), key).Val()-d).Err())
	}
}

func TestPlansAskOncePerClientAndLife(t *testing.T) { // the published limiter with plans in a database: the quota is cached in Redis
	t.Parallel()
	rdb, s := harness.Connect(t, harness.StartRedis(t)), newSource()
	for range 3 { // processes
		plans := newPlans(t, rdb, s)
		for range 100 {
			for client, want := range s.plans {
				limit, err := limitOf(plans, t.Context(), client)
				require.NoError(t, err)
				require.Equal(t, want, limit)
			}
			_, err := limitOf(plans, t.Context(), "nobody")
			require.ErrorIs(t, err, ginlimit.ErrUnknownClient)
		}
	}
	require.EqualValues(t, 4, s.asked.Load())
	require.ElementsMatch(t, []string{"ginlimit:plan:{three}", "ginlimit:plan:{unlimited}", "ginlimit:plan:{prohibited}",
		"ginlimit:plan:{nobody}"}, rdb.Keys(t.Context(), "*").Val())

	aging(t, rdb, time.Hour)
	limit, err := limitOf(newPlans(t, rdb, s), t.Context(), "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(3), limit)
	require.EqualValues(t, 5, s.asked.Load(), "its life is over")
}

func TestManyMissesAreOneQuestion(t *testing.T) {
	t.Parallel()
	s := newSource()
	s.held = make(chan struct{})
	plans := newPlans(t, harness.Connect(t, harness.StartRedis(t)), s)
	var all sync.WaitGroup
	for range 1000 {
		all.Go(func() {
			limit, err := limitOf(plans, t.Context(), "three")
			assert.NoError(t, err)
			assert.Equal(t, ginlimit.PerMinute(3), limit)
		})
	}
	require.True(t, harness.BecomesTrue(t.Context().Done(), func() bool { return s.asked.Load() == 1 }))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := limitOf(plans, ctx, "three")
	require.ErrorIs(t, err, context.Canceled, "who leaves does not take the others with him")
	close(s.held)
	all.Wait()
	require.EqualValues(t, 1, s.asked.Load())
}

// TestOldPlansServeWhileTheSourceFails stops the source, then Redis, then both.
func TestOldPlansServeWhileTheSourceFails(t *testing.T) {
	t.Parallel()
	addr, process := harness.StartRedisProcess(t)
	rdb, s := harness.Connect(t, addr), newSource()
	var log harness.Buffer
	plans := newPlans(t, rdb, s, ginlimit.WithTimeout(100*time.Millisecond), ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	get := func(p *ginlimit.Plans, client string) (ginlimit.Limit, error) { return limitOf(p, t.Context(), client) }
	renewing, err := ginlimit.NewPlans(rdb, time.Second, single(s.ask), harness.Patient())
	require.NoError(t, err)
	for range 2 { // Redis keeps a plan that is asked for again when it is old
		_, err := get(renewing, "three")
		require.NoError(t, err)
		<-time.After(time.Second)
	}
	require.EqualValues(t, 1, rdb.Exists(t.Context(), "ginlimit:plan:{three}").Val())
	broken := errors.New("the database is away")
	s.set("three", ginlimit.PerMinute(4), broken)
	for range 10 {
		limit, err := get(plans, "three")
		require.NoError(t, err)
		require.Equal(t, ginlimit.PerMinute(3), limit)
		_, err = get(plans, "unlimited")
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
		require.ErrorIs(t, err, broken)
	}
	require.LessOrEqual(t, s.asked.Load(), int64(10), "a failure is remembered for a second")
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.NotContains(t, log.String(), "three")
	another := newPlans(t, rdb, s)
	limit, err := get(another, "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(3), limit, "the old one in Redis")

	require.NoError(t, process.Signal(syscall.SIGSTOP))
	require.ErrorIs(t, plans.Invalidate(canceled(t), "three"), context.Canceled)
	limit, err = get(plans, "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(3), limit)
	s.set("three", ginlimit.PerMinute(4), nil)
	require.True(t, harness.BecomesTrue(t.Context().Done(), func() bool { // each process for itself
		_ = plans.Invalidate(canceled(t), "three")
		limit, err := get(plans, "three")
		require.NoError(t, err)
		return limit == ginlimit.PerMinute(4) && strings.Contains(log.String(), "answers again")
	}))
	require.NoError(t, process.Signal(syscall.SIGCONT))
}

// TestOpenBreakerPreventsAStampede wants a life between two questions though Redis keeps nothing.
func TestOpenBreakerPreventsAStampede(t *testing.T) {
	t.Parallel()
	s := newSource()
	plans := newPlans(t, nowhere(t), s, ginlimit.WithTimeout(time.Millisecond))
	for range 10 {
		_, err := limitOf(plans, t.Context(), "three")
		require.NoError(t, err)
		<-time.After(150 * time.Millisecond)
	}
	require.EqualValues(t, 1, s.asked.Load())
}

// TestInventedClientsLeaveRedis keeps none of them for longer than a life, and a long one as its hash.
func TestInventedClientsLeaveRedis(t *testing.T) {
	t.Parallel()
	rdb := harness.Connect(t, harness.StartRedis(t))
	plans := newPlans(t, rdb, newSource(), ginlimit.WithName("users"))
	for _, client := range []string{"nobody", strings.Repeat("long ", 1000), "{}", "three"} {
		_, _ = limitOf(plans, t.Context(), client)
	}
	for _, key := range rdb.Keys(t.Context(), "*").Val() {
		require.LessOrEqual(t, len(key), 100)
		require.True(t, strings.HasPrefix(key, "ginlimit:plan:{users|") || strings.HasPrefix(key, "ginlimit:plan:{#"), key)
		if !strings.Contains(key, "three") {
			require.LessOrEqual(t, rdb.PTTL(t.Context(), key).Val(), time.Hour)
		}
	}
	_, err := limitOf(newPlans(t, rdb, &source{}, ginlimit.WithName("tenants")), t.Context(), "three")
	require.ErrorIs(t, err, ginlimit.ErrUnknownClient, "other names are other plans")
}

// TestInvalidationElsewhereOvertakesAQuestion has another process change the plan while the old one is on its way.
func TestInvalidationElsewhereOvertakesAQuestion(t *testing.T) {
	t.Parallel()
	rdb, s := harness.Connect(t, harness.StartRedis(t)), newSource()
	s.held = make(chan struct{})
	here, elsewhere := newPlans(t, rdb, s), newPlans(t, rdb, s)
	var all sync.WaitGroup
	all.Go(func() { _, _ = limitOf(here, t.Context(), "three") })
	require.True(t, harness.BecomesTrue(t.Context().Done(), func() bool { return s.asked.Load() == 1 }))
	s.mu.Lock()
	old := s.held
	s.plans["three"], s.held = ginlimit.PerMinute(4), nil
	s.mu.Unlock()
	require.NoError(t, elsewhere.Invalidate(t.Context(), "three"))
	close(old)
	all.Wait()
	for _, plans := range []*ginlimit.Plans{here, elsewhere, newPlans(t, rdb, s)} {
		untilChecked()
		limit, err := limitOf(plans, t.Context(), "three")
		require.NoError(t, err)
		require.Equal(t, ginlimit.PerMinute(4), limit)
	}
}

// TestFailedInvalidationHoldsHere has Redis keep the old plan.
func TestFailedInvalidationHoldsHere(t *testing.T) {
	t.Parallel()
	rdb, s := harness.Connect(t, harness.StartRedis(t)), newSource()
	plans := newPlans(t, rdb, s)
	_, err := limitOf(plans, t.Context(), "three")
	require.NoError(t, err)
	s.set("three", ginlimit.PerMinute(4), nil)
	require.ErrorIs(t, plans.Invalidate(canceled(t), "three"), context.Canceled)
	require.NoError(t, rdb.Set(t.Context(), "ginlimit:plan:{three}", "3/m", 48*time.Hour).Err())
	limit, err := limitOf(plans, t.Context(), "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(4), limit)
}

// TestInvalidationOvertakesAQuestion changes a plan while the old one is on its way.
func TestInvalidationOvertakesAQuestion(t *testing.T) {
	t.Parallel()
	rdb, s := harness.Connect(t, harness.StartRedis(t)), newSource()
	s.held = make(chan struct{})
	plans := newPlans(t, rdb, s)
	var all sync.WaitGroup
	all.Go(func() {
		limit, err := limitOf(plans, t.Context(), "three")
		assert.NoError(t, err)
		assert.Equal(t, ginlimit.PerMinute(3), limit)
	})
	require.True(t, harness.BecomesTrue(t.Context().Done(), func() bool { return s.asked.Load() == 1 }))
	s.mu.Lock()
	old := s.held
	s.plans["three"], s.held = ginlimit.PerMinute(4), nil
	s.mu.Unlock()
	require.NoError(t, plans.Invalidate(t.Context(), "three"))
	for range 2 {
		limit, err := limitOf(plans, t.Context(), "three")
		require.NoError(t, err)
		require.Equal(t, ginlimit.PerMinute(4), limit)
	}
	close(old)
	all.Wait()
	limit, err := limitOf(plans, t.Context(), "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(4), limit)
	limit, err = limitOf(newPlans(t, rdb, s), t.Context(), "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(4), limit, "in other processes too")
}

// TestPlansSurvive a source that panics, and a foreign value in Redis.
func TestPlansSurvive(t *testing.T) {
	t.Parallel()
	rdb := harness.Connect(t, harness.StartRedis(t))
	panics, err := ginlimit.NewPlans(rdb, time.Hour, func(context.Context, string) ([]ginlimit.Limit, error) { panic("fault") }, harness.Patient())
	require.NoError(t, err)
	for range 2 {
		_, err = limitOf(panics, t.Context(), "k")
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	}
	s := newSource()
	require.NoError(t, rdb.RPush(t.Context(), "ginlimit:plan:{three}", "x").Err())
	require.NoError(t, rdb.Set(t.Context(), "ginlimit:plan:{unlimited}", "hello", 0).Err())
	plans := newPlans(t, rdb, s)
	for _, client := range []string{"three", "unlimited"} {
		limit, err := limitOf(plans, t.Context(), client)
		require.NoError(t, err)
		require.Equal(t, s.plans[client], limit)
	}
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

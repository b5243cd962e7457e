//go:build integration

package plans_test

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
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// aging shortens what keys have left to live, as time does.
func aging(t *testing.T, rdb *redis.Client, d time.Duration) {
	t.Helper()
	for _, key := range rdb.Keys(t.Context(), "*").Val() {
		require.NoError(t, rdb.PExpire(t.Context(), key, rdb.PTTL(t.Context(), key).Val()-d).Err())
	}
}

// the published limiter with plans in a database: the quota is cached in Redis
func TestPlansAskOncePerClientAndLife(t *testing.T) {
	t.Parallel()
	rdb, s := testkit.Connect(t, testkit.StartRedis(t)), testkit.NewSource()
	for range 3 { // processes
		plans := testkit.NewPlans(t, rdb, s)
		for range 100 {
			for client, want := range s.Plans {
				limit, err := testkit.LimitOf(plans, t.Context(), client)
				require.NoError(t, err)
				require.Equal(t, want, limit)
			}
			_, err := testkit.LimitOf(plans, t.Context(), "nobody")
			require.ErrorIs(t, err, ginlimit.ErrUnknownClient)
		}
	}
	require.EqualValues(t, 4, s.Asked.Load())
	require.ElementsMatch(t, []string{"ginlimit:plan:{plans|three}", "ginlimit:plan:{plans|unlimited}", "ginlimit:plan:{plans|prohibited}",
		"ginlimit:plan:{plans|nobody}"}, rdb.Keys(t.Context(), "*").Val())

	aging(t, rdb, time.Hour)
	limit, err := testkit.LimitOf(testkit.NewPlans(t, rdb, s), t.Context(), "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(3), limit)
	require.EqualValues(t, 5, s.Asked.Load(), "its life is over")
}

func TestManyMissesAreOneQuestion(t *testing.T) {
	t.Parallel()
	s := testkit.NewSource()
	s.Held = make(chan struct{})
	plans := testkit.NewPlans(t, testkit.Connect(t, testkit.StartRedis(t)), s)
	var all sync.WaitGroup
	for range 1000 {
		all.Go(func() {
			limit, err := testkit.LimitOf(plans, t.Context(), "three")
			assert.NoError(t, err)
			assert.Equal(t, ginlimit.PerMinute(3), limit)
		})
	}
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return s.Asked.Load() == 1 }))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := testkit.LimitOf(plans, ctx, "three")
	require.ErrorIs(t, err, context.Canceled, "who leaves does not take the others with him")
	close(s.Held)
	all.Wait()
	require.EqualValues(t, 1, s.Asked.Load())
}

// TestOldPlansServeWhileTheSourceFails stops the source, then Redis, then both.
func TestOldPlansServeWhileTheSourceFails(t *testing.T) {
	t.Parallel()
	addr, process := testkit.StartRedisProcess(t)
	rdb, s := testkit.Connect(t, addr), testkit.NewSource()
	var log testkit.Buffer
	plans := testkit.NewPlans(t, rdb, s, ginlimit.WithTimeout(2*time.Second), // three of them are an outage
		ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	get := func(p *ginlimit.Plans, client string) (ginlimit.Limit, error) {
		return testkit.LimitOf(p, t.Context(), client)
	}
	renewing, err := testkit.NewLimiter(t, rdb, testkit.Patient()).NewPlans("plans", time.Second, testkit.SingleLimit(s.Ask))
	require.NoError(t, err)
	for range 2 { // Redis keeps a plan that is asked for again when it is old
		_, err := get(renewing, "three")
		require.NoError(t, err)
		<-time.After(time.Second)
	}
	require.EqualValues(t, 1, rdb.Exists(t.Context(), "ginlimit:plan:{plans|three}").Val())
	broken := errors.New("the database is away")
	s.Set("three", ginlimit.PerMinute(4), broken)
	for range 10 {
		limit, err := get(plans, "three")
		require.NoError(t, err)
		require.Equal(t, ginlimit.PerMinute(3), limit)
		_, err = get(plans, "unlimited")
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
		require.ErrorIs(t, err, broken)
	}
	require.LessOrEqual(t, s.Asked.Load(), int64(10), "a failure is remembered for a second")
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.NotContains(t, log.String(), "three")
	another := testkit.NewPlans(t, rdb, s)
	limit, err := get(another, "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(3), limit, "the old one in Redis")

	require.NoError(t, process.Signal(syscall.SIGSTOP))
	require.ErrorIs(t, plans.Invalidate(canceled(t), "three"), context.Canceled)
	limit, err = get(plans, "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(3), limit)
	s.Set("three", ginlimit.PerMinute(4), nil)
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { // each process for itself
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
	s := testkit.NewSource()
	plans := testkit.NewPlans(t, testkit.Unreachable(t), s, ginlimit.WithTimeout(time.Millisecond))
	for range 10 {
		_, err := testkit.LimitOf(plans, t.Context(), "three")
		require.NoError(t, err)
		<-time.After(150 * time.Millisecond)
	}
	require.EqualValues(t, 1, s.Asked.Load())
}

// TestInventedClientsLeaveRedis keeps none of them for longer than a life, and a long one as its hash.
func TestInventedClientsLeaveRedis(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	plans := testkit.NewPlans(t, rdb, testkit.NewSource())
	for _, client := range []string{"nobody", strings.Repeat("long ", 1000), "{}", "three"} {
		_, _ = testkit.LimitOf(plans, t.Context(), client)
	}
	for _, key := range rdb.Keys(t.Context(), "*").Val() {
		require.LessOrEqual(t, len(key), 100)
		require.True(t, strings.HasPrefix(key, "ginlimit:plan:{plans|") || strings.HasPrefix(key, "ginlimit:plan:{#"), key)
		if !strings.Contains(key, "three") {
			require.LessOrEqual(t, rdb.PTTL(t.Context(), key).Val(), time.Hour)
		}
	}
	tenants, err := testkit.NewLimiter(t, rdb).NewPlans("tenants", time.Hour, testkit.SingleLimit((&testkit.Source{}).Ask))
	require.NoError(t, err)
	_, err = testkit.LimitOf(tenants, t.Context(), "three")
	require.ErrorIs(t, err, ginlimit.ErrUnknownClient, "other names are other plans")
}

// TestInvalidationElsewhereOvertakesAQuestion has another process change the plan while the old one is on its way.
func TestInvalidationElsewhereOvertakesAQuestion(t *testing.T) {
	t.Parallel()
	rdb, s := testkit.Connect(t, testkit.StartRedis(t)), testkit.NewSource()
	s.Held = make(chan struct{})
	here, elsewhere := testkit.NewPlans(t, rdb, s), testkit.NewPlans(t, rdb, s)
	var all sync.WaitGroup
	all.Go(func() { _, _ = testkit.LimitOf(here, t.Context(), "three") })
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return s.Asked.Load() == 1 }))
	s.Mu.Lock()
	old := s.Held
	s.Plans["three"], s.Held = ginlimit.PerMinute(4), nil
	s.Mu.Unlock()
	require.NoError(t, elsewhere.Invalidate(t.Context(), "three"))
	close(old)
	all.Wait()
	for _, plans := range []*ginlimit.Plans{here, elsewhere, testkit.NewPlans(t, rdb, s)} {
		untilChecked()
		limit, err := testkit.LimitOf(plans, t.Context(), "three")
		require.NoError(t, err)
		require.Equal(t, ginlimit.PerMinute(4), limit)
	}
}

// TestFailedInvalidationHoldsHere has Redis keep the old plan.
func TestFailedInvalidationHoldsHere(t *testing.T) {
	t.Parallel()
	rdb, s := testkit.Connect(t, testkit.StartRedis(t)), testkit.NewSource()
	plans := testkit.NewPlans(t, rdb, s)
	_, err := testkit.LimitOf(plans, t.Context(), "three")
	require.NoError(t, err)
	s.Set("three", ginlimit.PerMinute(4), nil)
	require.ErrorIs(t, plans.Invalidate(canceled(t), "three"), context.Canceled)
	require.NoError(t, rdb.Set(t.Context(), "ginlimit:plan:{plans|three}", "3/m", 48*time.Hour).Err())
	limit, err := testkit.LimitOf(plans, t.Context(), "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(4), limit)
}

// TestInvalidationOvertakesAQuestion changes a plan while the old one is on its way.
func TestInvalidationOvertakesAQuestion(t *testing.T) {
	t.Parallel()
	rdb, s := testkit.Connect(t, testkit.StartRedis(t)), testkit.NewSource()
	s.Held = make(chan struct{})
	plans := testkit.NewPlans(t, rdb, s)
	var all sync.WaitGroup
	all.Go(func() {
		limit, err := testkit.LimitOf(plans, t.Context(), "three")
		assert.NoError(t, err)
		assert.Equal(t, ginlimit.PerMinute(3), limit)
	})
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return s.Asked.Load() == 1 }))
	s.Mu.Lock()
	old := s.Held
	s.Plans["three"], s.Held = ginlimit.PerMinute(4), nil
	s.Mu.Unlock()
	require.NoError(t, plans.Invalidate(t.Context(), "three"))
	for range 2 {
		limit, err := testkit.LimitOf(plans, t.Context(), "three")
		require.NoError(t, err)
		require.Equal(t, ginlimit.PerMinute(4), limit)
	}
	close(old)
	all.Wait()
	limit, err := testkit.LimitOf(plans, t.Context(), "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(4), limit)
	limit, err = testkit.LimitOf(testkit.NewPlans(t, rdb, s), t.Context(), "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(4), limit, "in other processes too")
}

// TestPlansSurvive a source that panics, and a foreign value in Redis.
func TestPlansSurvive(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	panics, err := testkit.NewLimiter(t, rdb).NewPlans("plans", time.Hour,
		func(context.Context, string) ([]ginlimit.Limit, error) { panic("fault") })
	require.NoError(t, err)
	for range 2 {
		_, err = testkit.LimitOf(panics, t.Context(), "k")
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	}
	s := testkit.NewSource()
	require.NoError(t, rdb.RPush(t.Context(), "ginlimit:plan:{plans|three}", "x").Err())
	require.NoError(t, rdb.Set(t.Context(), "ginlimit:plan:{plans|unlimited}", "hello", 0).Err())
	plans := testkit.NewPlans(t, rdb, s)
	for _, client := range []string{"three", "unlimited"} {
		limit, err := testkit.LimitOf(plans, t.Context(), client)
		require.NoError(t, err)
		require.Equal(t, s.Plans[client], limit)
	}
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

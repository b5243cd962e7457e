//go:build integration

package limits_test

import (
	"strings"
	"sync"
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
				require.Equal(t, want, testkit.Must(testkit.LimitOf(plans, t.Context(), client)))
			}
			require.ErrorIs(t, testkit.Err(testkit.LimitOf(plans, t.Context(), "nobody")), ginlimit.ErrUnknownClient)
		}
	}
	require.EqualValues(t, 4, s.Asked.Load())
	require.ElementsMatch(t, []string{"ginlimit:plan:{plans|three}", "ginlimit:plan:{plans|unlimited}", "ginlimit:plan:{plans|prohibited}",
		"ginlimit:plan:{plans|nobody}"}, rdb.Keys(t.Context(), "*").Val())

	aging(t, rdb, time.Hour)
	limit := testkit.Must(testkit.LimitOf(testkit.NewPlans(t, rdb, s), t.Context(), "three"))
	require.Equal(t, ginlimit.PerMinute(3), limit)
	require.EqualValues(t, 5, s.Asked.Load(), "its life is over")
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
		limit := testkit.Must(testkit.LimitOf(plans, t.Context(), "three"))
		require.Equal(t, ginlimit.PerMinute(4), limit)
	}
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
		limit := testkit.Must(testkit.LimitOf(plans, t.Context(), "three"))
		require.Equal(t, ginlimit.PerMinute(4), limit)
	}
	close(old)
	all.Wait()
	limit := testkit.Must(testkit.LimitOf(plans, t.Context(), "three"))
	require.Equal(t, ginlimit.PerMinute(4), limit)
	limit = testkit.Must(testkit.LimitOf(testkit.NewPlans(t, rdb, s), t.Context(), "three"))
	require.Equal(t, ginlimit.PerMinute(4), limit, "in other processes too")
}

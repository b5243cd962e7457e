//go:build integration

package limits_test

import (
	"fmt"
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

// TestPlansInRedis: the source is asked once per client and life by all processes, a long client is kept as its hash,
// and other names are other plans.
func TestPlansInRedis(t *testing.T) {
	t.Parallel()
	rdb, s := testkit.Connect(t, testkit.StartRedis(t)), testkit.NewSource()
	unknown := []string{"nobody", strings.Repeat("long ", 1000), "{}"}
	for range 3 { // processes
		plans := testkit.NewPlans(t, rdb, s)
		for range 100 {
			for client, want := range s.Plans {
				require.Equal(t, want, testkit.Must(testkit.LimitOf(plans, t.Context(), client)))
			}
			for _, client := range unknown {
				require.ErrorIs(t, testkit.Err(testkit.LimitOf(plans, t.Context(), client)), ginlimit.ErrUnknownClient)
			}
		}
	}
	require.EqualValues(t, len(s.Plans)+len(unknown), s.Asked.Load())
	keys := rdb.Keys(t.Context(), "*").Val()
	require.Subset(t, keys, []string{"ginlimit:plan:{plans|three}", "ginlimit:plan:{plans|unlimited}",
		"ginlimit:plan:{plans|prohibited}", "ginlimit:plan:{plans|nobody}"})
	require.Len(t, keys, len(s.Plans)+len(unknown))
	for _, key := range keys {
		require.LessOrEqual(t, len(key), 100)
		require.True(t, strings.HasPrefix(key, "ginlimit:plan:{plans|") || strings.HasPrefix(key, "ginlimit:plan:{#"), key)
		if !strings.Contains(key, "plans|") || strings.Contains(key, "nobody") {
			require.LessOrEqual(t, rdb.PTTL(t.Context(), key).Val(), time.Hour, "an invented client")
		}
	}
	nobodys := testkit.SingleLimit((&testkit.Source{}).Ask)
	tenants := testkit.Must(testkit.NewLimiter(t, rdb).NewPlans("tenants", time.Hour, nobodys))
	require.ErrorIs(t, testkit.Err(testkit.LimitOf(tenants, t.Context(), "three")), ginlimit.ErrUnknownClient)

	before := s.Asked.Load()
	aging(t, rdb, time.Hour)
	has(t, testkit.NewPlans(t, rdb, s), "three", 3)
	require.Equal(t, before+1, s.Asked.Load(), "its life is over")
}

// aging shortens what keys have left to live, as time does.
func aging(t *testing.T, rdb *redis.Client, d time.Duration) {
	t.Helper()
	for _, key := range rdb.Keys(t.Context(), "*").Val() {
		require.NoError(t, rdb.PExpire(t.Context(), key, rdb.PTTL(t.Context(), key).Val()-d).Err())
	}
}

// untilChecked waits until a process reads in Redis again what it knows of plans.
func untilChecked() { <-time.After(time.Second) }

// TestPlansOnACluster stores and invalidates plans on several nodes, each of which loses the script.
func TestPlansOnACluster(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 3)
	rdb := testkit.ConnectCluster(t, addrs...)
	s := testkit.NewSource()
	for round := range 3 {
		for i := range 20 {
			client := fmt.Sprint("client {", i)
			s.Set(client, ginlimit.PerMinute(round+1), nil)
			require.NoError(t, testkit.NewPlans(t, rdb, s).Invalidate(t.Context(), client))
			for range 2 {
				has(t, testkit.NewPlans(t, rdb, s), client, round+1)
			}
			require.EqualValues(t, 20*round+i+1, s.Asked.Load(), "Redis has the plan")
		}
		for _, addr := range addrs {
			require.NoError(t, testkit.Connect(t, addr).ScriptFlush(t.Context()).Err())
		}
	}
}

// TestPlansWhileTheirSlotMigrates: Redis stores no plan then, as that takes two keys, and the
// source is not asked again and again for that.
func TestPlansWhileTheirSlotMigrates(t *testing.T) {
	t.Parallel()
	m := testkit.StartMigration(t)
	rdb := testkit.ConnectCluster(t, m.Addrs...)
	s := testkit.NewSource()
	plans := testkit.NewPlans(t, rdb, s)
	var clients []string
	for i := range 4 {
		client := fmt.Sprint("client ", i)
		s.Plans[client] = ginlimit.PerMinute(7)
		if m.Begin(t, "ginlimit:plan:{plans|"+client+"}") {
			clients = append(clients, client)
		}
	}
	require.NotEmpty(t, clients)
	for range 4 {
		for _, client := range clients {
			has(t, plans, client, 7)
		}
		untilChecked()
	}
	require.EqualValues(t, len(clients), s.Asked.Load())
	for i, client := range clients {
		s.Plans[client] = ginlimit.PerMinute(8)
		require.NoError(t, plans.Invalidate(t.Context(), client))
		has(t, plans, client, 8)
		require.EqualValues(t, len(clients)+i+1, s.Asked.Load())
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

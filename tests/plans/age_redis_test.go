//go:build integration

package plans_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestPausedRedisPinsNoPlan is the report: 300 plans that were asked for while Redis was paused.
func TestPausedRedisPinsNoPlan(t *testing.T) {
	t.Parallel()
	rdb, s := testkit.Connect(t, testkit.StartRedis(t)), testkit.NewSource()
	here, elsewhere := testkit.NewPlans(t, rdb, s, ginlimit.WithTimeout(20*time.Millisecond)), testkit.NewPlans(t, rdb, s)
	require.NoError(t, rdb.Do(t.Context(), "CLIENT", "PAUSE", 3000, "ALL").Err())
	client := func(i int) string { return fmt.Sprint("client ", i) }
	for i := range 300 {
		s.Set(client(i), ginlimit.PerMinute(3), nil)
		has(t, here, client(i), 3)
	}
	require.NoError(t, rdb.Ping(t.Context()).Err()) // it waits for the pause to end
	for i := range 300 {
		s.Set(client(i), ginlimit.PerMinute(4), nil)
		require.NoError(t, elsewhere.Invalidate(t.Context(), client(i)))
	}
	for i := range 300 { // one by one: on a busy machine, some call is always late
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
			limit, err := testkit.LimitOf(here, t.Context(), client(i))
			return err == nil && limit == ginlimit.PerMinute(4)
		}), "client %d", i)
	}
}

// TestRefusedWritesAskOncePerLife has Redis answer, and keep nothing. An invalidation that Redis cannot note says so.
func TestRefusedWritesAskOncePerLife(t *testing.T) {
	t.Parallel()
	rdb, s := testkit.Connect(t, testkit.StartRedis(t)), testkit.NewSource()
	here, elsewhere := testkit.NewPlans(t, rdb, s), testkit.NewPlans(t, rdb, s)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	for range 5 {
		has(t, here, "three", 3)
		untilChecked()
	}
	require.EqualValues(t, 1, s.Asked.Load())
	s.Set("three", ginlimit.PerMinute(4), nil)
	require.ErrorIs(t, elsewhere.Invalidate(t.Context(), "three"), ginlimit.ErrUnavailable)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	has(t, here, "three", 4)
	require.EqualValues(t, 1, rdb.Exists(t.Context(), "ginlimit:plan:{plans|three}").Val())

	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	s.Set("three", ginlimit.PerMinute(5), nil)
	require.ErrorIs(t, elsewhere.Invalidate(t.Context(), "three"), ginlimit.ErrUnavailable)
	untilChecked()
	has(t, here, "three", 5) // it has seen that the plan is gone
}

// untilChecked waits until a process reads in Redis again what it knows of plans.
func untilChecked() { <-time.After(time.Second) }

// TestPlansOnACluster stores and invalidates plans on several nodes, each of which loses the script.
func TestPlansOnACluster(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 3)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	defer rdb.Close()
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

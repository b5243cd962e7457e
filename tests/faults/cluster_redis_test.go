//go:build integration

package faults_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Decisions on a cluster.

// TestClusterCarriesManyAtOnce merges decisions on a hot key of a cluster, and has those of its nodes travel
// apart.
func TestClusterCarriesManyAtOnce(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 3)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	defer rdb.Close()
	limiter := testkit.NewLimiter(t, rdb)
	testkit.AskMany(t, limiter)

	const callers, each = 256, 20
	var granted atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range each {
				r, err := limiter.Allow(t.Context(), "hot", ginlimit.PerDay(1).WithBurst(3000))
				assert.NoError(t, err)
				granted.Add(int64(r.Granted))
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 3000, granted.Load())
	calls := 0
	for _, addr := range addrs {
		calls += testkit.ScriptCalls(t, testkit.Connect(t, addr))
	}
	t.Logf("%d calls of the script", calls)
	require.Less(t, calls, 1200+callers*each/4)
}

// TestWindowsOnACluster has several processes ask for windows on all nodes, which lose their scripts meanwhile.
func TestWindowsOnACluster(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 3)
	for _, a := range testkit.WindowAlgorithms {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
		t.Cleanup(func() { _ = rdb.Close() })
		limiters := []*testkit.Limiter{testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a)),
			testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a))}
		limit, day := ginlimit.PerHour(10), ginlimit.PerDay(15)
		const keys, callers = 20, 40
		var granted [keys]atomic.Int64
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				if caller == callers/2 {
					for _, addr := range addrs {
						assert.NoError(t, testkit.Connect(t, addr).ScriptFlush(t.Context()).Err())
					}
				}
				for key := range keys {
					r, err := limiters[caller%2].Allow(t.Context(), fmt.Sprint("key ", key), limit, day)
					assert.NoError(t, err)
					granted[key].Add(int64(r.Granted))
				}
			})
		}
		all.Wait()
		for key := range keys {
			require.EqualValues(t, limit.Rate, granted[key].Load(), "%s, key %d", a, key)
		}
	}
}

func TestClusterDecidesOnManyKeysAndLimits(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 3)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	defer rdb.Close()
	limiter := testkit.NewLimiter(t, rdb)
	limits := []ginlimit.Limit{ginlimit.PerMinute(2), ginlimit.PerHour(3), ginlimit.PerDay(100)}
	var all sync.WaitGroup
	for caller := range 10 {
		all.Go(func() {
			for i := range 100 {
				key := fmt.Sprintf("client %d of %d {}", i, caller)
				for want := 1; want >= -1; want-- {
					r, err := limiter.Allow(t.Context(), key, limits...)
					if !assert.NoError(t, err) {
						return
					}
					assert.Equal(t, want >= 0, r.Allowed)
					assert.Equal(t, max(0, want), r.Remaining)
				}
			}
		})
	}
	all.Wait()
	require.NoError(t, limiter.Reset(t.Context(), "client 1 of 1 {}", limits...))

	// The script is lost on one node alone, as on one that has just joined.
	require.NoError(t, testkit.Connect(t, addrs[1]).ScriptFlush(t.Context()).Err())
	for i := range 30 {
		r, err := limiter.Allow(t.Context(), fmt.Sprint("after ", i), limits...)
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}
}

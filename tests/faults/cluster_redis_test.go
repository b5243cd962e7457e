//go:build integration

package faults_test

import (
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

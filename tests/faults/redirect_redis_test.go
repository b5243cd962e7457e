//go:build integration

package faults_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestAHashSlotThatTwoNodesRedirectToEachOther costs its own clients Redis, and no others of the node.
func TestAHashSlotThatTwoNodesRedirectToEachOther(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 2)
	rdb := testkit.ConnectCluster(t, addrs...)
	limiter, log := testkit.LoggedLimiter(t, rdb, testkit.Patient(), ginlimit.WithFailureMode(ginlimit.FailLocal))
	limit := ginlimit.PerHour(1000)
	node, other := testkit.Connect(t, addrs[0]), testkit.Connect(t, addrs[1])
	slotOf := func(key string) int64 {
		return testkit.Must(node.ClusterKeySlot(t.Context(), testkit.RedisKey(key, limit)).Result())
	}
	var keys []string // of the node; the first has the hash slot
	for i := 0; len(keys) < 8; i++ {
		if key := fmt.Sprint("client ", i); slotOf(key) < 8192 && (keys == nil || slotOf(key) != slotOf(keys[0])) {
			keys = append(keys, key)
		}
	}
	require.Equal(t, ginlimit.FromRedis, testkit.Must(limiter.Allow(t.Context(), keys[1], limit)).Source)
	give := func(to *redis.Client) {
		id := testkit.Must(to.Do(t.Context(), "CLUSTER", "MYID").Text())
		require.NoError(t, node.Do(t.Context(), "CLUSTER", "SETSLOT", slotOf(keys[0]), "NODE", id).Err())
	}
	give(other)
	var all sync.WaitGroup
	for i, key := range keys {
		all.Go(func() {
			for range 100 {
				r, err := limiter.Allow(t.Context(), key, limit)
				assert.NoError(t, err)
				assert.Equal(t, i > 0, r.Source == ginlimit.FromRedis, key)
			}
		})
	}
	all.Wait()
	require.Nil(t, limiter.Stats().Transitions, log)
	give(node)
	require.Equal(t, ginlimit.FromRedis, testkit.Must(limiter.Allow(t.Context(), keys[0], limit)).Source)
}

package ginlimitotel_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/harness"
)

func TestSpansOfRedisServersAreChildrenOfRequests(t *testing.T) {
	t.Run("a server", func(t *testing.T) { testSpansOfRedis(t, harness.Connect(t, harness.StartRedis(t)), true) })
	t.Run("inline", func(t *testing.T) { testSpansOfRedis(t, harness.ConnectDirect(t, harness.StartRedis(t)), true) })
	t.Run("a cluster", func(t *testing.T) {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: harness.StartCluster(t, 3)})
		t.Cleanup(func() { _ = rdb.Close() })
		testSpansOfRedis(t, rdb, true)
	})
}

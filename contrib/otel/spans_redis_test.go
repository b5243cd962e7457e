package ginlimitotel_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestSpansOfRedisServersAreChildrenOfRequests(t *testing.T) {
	t.Run("a server", func(t *testing.T) { testSpansOfRedis(t, testkit.Connect(t, testkit.StartRedis(t)), true) })
	t.Run("inline", func(t *testing.T) { testSpansOfRedis(t, testkit.ConnectDirect(t, testkit.StartRedis(t)), true) })
	t.Run("a cluster", func(t *testing.T) {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: testkit.StartCluster(t, 3)})
		t.Cleanup(func() { _ = rdb.Close() })
		testSpansOfRedis(t, rdb, true)
	})
}

//go:build integration

package faults_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestPingOfWrongDatabaseSaysSo: Redis says "ERR".
func TestPingOfWrongDatabaseSaysSo(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: testkit.StartRedis(t), DB: 999})
	defer rdb.Close()
	err := testkit.NewLimiter(t, rdb).Ping(t.Context())
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.ErrorContains(t, err, "ERR: the database number is out of range")
}

// TestPingNeedsEveryServer kills one of two masters of a cluster, and one of two shards of a ring.
func TestPingNeedsEveryServer(t *testing.T) {
	t.Parallel()
	masters, nodes := testkit.StartClusterProcesses(t, 2)
	addr := testkit.StartRedis(t)
	other, shard := testkit.StartRedisProcess(t)
	for name, row := range map[string]struct {
		rdb  redis.UniversalClient
		kill func() error
	}{
		"cluster": {redis.NewClusterClient(&redis.ClusterOptions{Addrs: masters}), nodes[1].Kill},
		"ring":    {redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addr, "b": other}}), shard.Kill},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer row.rdb.Close()
			limiter := testkit.NewLimiter(t, row.rdb)
			require.NoError(t, limiter.Ping(t.Context()))
			require.NoError(t, row.kill())
			ring, ok := row.rdb.(*redis.Ring)
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
				err := limiter.Ping(t.Context())
				return ok && ring.Len() == 1 || err != nil && strings.Contains(err.Error(), "connection refused")
			}))
			require.True(t, !ok || testkit.BecomesTrue(t.Context().Done(), func() bool {
				return ring.Len() == 1 && limiter.Ping(t.Context()) == nil
			}), "once the ring leaves the shard out")
		})
	}
}

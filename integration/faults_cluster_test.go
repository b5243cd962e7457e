package integration

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/harness"
)

// Faults of a cluster, and of servers behind a Sentinel.

func sentinelFailover(t *testing.T) *site {
	master, process := harness.StartRedisProcess(t)
	host, port, err := net.SplitHostPort(master)
	require.NoError(t, err)
	replica := harness.Connect(t, harness.StartRedis(t, "--replicaof", host+" "+port))
	linked := func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	}
	require.True(t, harness.BecomesTrue(t.Context().Done(), linked))
	config := filepath.Join(t.TempDir(), "sentinel.conf")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil,
		"sentinel monitor main %s %s 1\nsentinel down-after-milliseconds main 500\nsentinel failover-timeout main 5000\n", host, port), 0o600))
	sentinelAddr, _ := harness.StartRedisProcess(t, config, "--sentinel")
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: sentinelAddr})
	t.Cleanup(func() { _ = sentinel.Close() })
	require.True(t, harness.BecomesTrue(t.Context().Done(), func() bool {
		replicas, err := sentinel.Replicas(t.Context(), "main").Result()
		return err == nil && len(replicas) == 1 && replicas[0]["flags"] == "slave"
	}))
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{sentinelAddr}})
	t.Cleanup(func() { _ = rdb.Close() })
	return &site{
		rdb: rdb, lasts: 0, degrades: someKeys, bursts: 2,
		fail: func() { require.NoError(t, process.Kill()) },
		mend: func() {
			require.True(t, harness.BecomesTrue(t.Context().Done(), func() bool {
				addr, err := sentinel.GetMasterAddrByName(t.Context(), "main").Result()
				return err == nil && net.JoinHostPort(addr[0], addr[1]) != master
			}))
		},
	}
}

// slotsMigrate moves the slot of the hot key to another node while it is asked for.
func slotsMigrate(t *testing.T) *site {
	addrs := harness.StartCluster(t, 3)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { _ = rdb.Close() })
	ctx := t.Context()
	nodes := make([]*redis.Client, len(addrs))
	ids := make([]string, len(addrs))
	for i, addr := range addrs {
		nodes[i] = harness.Connect(t, addr)
		id, err := nodes[i].Do(ctx, "CLUSTER", "MYID").Text()
		require.NoError(t, err)
		ids[i] = id
	}
	slot, err := nodes[0].ClusterKeySlot(ctx, "hot").Result()
	require.NoError(t, err)
	from := int(slot) * len(nodes) / 16384
	to := (from + 1) % len(nodes)
	do := func(node int, args ...any) { require.NoError(t, nodes[node].Do(ctx, args...).Err()) }
	return &site{
		rdb: rdb, lasts: time.Second / 2, bursts: 1,
		fail: func() {
			do(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[from])
			do(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to])
			host, port, err := net.SplitHostPort(addrs[to])
			require.NoError(t, err)
			pause(200 * time.Millisecond) // new buckets of the slot are made at its new node now
			keys, err := nodes[from].ClusterGetKeysInSlot(ctx, int(slot), 1000).Result()
			require.NoError(t, err)
			require.NotEmpty(t, keys)
			args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
			for _, key := range keys {
				args = append(args, key)
			}
			do(from, args...)
		},
		mend: func() {
			for _, node := range []int{to, from, 3 - to - from} {
				do(node, "CLUSTER", "SETSLOT", slot, "NODE", ids[to])
			}
		},
	}
}

func masterKilled(t *testing.T) *site {
	addrs, processes := harness.StartClusterProcesses(t, 3, "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no")
	ctx := t.Context()
	id, err := harness.Connect(t, addrs[0]).Do(ctx, "CLUSTER", "MYID").Text()
	require.NoError(t, err)
	replica := harness.Connect(t, harness.StartRedis(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no",
		"--cluster-replica-validity-factor", "0"))
	host, port, err := net.SplitHostPort(addrs[0])
	require.NoError(t, err)
	require.NoError(t, replica.ClusterMeet(ctx, host, port).Err())
	others := []*redis.Client{harness.Connect(t, addrs[1]), harness.Connect(t, addrs[2])}
	require.True(t, harness.BecomesTrue(ctx.Done(), func() bool { return replica.ClusterReplicate(ctx, id).Err() == nil }))
	require.True(t, harness.BecomesTrue(ctx.Done(), func() bool {
		if !strings.Contains(replica.Info(ctx, "replication").Val(), "master_link_status:up") {
			return false
		}
		for _, node := range append(others, harness.Connect(t, addrs[0])) {
			if !strings.Contains(node.ClusterNodes(ctx).Val(), "slave "+id) {
				return false
			}
		}
		return true
	}))
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { _ = rdb.Close() })
	return &site{
		rdb: rdb, degrades: someKeys, bursts: 2,
		fail: func() { require.NoError(t, processes[0].Kill()) },
		mend: func() {
			require.True(t, harness.BecomesTrue(ctx.Done(), func() bool {
				for _, node := range others { // all know that it is the replica's turn
					if strings.Contains(node.ClusterNodes(ctx).Val(), "slave "+id) {
						return false
					}
				}
				return strings.Contains(replica.Info(ctx, "replication").Val(), "role:master")
			}))
		},
	}
}

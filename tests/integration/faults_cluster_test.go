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

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Faults of a cluster, and of servers behind a Sentinel.

func sentinelFailover(t *testing.T) *site {
	master, process := testkit.StartRedisProcess(t, "--repl-diskless-sync-delay", "0") // it would wait for more replicas
	host, port, err := net.SplitHostPort(master)
	require.NoError(t, err)
	replica := testkit.Connect(t, testkit.StartRedis(t, "--replicaof", host+" "+port))
	linked := func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	}
	require.True(t, testkit.BecomesTrue(t.Context().Done(), linked))
	config := filepath.Join(t.TempDir(), "sentinel.conf")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil,
		"sentinel monitor main %s %s 1\nsentinel down-after-milliseconds main 500\nsentinel "+
			"failover-timeout main 5000\n", host, port), 0o600))
	sentinelAddr, _ := testkit.StartRedisProcess(t, config, "--sentinel")
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: sentinelAddr})
	t.Cleanup(func() { _ = sentinel.Close() })
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		replicas, err := sentinel.Replicas(t.Context(), "main").Result()
		return err == nil && len(replicas) == 1 && replicas[0]["flags"] == "slave"
	}))
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{sentinelAddr}})
	t.Cleanup(func() { _ = rdb.Close() })
	return &site{
		rdb: rdb, lasts: 0, degrades: someKeys, bursts: 2,
		fail: func() { require.NoError(t, process.Kill()) },
		mend: func() {
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
				addr, err := sentinel.GetMasterAddrByName(t.Context(), "main").Result()
				return err == nil && net.JoinHostPort(addr[0], addr[1]) != master
			}))
		},
	}
}

// slotsMigrate moves the slot of the hot key to another node while it is asked for.
func slotsMigrate(t *testing.T) *site {
	addrs := testkit.StartCluster(t, 3)
	rdb := testkit.ConnectCluster(t, addrs...)
	slot := newMovingSlot(t, addrs, testkit.RedisKey("hot", hotLimit))
	return &site{
		rdb: rdb, lasts: time.Second / 2, bursts: 1,
		fail: func() {
			slot.depart(t)
			pause(200 * time.Millisecond) // new buckets of the slot are made at its new node now
			require.NotZero(t, slot.move(t))
		},
		mend: func() { slot.arrive(t) },
	}
}

// movingSlot is a slot that moves from node to node.
type movingSlot struct {
	addrs []string
	nodes []*redis.Client
	ids   []string
	slot  int64
	at    int // the node that has it
}

func newMovingSlot(t *testing.T, addrs []string, key string) *movingSlot {
	m := &movingSlot{addrs: addrs}
	for _, addr := range addrs {
		node := testkit.Connect(t, addr)
		id := testkit.Must(node.Do(t.Context(), "CLUSTER", "MYID").Text())
		m.nodes, m.ids = append(m.nodes, node), append(m.ids, id)
	}
	slot := testkit.Must(m.nodes[0].ClusterKeySlot(t.Context(), key).Result())
	m.slot, m.at = slot, int(slot)*len(addrs)/16384
	return m
}

func (m *movingSlot) next() int { return (m.at + 1) % len(m.nodes) }

func (m *movingSlot) do(t *testing.T, node int, args ...any) {
	t.Helper()
	require.NoError(t, m.nodes[node].Do(t.Context(), args...).Err())
}

// depart begins to move the slot to the next node.
func (m *movingSlot) depart(t *testing.T) {
	m.do(t, m.next(), "CLUSTER", "SETSLOT", m.slot, "IMPORTING", m.ids[m.at])
	m.do(t, m.at, "CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.ids[m.next()])
}

// move moves the keys that there are, and returns how many.
func (m *movingSlot) move(t *testing.T) int {
	host, port, err := net.SplitHostPort(m.addrs[m.next()])
	require.NoError(t, err)
	keys := testkit.Must(m.nodes[m.at].ClusterGetKeysInSlot(t.Context(), int(m.slot), 1000).Result())
	if len(keys) == 0 {
		return 0
	}
	args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
	for _, key := range keys {
		args = append(args, key)
	}
	m.do(t, m.at, args...)
	return len(keys)
}

// arrive has all nodes know that the slot is at its new one.
func (m *movingSlot) arrive(t *testing.T) {
	from, to := m.at, m.next()
	m.do(t, to, "CLUSTER", "SETSLOT", m.slot, "NODE", m.ids[to])
	m.do(t, from, "CLUSTER", "SETSLOT", m.slot, "NODE", m.ids[to])
	for node := range m.nodes {
		if node != from && node != to {
			m.do(t, node, "CLUSTER", "SETSLOT", m.slot, "NODE", m.ids[to])
		}
	}
	m.at = to
}

// keyOfTheFirst returns a key whose buckets the first of so many nodes has.
func keyOfTheFirst(t *testing.T, rdb *redis.ClusterClient, nodes int) string {
	for i := 0; ; i++ {
		key := fmt.Sprintf("hot key %d", i)
		slot := testkit.Must(rdb.ClusterKeySlot(t.Context(), testkit.RedisKey(key, hotLimit)).Result())
		if int(slot) < 16384/nodes {
			return key
		}
	}
}

func masterKilled(t *testing.T) *site {
	addrs, processes := testkit.StartClusterProcesses(t, 3, "--cluster-node-timeout", "1000",
		"--cluster-require-full-coverage", "no",
		"--repl-diskless-sync-delay", "0")
	ctx := t.Context()
	id := testkit.Must(testkit.Connect(t, addrs[0]).Do(ctx, "CLUSTER", "MYID").Text())
	replica := testkit.Connect(t,
		testkit.StartRedis(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
			"--cluster-require-full-coverage", "no",
			"--cluster-replica-validity-factor", "0"))
	host, port, err := net.SplitHostPort(addrs[0])
	require.NoError(t, err)
	require.NoError(t, replica.ClusterMeet(ctx, host, port).Err())
	others := []*redis.Client{testkit.Connect(t, addrs[1]), testkit.Connect(t, addrs[2])}
	require.True(t, testkit.BecomesTrue(ctx.Done(), func() bool { return replica.ClusterReplicate(ctx, id).Err() == nil }))
	require.True(t, testkit.BecomesTrue(ctx.Done(), func() bool {
		if !strings.Contains(replica.Info(ctx, "replication").Val(), "master_link_status:up") {
			return false
		}
		for _, node := range append(others, testkit.Connect(t, addrs[0])) {
			if !strings.Contains(node.ClusterNodes(ctx).Val(), "slave "+id) {
				return false
			}
		}
		return true
	}))
	rdb := testkit.ConnectCluster(t, addrs...)
	return &site{
		rdb: rdb, degrades: someKeys, bursts: 2, key: keyOfTheFirst(t, rdb, len(addrs)),
		fail: func() { require.NoError(t, processes[0].Kill()) },
		mend: func() {
			require.True(t, testkit.BecomesTrue(ctx.Done(), func() bool {
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

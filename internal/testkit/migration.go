package testkit

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Migration is a cluster of two nodes on its way to move slots from the first to the second.
type Migration struct {
	nodes [2]*redis.Client
	ids   [2]string
	Addrs []string // of the nodes
}

// StartMigration starts the cluster.
func StartMigration(t *testing.T) *Migration {
	m := &Migration{Addrs: StartCluster(t, 2)}
	for i := range m.nodes {
		m.nodes[i] = Connect(t, m.Addrs[i])
		m.ids[i] = m.nodes[i].Do(t.Context(), "CLUSTER", "MYID").Val().(string)
	}
	return m
}

// Begin has the slot of a key migrate. It reports whether the first node has it.
func (m *Migration) Begin(t *testing.T, key string) bool {
	t.Helper()
	ctx := t.Context()
	slot := m.nodes[0].ClusterKeySlot(ctx, key).Val()
	if slot >= 8192 {
		return false
	}
	require.NoError(t, m.nodes[1].Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", m.ids[0]).Err())
	require.NoError(t, m.nodes[0].Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", m.ids[1]).Err())
	return true
}

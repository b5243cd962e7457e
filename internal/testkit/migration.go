package testkit

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

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

// Slots are on their way between the masters of a cluster. They never arrive: while nodes tell each
// other who has a slot, one that gives it up deletes what it holds of it.
type Slots struct {
	nodes []*redis.Client
	ids   []string
	owner map[int64]int
}

// NewSlots returns the slots of a cluster that [StartCluster] has started.
func NewSlots(t *testing.T, addrs []string) *Slots {
	s := &Slots{owner: map[int64]int{}}
	for _, addr := range addrs {
		node := Connect(t, addr)
		s.nodes, s.ids = append(s.nodes, node), append(s.ids, node.Do(t.Context(), "CLUSTER", "MYID").Val().(string))
	}
	for i := range s.nodes {
		for slot := i * 16384 / len(s.nodes); slot < (i+1)*16384/len(s.nodes); slot++ {
			s.owner[int64(slot)] = i
		}
	}
	return s
}

// Begin has the slot of a key migrate to the node after its own, and moves its keys there if they are to be moved.
func (s *Slots) Begin(ctx context.Context, key string, move bool) error {
	slot := s.nodes[0].ClusterKeySlot(ctx, key).Val()
	from := s.owner[slot]
	to := (from + 1) % len(s.nodes)
	err := errors.Join(
		s.nodes[to].Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", s.ids[from]).Err(),
		s.nodes[from].Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", s.ids[to]).Err())
	if err != nil || !move {
		return err
	}
	return s.move(ctx, slot, from, to)
}

func (s *Slots) move(ctx context.Context, slot int64, from, to int) error {
	host, port, err := net.SplitHostPort(s.nodes[to].Options().Addr)
	if err != nil {
		return err
	}
	for _, key := range s.nodes[from].ClusterGetKeysInSlot(ctx, int(slot), 100).Val() {
		if err := s.nodes[from].Migrate(ctx, host, port, key, 0, 10*time.Second).Err(); err != nil &&
			!strings.HasPrefix(err.Error(), "NOKEY") {
			return err
		}
	}
	return nil
}

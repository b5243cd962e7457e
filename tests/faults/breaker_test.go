package faults_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// How Redis is given up for lost and found back.

// address is for clients with a Dialer of their own. It has no host name, as go-redis looks up names when it makes a
// client: what waits for the answer may be in two bubbles of synctest, which ends the process.
const address = "127.0.0.1:6379"

// unknownHost returns a Dialer that answers as the network does for a host that is not there.
func unknownHost(name string) func(context.Context, string, string) (net.Conn, error) {
	return func(_ context.Context, network, _ string) (net.Conn, error) {
		err := &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
}

// TestCauseOfTheOutageIsLogged has the log say why Redis cannot be reached, though go-redis dials for longer than the
// timeout.
func TestCauseOfTheOutageIsLogged(t *testing.T) {
	t.Parallel()
	const addr, refused, unknown = address, "connection refused", "lookup redis.example: no such host"
	for name, row := range map[string]struct {
		rdb   func() redis.UniversalClient
		cause string
	}{
		"server refuses": {func() redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: addr, Dialer: testkit.RefuseConnection})
		}, refused},
		"server, bad port": {func() redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: "127.0.0.1:99999"})
		}, "invalid port"},
		"server, unknown host": {func() redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: addr, Dialer: unknownHost("redis.example")})
		}, unknown},
		"cluster refuses": {func() redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr, addr}, Dialer: testkit.RefuseConnection})
		}, refused},
		"cluster, unknown": {func() redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, Dialer: unknownHost("redis.example")})
		}, unknown},
		"ring refuses": {func() redis.UniversalClient {
			return redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addr, "b": addr},
				Dialer: testkit.RefuseConnection})
		}, refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb := row.rdb()
				defer time.Sleep(time.Minute) // until go-redis' own goroutines have ended
				defer rdb.Close()
				limiter, log := testkit.LoggedLimiter(t, rdb, ginlimit.WithTimeout(ginlimit.DefaultTimeout))
				testkit.UntilLogged(t, limiter, log, "circuit breaker open")
				require.Contains(t, log.String(), row.cause)
			})
		})
	}
}

// TestFirstDecisionsAreOfADeadNode of a cluster or a ring: those of the others are made, and so are
// its own when another node has its slots, which the client does not notice by itself for a minute,
// or when the shard is back.
func TestFirstDecisionsAreOfADeadNode(t *testing.T) {
	t.Parallel()
	const dead, alive = "192.0.2.1:6379", "192.0.2.2:6379"
	for _, ring := range []bool{false, true} {
		t.Run(fmt.Sprintf("ring %t", ring), func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				var mended atomic.Bool
				dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
					if addr == dead && !(ring && mended.Load()) {
						return testkit.RefuseConnection(ctx, network, addr)
					}
					return b.Dial(ctx, network, addr)
				}
				slots := func(context.Context) ([]redis.ClusterSlot, error) {
					first := dead
					if mended.Load() {
						first = alive
					}
					return []redis.ClusterSlot{
						{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: first}}},
						{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: alive}}},
					}, nil
				}
				var rdb redis.UniversalClient
				var nodeOf func(key string) (*redis.Client, error)
				if ring {
					shards := redis.NewRing(&redis.RingOptions{
						Addrs: map[string]string{"a": dead,
							"b": alive}, Dialer: dial, HeartbeatFn: func(context.Context, *redis.Client) bool { return true },
					})
					rdb, nodeOf = shards, shards.GetShardClientForKey
				} else {
					nodes := redis.NewClusterClient(&redis.ClusterOptions{Dialer: dial, ClusterSlots: slots})
					rdb, nodeOf = nodes, func(key string) (*redis.Client, error) { return nodes.MasterForKey(t.Context(), key) }
				}
				defer rdb.Close()
				limiter, log := testkit.LoggedLimiter(t, rdb, ginlimit.WithTimeout(ginlimit.DefaultTimeout))
				limit := ginlimit.PerHour(1000)
				keyOf := func(addr string) string {
					for i := 0; ; i++ {
						key := fmt.Sprint("client ", i)
						node := testkit.Must(nodeOf(testkit.RedisKey(key, limit)))
						if node.Options().Addr == addr {
							return key
						}
					}
				}
				decides := func(key string) func() bool {
					return func() bool {
						_, err := limiter.Allow(t.Context(), key, limit)
						return err == nil
					}
				}
				lost, other := decides(keyOf(dead)), decides(keyOf(alive))
				for !strings.Contains(log.String(), "circuit breaker open") {
					require.False(t, lost())
					time.Sleep(10 * time.Millisecond)
				}
				start := time.Now()
				require.True(t, testkit.BecomesTrue(t.Context().Done(), other))
				require.LessOrEqual(t, time.Since(start), time.Second)
				mended.Store(true)
				start = time.Now()
				require.True(t, testkit.BecomesTrue(t.Context().Done(), lost))
				require.LessOrEqual(t, time.Since(start), time.Second)
			})
		})
	}
}

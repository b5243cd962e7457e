package faults_test

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What becomes of decisions that Redis does not make. Its faults under load are in integration/faults_test.go.

func TestReplicasShareTheLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit    ginlimit.Limit
		replicas int
		admitted int // at once
		next     time.Duration
	}{
		{ginlimit.PerDay(100), 1, 100, 864 * time.Second},
		{ginlimit.PerDay(100), 4, 25, 3456 * time.Second},
		{ginlimit.PerDay(100), 3, 33, 2618182 * time.Millisecond}, // 33 a day
		{ginlimit.PerDay(100).WithBurst(8), 4, 2, 3456 * time.Second},
		{ginlimit.PerDay(100).WithBurst(3), 4, 1, 3456 * time.Second}, // at least one
		{ginlimit.PerHour(5), 100, 1, time.Hour},                      // at least one an hour
		{ginlimit.PerHour(5), math.MaxInt, 1, time.Hour},
	} {
		testkit.RunSynctest(t, fmt.Sprintf("%s among %d", c.limit, c.replicas), func(t *testing.T) {
			limiter := testkit.WithoutRedis(t, ginlimit.WithReplicas(c.replicas))
			for want := c.admitted - 1; want >= 0; want-- {
				r := testkit.Must(limiter.Allow(t.Context(), "k", c.limit))
				require.True(t, r.Allowed)
				require.Equal(t, 1, r.Granted)
				require.Equal(t, want, r.Remaining)
				require.Equal(t, c.limit, r.Limit, "told as it was given")
				require.Equal(t, ginlimit.FromLocal, r.Source)
			}
			r := testkit.Must(limiter.Allow(t.Context(), "k", c.limit))
			require.False(t, r.Allowed)
			require.Equal(t, c.next, r.RetryAfter)
		})
	}
}

func TestAnswersWithoutRedis(t *testing.T) {
	t.Parallel()
	degraded := http.Header{
		"Content-Type":          {"text/plain; charset=utf-8"},
		"X-Ratelimit-Limit":     {"8"},
		"X-Ratelimit-Remaining": {"1"},
		"X-Ratelimit-Reset":     {"10800"},
		"X-Ratelimit-Status":    {"degraded"},
	}
	for _, c := range []struct {
		failure ginlimit.FailureMode
		codes   []int
		first   map[string]string
	}{
		{ginlimit.FailLocal, []int{200, 200, 429},
			map[string]string{"X-Ratelimit-Remaining": "1", "X-Ratelimit-Reset": "1800"}},
		{ginlimit.FailOpen, []int{200, 200, 200},
			map[string]string{"X-Ratelimit-Remaining": "7", "X-Ratelimit-Reset": "450"}},
		{ginlimit.FailClosed, []int{503, 503, 503}, nil},
	} {
		testkit.RunSynctest(t, c.failure.String(), func(t *testing.T) {
			limiter := testkit.WithoutRedis(t, ginlimit.WithReplicas(4))
			r := testkit.Serve(limiter.Handler("8/h", ginlimit.PerHour(8), ginlimit.WithFailureMode(c.failure)))
			for i, code := range c.codes {
				rec := testkit.Get(r, "/")
				require.Equal(t, code, rec.Code)
				if i == 0 && c.first != nil {
					want := degraded.Clone()
					for name, value := range c.first {
						want.Set(name, value)
					}
					assert.Equal(t, want, rec.Header())
				}
				if code == http.StatusTooManyRequests {
					assert.Equal(t, "degraded", rec.Header().Get("X-RateLimit-Status"))
					assert.Equal(t, "1800", rec.Header().Get("Retry-After"))
				}
			}
		})
	}
	testkit.Run(t, "a local limiter has lost nothing", func(t *testing.T) {
		rec := testkit.Get(testkit.Serve(testkit.NewLocal(t).Handler("8/h", ginlimit.PerHour(8),
			ginlimit.WithFailureMode(ginlimit.FailClosed))), "/")
		assert.Equal(t, http.StatusOK, rec.Code)
		assert.Equal(t, "7", rec.Header().Get("X-RateLimit-Remaining"))
		assert.NotContains(t, rec.Header(), "X-Ratelimit-Status")
	})
}

func TestFailureIsNamed(t *testing.T) {
	t.Parallel()
	for failure, name := range map[ginlimit.FailureMode]string{
		ginlimit.FailLocal: "local", ginlimit.FailOpen: "open", ginlimit.FailClosed: "closed", 9: "unknown",
	} {
		assert.Equal(t, name, failure.String())
	}
	var zero ginlimit.FailureMode
	assert.Equal(t, ginlimit.FailLocal, zero)
}

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
		testkit.RunSynctest(t, name, func(t *testing.T) {
			rdb := row.rdb()
			defer time.Sleep(time.Minute) // until go-redis' own goroutines have ended
			defer rdb.Close()
			limiter, log := testkit.LoggedLimiter(t, rdb, ginlimit.WithTimeout(ginlimit.DefaultTimeout))
			testkit.UntilLogged(t, limiter, log, "circuit breaker open")
			require.Contains(t, log.String(), row.cause)
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
		testkit.RunInBubble(t, fmt.Sprintf("ring %t", ring), func(t *testing.T, b *testkit.Bubble) {
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
	}
}

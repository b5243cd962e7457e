//go:build integration

package faults_test

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestApplicationStartsWithoutRedis serves and limits at once, and goes over to Redis when that is there.
func TestApplicationStartsWithoutRedis(t *testing.T) {
	t.Parallel()
	addr := "127.0.0.1:" + testkit.FreePort(t)
	var log testkit.Buffer
	l, err := ginlimit.NewLimiter(testkit.Connect(t, addr), ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	require.NoError(t, err)
	r := testkit.Serve(l.Handler("all", ginlimit.PerDay(2)))
	for _, code := range []int{200, 200, 429, 429} {
		rec := testkit.Get(r, "/")
		require.Equal(t, code, rec.Code)
		require.Equal(t, "degraded", rec.Header().Get("X-RateLimit-Status"))
	}
	ask := func(address string) http.Header { return testkit.Get(r, "/", testkit.From(address)).Header() }
	for range 200 { // Redis is given up for lost
		ask("192.0.2.2:1")
	}
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		ask("192.0.2.2:1")
		return strings.Contains(log.String(), "circuit breaker open")
	}))
	require.NotNil(t, testkit.LaunchRedis(t, addr))
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		return ask("192.0.2.3:1").Get("X-RateLimit-Status") == ""
	}))
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		return strings.Contains(log.String(), "Redis is back")
	}))
	require.Equal(t, 2, strings.Count(log.String(), "\n"), log.String())
	require.NotContains(t, log.String(), "192.0.2")
}

// TestLocalBucketsOutliveTheOutage loses Redis twice: nobody has a second burst.
func TestLocalBucketsOutliveTheOutage(t *testing.T) {
	t.Parallel()
	addr, process := testkit.StartRedisProcess(t)
	limiter := testkit.NewLimiter(t, testkit.Connect(t, addr), ginlimit.WithFailureMode(ginlimit.FailLocal),
		ginlimit.WithReplicas(2), ginlimit.WithDenyCache(0))
	limit := ginlimit.PerDay(1).WithBurst(20)
	ask := func(key string, source ginlimit.Source) ginlimit.Result {
		var r ginlimit.Result
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
			p := testkit.Must(limiter.Peek(t.Context(), key, limit))
			if p.Source != source {
				return false
			}
			r = testkit.Must(limiter.Allow(t.Context(), key, limit))
			return r.Source == source
		}))
		return r
	}
	require.Equal(t, 19, ask("k", ginlimit.FromRedis).Remaining)
	require.NoError(t, limiter.Block(t.Context(), "blocked", time.Hour, limit))
	require.NoError(t, limiter.Block(t.Context(), "reset", time.Hour, limit))
	require.NoError(t, limiter.Reset(t.Context(), "reset", limit))
	local := 10
	for range 2 {
		require.NoError(t, process.Kill())
		for range 4 {
			local--
			require.Equal(t, local, ask("k", ginlimit.FromLocal).Remaining)
		}
		require.False(t, ask("blocked", ginlimit.FromLocal).Allowed)
		require.True(t, ask("reset", ginlimit.FromLocal).Allowed)
		process = testkit.LaunchRedis(t, addr)
		require.NotNil(t, process)
		require.True(t, ask("k", ginlimit.FromRedis).Allowed)
	}
}

// A master is replaced behind its address, and the old one goes on. The first command that it answers by
// an error closes all connections to it: each would cost a decision, and go-redis keeps most of them.
func TestAnotherMasterBehindTheSameAddress(t *testing.T) {
	t.Parallel()
	for code, demote := range map[string]func(old, master *redis.Client){
		"READONLY": func(old, master *redis.Client) { follow(t, old, master) },
		"MASTERDOWN": func(old, _ *redis.Client) {
			require.NoError(t, old.ConfigSet(t.Context(), "replica-serve-stale-data", "no").Err())
			require.NoError(t, old.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
		},
		"NOREPLICAS": func(old, _ *redis.Client) {
			require.NoError(t, old.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
		},
		"LOADING": func(old, master *redis.Client) {
			testkit.Must(master.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
				for i := range 2000 {
					pipe.Set(t.Context(), fmt.Sprint("ballast ", i), strings.Repeat("x", 1000), 0)
				}
				return nil
			}))
			follow(t, old, master)
		},
	} {
		for name, use := range map[string]func(t *testing.T, l *ginlimit.Limiter) (done func()){
			"a decision": func(t *testing.T, l *ginlimit.Limiter) func() {
				policy := testkit.Must(l.Policy("rate", ginlimit.PerHour(10)))
				return func() { _, _ = policy.Allow(t.Context(), "client") }
			},
			"a report": func(t *testing.T, l *ginlimit.Limiter) func() {
				policy := testkit.Must(l.Policy("slots", ginlimit.InFlight(10)))
				testkit.Keep(t, testkit.Must(policy.Reserve(t.Context(), "client", 1)))
				slot := testkit.Must(policy.Reserve(t.Context(), "client", 1))
				return slot.Release // the report says that one is still held
			},
		} {
			testkit.Run(t, code+" to "+name, func(t *testing.T) {
				a := testkit.StartRedis(t, "--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024")
				b := testkit.StartRedis(t, "--repl-diskless-sync-delay", "0")
				old, master := testkit.Connect(t, a), testkit.Connect(t, b)
				proxy, addr := testkit.StartProxy(t, a)
				// A report may dial while the others connect, and meet the new master: the next one uses another connection.
				rdb := redis.NewClient(&redis.Options{Addr: addr, ClientName: "application", ReadTimeout: testkit.Patience,
					PoolFIFO: true})
				t.Cleanup(func() { _ = rdb.Close() })
				// A read in the background may use a connection meanwhile, and a replica answers it.
				command := use(t, testkit.NewLimiter(t, rdb).Limiter)
				openConnections(t, rdb, 10)
				proxy.Switch(b)
				demote(old, master)
				require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
					return redis.HasErrorPrefix(old.Get(t.Context(), "x").Err(), code) ||
						redis.HasErrorPrefix(old.Set(t.Context(), "x", 1, 0).Err(), code)
				}))
				command()
				connections := func() int {
					return strings.Count(old.ClientList(t.Context()).Val(), " name=application ")
				}
				assert.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return connections() == 0 }),
					"%d connections are left", connections())
			})
		}
	}
}

// follow makes a server a replica of another.
func follow(t *testing.T, replica, master *redis.Client) {
	t.Helper()
	host, port, err := net.SplitHostPort(master.Options().Addr)
	require.NoError(t, err)
	require.NoError(t, replica.ReplicaOf(t.Context(), host, port).Err())
}

// openConnections has a client make n connections, and pipelines as many if theirs are others.
func openConnections(t *testing.T, rdb *redis.Client, n int) {
	t.Helper()
	for range n {
		conn := rdb.Conn()
		defer conn.Close()
		require.NoError(t, conn.Ping(t.Context()).Err())
	}
	var pipelines sync.WaitGroup
	for range n {
		pipelines.Go(func() {
			_, err := rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
				return pipe.Do(t.Context(), "blpop", "nothing", "0.1").Err()
			})
			assert.ErrorIs(t, err, redis.Nil)
		})
	}
	pipelines.Wait()
}

//go:build integration

package faults_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/memory"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestEveryMethodWorksWithoutRedis(t *testing.T) {
	t.Parallel()
	limiter, limit := testkit.WithoutRedis(t, ginlimit.WithReplicas(2)), ginlimit.PerDay(1).WithBurst(20) // a share of 10
	allowN := func(key string, n int) ginlimit.Result {
		t.Helper()
		r := testkit.Must(limiter.AllowN(t.Context(), key, n, limit))
		require.Equal(t, ginlimit.FromLocal, r.Source)
		return r
	}
	assert.Equal(t, 7, allowN("a", 3).Remaining)
	r := testkit.Must(limiter.AllowUpTo(t.Context(), "a", 30, limit))
	assert.Equal(t, 7, r.Granted)
	r = testkit.Must(limiter.Peek(t.Context(), "a", limit))
	assert.False(t, r.Allowed)
	assert.Zero(t, r.Granted)

	assert.Equal(t, 9, allowN("b", 1).Remaining)
	some := allowN("b", 15) // more than the share holds, less than the limit allows: when it is full
	assert.False(t, some.Allowed)
	assert.Equal(t, 9, some.Remaining)
	assert.InDelta(t, 24*time.Hour, some.RetryAfter, float64(time.Minute))
	all := allowN("e", 15)
	assert.True(t, all.Allowed)
	assert.Equal(t, 15, all.Granted)
	assert.Zero(t, all.Remaining)
	assert.InDelta(t, 15*24*time.Hour, all.ResetAfter, float64(time.Minute), "it owes what it did not have")
	assert.InDelta(t, 6*24*time.Hour, allowN("e", 1).RetryAfter, float64(time.Minute))
	assert.InDelta(t, 15*24*time.Hour, allowN("e", 15).RetryAfter, float64(time.Minute))
	two := []ginlimit.Limit{ginlimit.PerHour(20), ginlimit.PerDay(1000)} // shares of 10 and 500
	r = testkit.Must(limiter.AllowN(t.Context(), "f", 20, two...))
	assert.True(t, r.Allowed)
	r = testkit.Must(limiter.Peek(t.Context(), "f", two[1]))
	assert.Equal(t, 480, r.Remaining, "each gave all of it")
	assert.EqualValues(t, -1, allowN("c", 21).RetryAfter, "never")
	assert.Equal(t, 9, allowN("c", 1).Remaining)

	// What changes a bucket changes that of this process, and says that Redis was not told.
	require.ErrorIs(t, limiter.Refund(t.Context(), "a", 4, limit), ginlimit.ErrUnavailable)
	assert.Equal(t, 3, allowN("a", 1).Remaining)
	require.ErrorIs(t, limiter.Reset(t.Context(), "a", limit), ginlimit.ErrUnavailable)
	assert.Equal(t, 9, allowN("a", 1).Remaining)
	require.ErrorIs(t, limiter.Block(t.Context(), "a", time.Hour, limit), ginlimit.ErrUnavailable)
	assert.InDelta(t, time.Hour, allowN("a", 1).RetryAfter, float64(time.Minute))

	require.NoError(t, limiter.Wait(t.Context(), "d", limit))
	assert.Equal(t, 8, allowN("d", 1).Remaining)
	r = testkit.Must(limiter.Allow(t.Context(), "d", ginlimit.PerDay(-1)))
	assert.Equal(t, ginlimit.FromPolicy, r.Source)
}

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

var million = flag.Bool("million", false, "have TestMemoryIsBounded ask for a million keys")

// TestMemoryIsBounded asks by all algorithms for far more keys than are remembered, of which Redis
// denies some, and without Redis. internal/memory holds each algorithm to its bound. With the race
// detector all is a quarter: what is remembered, its memory, and the keys.
func TestMemoryIsBounded(t *testing.T) { // not parallel: it counts all memory
	algorithms := []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow}
	addr, process := testkit.StartRedisProcess(t)
	keys, share := int64(300_000/testkit.RaceShare), testkit.RaceShare
	if *million {
		keys, share = 1_000_000, 1
	}
	limiter := testkit.NewLimiter(t, testkit.Connect(t, addr), testkit.RemembersDenials(),
		ginlimit.WithFailureMode(ginlimit.FailLocal), testkit.Patient(),
		ginlimit.WithDenyCache(65_536/share)) // the default
	buckets := memory.MaxBuckets / share
	testkit.SetLocalBuckets(limiter.Limiter, buckets)
	ask := func(keys int64, source ginlimit.Source, limits ...ginlimit.Limit) (denied int64) {
		var next, no atomic.Int64
		var all sync.WaitGroup
		var policies []*ginlimit.Policy
		for i, a := range algorithms {
			var opts []ginlimit.PolicyOption
			for _, limit := range limits {
				opts = append(opts, limit.WithAlgorithm(a))
			}
			policies = append(policies, testkit.NewPolicy(t, limiter, fmt.Sprint(source, i), opts...))
		}
		for range 256 {
			all.Go(func() {
				for i := next.Add(1); i <= 2*keys; i = next.Add(1) {
					// Each key twice, some time apart, and about as long as a key may be.
					client := i/512*256 + i%256
					r, err := policies[client%int64(len(policies))].Allow(context.Background(),
						fmt.Sprintf("%-50s %d", source, client))
					if err != nil {
						t.Error(err)
					}
					if !r.Allowed {
						no.Add(1)
					}
				}
			})
		}
		all.Wait()
		return no.Load()
	}
	before := testkit.HeapInUse()
	require.Greater(t, ask(keys/4, ginlimit.FromRedis, ginlimit.PerDay(1), ginlimit.PerHour(1)),
		keys/5, "remembered denials")
	withRedis := testkit.HeapInUse() - before
	require.NoError(t, process.Signal(syscall.SIGKILL))
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		r := testkit.Must(limiter.Allow(t.Context(), "k", ginlimit.PerDay(1)))
		return r.Source == ginlimit.FromLocal
	}))
	ask(keys, ginlimit.FromLocal, ginlimit.PerDay(3)) // so that windows have logs
	without := testkit.HeapInUse() - before
	t.Logf("%d MiB after %d keys in Redis, %d MiB after %d without", withRedis>>20, keys/4, without>>20, keys)
	require.Less(t, without, int64(96<<20/share))
	require.GreaterOrEqual(t, limiter.Stats().LocalBuckets, buckets*9/10)
	require.LessOrEqual(t, limiter.Stats().LocalBuckets, buckets, "of all algorithms")
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
				testkit.Must(policy.Reserve(t.Context(), "client", 1))
				slot := testkit.Must(policy.Reserve(t.Context(), "client", 1))
				return slot.Release // the report says that one is still held
			},
		} {
			t.Run(code+" to "+name, func(t *testing.T) {
				t.Parallel()
				a := testkit.StartRedis(t, "--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024")
				b := testkit.StartRedis(t, "--repl-diskless-sync-delay", "0")
				old, master := testkit.Connect(t, a), testkit.Connect(t, b)
				proxy, addr := testkit.StartProxy(t, a)
				rdb := redis.NewClient(&redis.Options{Addr: addr, ClientName: "application", ReadTimeout: testkit.Patience})
				t.Cleanup(func() { _ = rdb.Close() })
				l := testkit.Must(ginlimit.NewLimiter(rdb, testkit.Patient(), ginlimit.WithReplicas(1)))
				t.Cleanup(func() { _ = l.Close() })
				command := use(t, l)
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

// openConnections has a client make n connections.
func openConnections(t *testing.T, rdb *redis.Client, n int) {
	t.Helper()
	for range n {
		conn := rdb.Conn()
		defer conn.Close()
		require.NoError(t, conn.Ping(t.Context()).Err())
	}
}

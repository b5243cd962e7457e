//go:build integration

package web_test

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func init() {
	maps.Copy(stores, map[string]func(t *testing.T) *testkit.Limiter{
		"one server": func(t *testing.T) *testkit.Limiter {
			return testkit.NewLimiter(t, testkit.Connect(t, testkit.StartRedis(t)))
		},
		"cluster": func(t *testing.T) *testkit.Limiter {
			rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: testkit.StartCluster(t, 3)})
			t.Cleanup(func() { _ = rdb.Close() })
			return testkit.NewLimiter(t, rdb)
		},
		"a client of a cluster's node": func(t *testing.T) *testkit.Limiter {
			rdb := testkit.Connect(t, testkit.StartRedis(t, "--cluster-enabled", "yes"))
			require.NoError(t, rdb.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
				return rdb.Set(t.Context(), "k", 1, 0).Err() == nil
			}))
			return testkit.NewLimiter(t, rdb)
		},
	})
}

// TestAllOfUnderLoad has many at once ask for few keys: each bucket gives exactly what it holds, and the
// rest was given back.
func TestAllOfUnderLoad(t *testing.T) {
	t.Parallel()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: testkit.StartCluster(t, 3)})
	t.Cleanup(func() { _ = cluster.Close() })
	for name, rdb := range map[string]redis.UniversalClient{"one server": testkit.Connect(t, testkit.StartRedis(t)),
		"cluster": cluster} {
		l := testkit.NewLimiter(t, rdb)
		r := testkit.Serve(ginlimit.AllOf(l.Must("address", ginlimit.PerDay(10)),
			l.Must("all", testkit.All(), ginlimit.PerDay(25))))
		var passed [8]atomic.Int64
		var all sync.WaitGroup
		for i := range 64 {
			all.Go(func() {
				for range 5 {
					if testkit.Get(r, "/", testkit.From(fmt.Sprintf("192.0.2.%d:1", i%8))).Code == 200 {
						passed[i%8].Add(1)
					}
				}
			})
		}
		all.Wait()
		total := int64(0)
		for i := range passed {
			assert.LessOrEqual(t, passed[i].Load(), int64(10), name)
			total += passed[i].Load()
			p := testkit.Must(l.Peek(t.Context(), ginlimit.Key("address", fmt.Sprintf("192.0.2.%d", i)), ginlimit.PerDay(10)))
			assert.EqualValues(t, 10-passed[i].Load(), p.Remaining, name)
		}
		assert.EqualValues(t, 25, total, name)
	}
}

// TestAllOfWaitsOnceForAFrozenRedis sends none of three policies to it after the first, on a
// server and a cluster.
func TestAllOfWaitsOnceForAFrozenRedis(t *testing.T) {
	t.Parallel()
	addr, process := testkit.StartRedisProcess(t)
	addrs, processes := testkit.StartClusterProcesses(t, 3)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ReadTimeout: testkit.Patience})
	t.Cleanup(func() { _ = cluster.Close() })
	for name, c := range map[string]struct {
		rdb       redis.UniversalClient
		processes []*os.Process
	}{
		"server":  {redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: testkit.Patience}), []*os.Process{process}},
		"cluster": {cluster, processes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer c.rdb.Close()
			const timeout = time.Second
			var calls atomic.Int64
			c.rdb.AddHook(testkit.EveryScript(func(send func() error) error { calls.Add(1); return send() }))
			l := testkit.Must(ginlimit.NewLimiter(c.rdb, ginlimit.WithTimeout(timeout), ginlimit.WithReplicas(1),
				ginlimit.WithLogger(slog.New(slog.DiscardHandler))))
			r := three(testkit.Wrap(l, ginlimit.TokenBucket))
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
				return testkit.Get(r, "/", testkit.From("192.0.2.9:1"),
					testkit.With("X-Api-Key", "z")).Header().Get("X-RateLimit-Status") == ""
			}))
			for _, process := range c.processes {
				require.NoError(t, process.Signal(syscall.SIGSTOP))
				defer func() { require.NoError(t, process.Signal(syscall.SIGCONT)) }()
			}
			before := calls.Load()
			rec := testkit.Get(r, "/", testkit.With("X-Api-Key", "a"))
			assert.EqualValues(t, 1, calls.Load()-before)
			assert.Equal(t, "degraded", rec.Header().Get("X-RateLimit-Status"))
			assert.Equal(t, "2", testkit.Remaining(rec))
		})
	}
}

// TestRememberedDenialsOfAllOfCostNoTrip asks again for what Redis has just denied.
func TestRememberedDenialsOfAllOfCostNoTrip(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	r := three(testkit.NewLimiter(t, rdb, testkit.RemembersDenials()))
	for range 1000 {
		testkit.Get(r, "/", testkit.With("X-Api-Key", "a"))
	}
	require.Less(t, testkit.ScriptCalls(t, rdb), 100)
}

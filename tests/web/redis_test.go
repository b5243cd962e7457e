//go:build integration

package web_test

import (
	"fmt"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
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

// TestEventsTellWhyRedisDidNotDecide: a late decision is made here, and took the timeout; it is none of Redis.
func TestEventsTellWhyRedisDidNotDecide(t *testing.T) {
	t.Parallel()
	var seen events
	addr, process := testkit.StartRedisProcess(t)
	admin := testkit.Connect(t, addr)
	limiter := testkit.Must(ginlimit.NewLimiter(testkit.ConnectDirect(t, addr), ginlimit.WithObserver(seen.observe),
		ginlimit.WithReplicas(1)))
	t.Cleanup(func() { require.NoError(t, limiter.Close()) })
	user := func(*gin.Context) (string, error) { return "u", nil }
	var several [2]*ginlimit.Policy
	for i := range several {
		several[i] = testkit.Must(limiter.Policy(fmt.Sprint("several ", i), ginlimit.PerHour(100), ginlimit.WithKey(user)))
	}
	one := testkit.Must(limiter.Policy("100/h by key", ginlimit.PerHour(100), ginlimit.WithKey(user)))
	handlers := map[string]http.Handler{
		"one key": testkit.Serve(one.Handler()),
		"several": testkit.Serve(ginlimit.AllOf(several[0], several[1])),
		"a ban": testkit.Serve(limiter.Handler("banning", ginlimit.PerHour(100), ginlimit.WithKey(user),
			ginlimit.WithBan(time.Minute, time.Hour))),
		"dry run": testkit.Serve(testkit.Derive(t, one, ginlimit.WithDryRun()).Handler()),
		"closed":  testkit.Serve(testkit.Derive(t, one, ginlimit.WithFailureMode(ginlimit.FailClosed)).Handler()),
	}
	reasons := func(want ginlimit.Reason) {
		for name, h := range handlers {
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
				testkit.Get(h, "/")
				event := seen.take(t)[0]
				source := ginlimit.FromRedis
				switch {
				case want != "" && name == "closed":
					source = ginlimit.FromPolicy
				case want != "":
					source = ginlimit.FromLocal
				}
				return event.Reason == want && event.Source == source
			}), "%s: %q", name, want)
		}
	}
	reasons("") // once there is a connection
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "default", "-evalsha", "-eval").Err())
	reasons("NOPERM")
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "default", "+evalsha", "+eval").Err())
	reasons("")

	require.NoError(t, process.Signal(syscall.SIGSTOP))
	testkit.Must(testkit.Wrap(limiter, ginlimit.TokenBucket).Allow(t.Context(), "k", ginlimit.PerHour(5)))
	late := seen.all[len(seen.all)-1]
	require.GreaterOrEqual(t, late.Duration, ginlimit.DefaultTimeout)
	late.Duration, late.ResetAfter = 0, 0
	require.Equal(t, ginlimit.Event{Name: "test", Outcome: ginlimit.OutcomeAllowed, Allowed: true,
		Limit: ginlimit.PerHour(5), Remaining: 4, Source: ginlimit.FromLocal, Cost: 1, Charged: 1,
		Reason: "late"}, late)
	seen.take(t)
	reasons("breaker_open")

	worker := testkit.Must(limiter.Policy("worker", ginlimit.PerHour(5),
		ginlimit.WithFailureMode(ginlimit.FailClosed)))
	time.AfterFunc(2*time.Second, func() { _ = process.Signal(syscall.SIGCONT) })
	require.NoError(t, worker.Wait(t.Context(), "k"), "it goes on through the outage")
	event := seen.take(t)[0]
	require.Positive(t, event.Waited)
	require.Equal(t, ginlimit.FromRedis, event.Source)
	require.Empty(t, event.Reason, "of the try that Redis decided")
}

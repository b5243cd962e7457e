//go:build integration

package web_test

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
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
			p, err := l.Peek(t.Context(), ginlimit.Key("address", fmt.Sprintf("192.0.2.%d", i)), ginlimit.PerDay(10))
			require.NoError(t, err)
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
			l, err := ginlimit.NewLimiter(c.rdb, ginlimit.WithTimeout(timeout), ginlimit.WithReplicas(1),
				ginlimit.WithLogger(slog.New(slog.DiscardHandler)))
			require.NoError(t, err)
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

// TestTimeIsUpAndTokensAreGivenBack has the second of two policies on a frozen node: what was taken of the first one
// is given back when the decision's time is up, and not within that time.
func TestTimeIsUpAndTokensAreGivenBack(t *testing.T) {
	t.Parallel()
	addrs, processes := testkit.StartClusterProcesses(t, 2)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ReadTimeout: testkit.Patience})
	t.Cleanup(func() { _ = rdb.Close() })
	limiter := testkit.NewLimiter(t, rdb, ginlimit.WithTimeout(2*time.Second))
	limit := ginlimit.PerDay(5)
	on := func(name string, node int) string { // a client whose key is there
		for i := 0; ; i++ {
			master, err := rdb.MasterForKey(t.Context(), testkit.RedisKey(ginlimit.Key(name, strconv.Itoa(i)), limit))
			require.NoError(t, err)
			if master.Options().Addr == addrs[node] {
				return strconv.Itoa(i)
			}
		}
	}
	r := testkit.Serve(ginlimit.AllOf(limiter.Must("user", limit, testkit.Key("User")),
		limiter.Must("team", limit, testkit.Key("Team"))))
	user, team := on("user", 0), on("team", 1)
	ask := func() int { return testkit.Get(r, "/", testkit.With("User", user), testkit.With("Team", team)).Code }
	require.Equal(t, 200, ask())

	require.NoError(t, processes[1].Signal(syscall.SIGSTOP))
	defer func() { require.NoError(t, processes[1].Signal(syscall.SIGCONT)) }()
	require.Equal(t, 503, ask())
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		p, err := limiter.Peek(t.Context(), ginlimit.Key("user", user), limit)
		return err == nil && p.Remaining == 4
	}))
}

// TestAllOfDecidesInDifferentPlaces has one policy decided on in the process, as Redis
// refuses its key, and the others in Redis: each gets back what was taken of it.
func TestAllOfDecidesInDifferentPlaces(t *testing.T) {
	t.Parallel()
	for _, broken := range []string{ginlimit.Key("address", "192.0.2.1"), ginlimit.Key("all", "all")} {
		for _, most := range []int{3, 100} { // the policy "all" is the closest to exhaustion, or is not
			rdb := testkit.Connect(t, testkit.StartRedis(t))
			limit, shared := ginlimit.PerDay(10), ginlimit.PerHour(most)
			for _, l := range []ginlimit.Limit{limit, shared} {
				require.NoError(t, rdb.RPush(t.Context(), testkit.RedisKey(broken, l), "x").Err())
			}
			l := testkit.NewLimiter(t, rdb, ginlimit.WithFailureMode(ginlimit.FailLocal))
			refund := false
			refunds := ginlimit.WithRefund(func(*gin.Context) bool { return refund })
			r := testkit.Serve(ginlimit.AllOf(l.Must("address", limit, refunds), l.Must("all", testkit.All(), shared, refunds)))
			left := func(key string, limit ginlimit.Limit) int {
				p, err := l.Peek(t.Context(), key, limit)
				require.NoError(t, err)
				return p.Remaining
			}
			assertLeft := func(taken int) {
				t.Helper()
				assert.Equal(t, limit.Rate-taken, left(ginlimit.Key("address", "192.0.2.1"), limit), "%s, %d", broken, most)
				assert.Equal(t, shared.Rate-taken, left(ginlimit.Key("all", "all"), shared), "%s, %d", broken, most)
			}
			rec := testkit.Get(r, "/")
			assert.Equal(t, 200, rec.Code)
			assert.Equal(t, "degraded", rec.Header().Get("X-RateLimit-Status"))
			assertLeft(1)
			refund = true
			testkit.Get(r, "/")
			assertLeft(1)
		}
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

// TestCloseLeavesNoChargeOfADeniedRequest: every request but the first is denied by its second
// policy, also while Close begins.
func TestCloseLeavesNoChargeOfADeniedRequest(t *testing.T) {
	t.Parallel()
	rdb, day := testkit.Connect(t, testkit.StartRedis(t)), ginlimit.PerDay(100_000)
	key := func(name string) ginlimit.KeyFunc { return func(*gin.Context) (string, error) { return name, nil } }
	for round := range 10 {
		l := testkit.NewLimiter(t, rdb, ginlimit.WithTimeout(5*time.Second),
			ginlimit.WithFailureMode(ginlimit.FailClosed), ginlimit.WithDenyCache(0))
		name, own := fmt.Sprint("own", round), []ginlimit.PolicyOption{day, ginlimit.WithKey(key("a"))}
		// Two bans have the policies asked one after another.
		ban := ginlimit.WithBan(time.Second, time.Second)
		router := gin.New()
		router.GET("/", ginlimit.AllOf(l.Must(name, append(own, ban)...),
			l.Must(fmt.Sprint("all", round), ginlimit.WithKey(key("b")), ginlimit.PerDay(1), ban)))
		var all sync.WaitGroup
		var allowed atomic.Int64
		asked := make(chan struct{}, 16*200)
		for range 16 {
			all.Go(func() {
				for range 200 {
					w := httptest.NewRecorder()
					router.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
					if w.Code == http.StatusServiceUnavailable {
						return
					}
					if w.Code == http.StatusOK {
						allowed.Add(1)
					}
					asked <- struct{}{}
				}
			})
		}
		for range 100 {
			<-asked
		}
		require.NoError(t, l.Close())
		all.Wait()
		p, err := testkit.NewLimiter(t, rdb).Policy(name, own...)
		require.NoError(t, err)
		left, err := p.Peek(t.Context(), "a")
		require.NoError(t, err)
		require.EqualValues(t, 100_000-allowed.Load(), left.Remaining)
		require.EqualValues(t, 1, allowed.Load())
	}
}

package ginlimit_test

import (
	"fmt"
	"log/slog"
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
)

// Several identities of one request.

func everybody(*gin.Context) (string, error) { return "all", nil }

// identities limits per address, per API key and all clients together.
func identities(l *ginlimit.Limiter, opts ...ginlimit.Option) *gin.Engine {
	return serve(l.Handler(ginlimit.PerDay(3), append([]ginlimit.Option{ginlimit.WithName("address"),
		ginlimit.WithIdentity("api key", ginlimit.ByHeader("X-Api-Key"), ginlimit.PerDay(5), ginlimit.PerHour(50)),
		ginlimit.WithIdentity("all", everybody, ginlimit.PerDay(8))}, opts...)...))
}

func TestIdentitiesAllOrNone(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(t *testing.T) *ginlimit.Limiter{
		"one server": func(t *testing.T) *ginlimit.Limiter { return newLimiter(t, connect(t, startRedis(t))) },
		"miniredis":  func(t *testing.T) *ginlimit.Limiter { rdb, _ := newMiniredis(t); return newLimiter(t, rdb) },
		"cluster": func(t *testing.T) *ginlimit.Limiter {
			rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: startCluster(t, 3)})
			t.Cleanup(func() { _ = rdb.Close() })
			return newLimiter(t, rdb)
		},
		"a client of a cluster's node": func(t *testing.T) *ginlimit.Limiter {
			rdb := connect(t, startRedis(t, "--cluster-enabled", "yes"))
			require.NoError(t, rdb.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
			require.True(t, becomesTrue(t.Context().Done(), func() bool { return rdb.Set(t.Context(), "k", 1, 0).Err() == nil }))
			return newLimiter(t, rdb)
		},
		"in the process": func(t *testing.T) *ginlimit.Limiter {
			l, err := ginlimit.NewLocal()
			require.NoError(t, err)
			return l
		},
		"without Redis": func(t *testing.T) *ginlimit.Limiter { return lost(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := make(t)
			r := identities(l)
			ask := func(address, key string) (int, string, string) {
				rec := get(r, "/", from(address+":1"), with("X-Api-Key", key))
				return rec.Code, rec.Header().Get("X-RateLimit-Limit"), remaining(rec)
			}
			for i, c := range []struct {
				address, key string
				code         int
				limit, left  string
			}{
				{"192.0.2.1", "a", 200, "3", "2"}, {"192.0.2.1", "a", 200, "3", "1"}, {"192.0.2.1", "a", 200, "3", "0"},
				{"192.0.2.1", "a", 429, "3", "0"}, {"192.0.2.1", "b", 429, "3", "0"},
				{"192.0.2.2", "a", 200, "5", "1"}, {"192.0.2.2", "a", 200, "5", "0"},
				{"192.0.2.2", "a", 429, "5", "0"},
				{"192.0.2.2", "b", 200, "3", "0"}, // the refusals cost its address nothing
				{"192.0.2.3", "b", 200, "8", "1"}, {"192.0.2.4", "c", 200, "8", "0"}, {"192.0.2.5", "c", 429, "8", "0"},
			} {
				code, limit, left := ask(c.address, c.key)
				assert.Equal(t, []any{c.code, c.limit, c.left}, []any{code, limit, left}, "request %d", i)
			}
			for key, want := range map[string]int{ginlimit.Key("address", "192.0.2.5"): 3, ginlimit.Key("address", "192.0.2.3"): 2} {
				p, err := l.Peek(t.Context(), key, ginlimit.PerDay(3))
				require.NoError(t, err)
				assert.Equal(t, want, p.Remaining, key)
			}
		})
	}
}

// TestIdentitiesUnderLoad has many at once ask for few identities: each bucket gives exactly what it holds, and the
// rest was given back.
func TestIdentitiesUnderLoad(t *testing.T) {
	t.Parallel()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: startCluster(t, 3)})
	t.Cleanup(func() { _ = cluster.Close() })
	for name, rdb := range map[string]redis.UniversalClient{"one server": connect(t, startRedis(t)), "cluster": cluster} {
		l := newLimiter(t, rdb)
		r := serve(l.Handler(ginlimit.PerDay(10), ginlimit.WithName("address"), ginlimit.WithIdentity("all", everybody, ginlimit.PerDay(25))))
		var passed [8]atomic.Int64
		var all sync.WaitGroup
		for i := range 64 {
			all.Go(func() {
				for range 5 {
					if get(r, "/", from(fmt.Sprintf("192.0.2.%d:1", i%8))).Code == 200 {
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

func TestIdentitiesUnlimitedProhibitedAndWithoutAKey(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	l := newLimiter(t, rdb)
	status := func(limit ginlimit.Limit, opts ...ginlimit.Option) (int, string) {
		rec := get(serve(l.Handler(limit, append(opts, ginlimit.WithName("n"))...)), "/")
		return rec.Code, remaining(rec)
	}
	expect := func(code int, left string) func(int, string) {
		return func(gotCode int, gotLeft string) {
			t.Helper()
			assert.Equal(t, []any{code, left}, []any{gotCode, gotLeft})
		}
	}
	unlimited := ginlimit.WithIdentity("unlimited", everybody, ginlimit.PerDay(-1))
	expect(200, "")(status(ginlimit.PerDay(-1), unlimited))
	expect(200, "1")(status(ginlimit.PerDay(2), unlimited))
	expect(200, "1")(status(ginlimit.PerDay(-1), ginlimit.WithIdentity("two", everybody, ginlimit.PerDay(2))))
	expect(429, "0")(status(ginlimit.PerDay(2), ginlimit.WithIdentity("none", everybody, ginlimit.PerDay(0))))
	expect(400, "")(status(ginlimit.PerDay(2), ginlimit.WithIdentity("user", ginlimit.ByHeader("X-User"), ginlimit.PerDay(2))))
	expect(500, "")(status(ginlimit.PerDay(2), ginlimit.WithIdentity("nobody", func(*gin.Context) (string, error) { return "", nil }, ginlimit.PerDay(2))))
	expect(200, "0")(status(ginlimit.PerDay(2))) // what was refused or failed took nothing
}

// TestIdentitiesAreRefunded gives back to each what was taken of it.
func TestIdentitiesAreRefunded(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	r := identities(newLimiter(t, rdb), ginlimit.WithRefund(func(*gin.Context) bool { return true }))
	for range 5 {
		assert.Equal(t, "2", remaining(get(r, "/", with("X-Api-Key", "a"))))
	}
	assert.Zero(t, rdb.DBSize(t.Context()).Val())
}

// TestIdentitiesWaitOnceForAFrozenRedis sends none of three identities to it after the first, on a server and a cluster.
func TestIdentitiesWaitOnceForAFrozenRedis(t *testing.T) {
	t.Parallel()
	addr, process := startRedisProcess(t)
	addrs, processes := startClusterProcesses(t, 3)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ReadTimeout: patience})
	t.Cleanup(func() { _ = cluster.Close() })
	for name, c := range map[string]struct {
		rdb       redis.UniversalClient
		processes []*os.Process
	}{
		"server":  {redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: patience}), []*os.Process{process}},
		"cluster": {cluster, processes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer c.rdb.Close()
			const timeout = time.Second
			l, err := ginlimit.NewLimiter(c.rdb, ginlimit.WithTimeout(timeout), ginlimit.WithLogger(slog.New(slog.DiscardHandler)))
			require.NoError(t, err)
			r := identities(l)
			var calls atomic.Int64
			c.rdb.AddHook(aroundHook(func(send func() error) error { calls.Add(1); return send() }))
			require.True(t, becomesTrue(t.Context().Done(), func() bool {
				return get(r, "/", from("192.0.2.9:1"), with("X-Api-Key", "z")).Header().Get("X-RateLimit-Status") == ""
			}))
			for _, process := range c.processes {
				require.NoError(t, process.Signal(syscall.SIGSTOP))
				defer func() { require.NoError(t, process.Signal(syscall.SIGCONT)) }()
			}
			before := calls.Load()
			rec := get(r, "/", with("X-Api-Key", "a"))
			assert.EqualValues(t, 1, calls.Load()-before)
			assert.Equal(t, "degraded", rec.Header().Get("X-RateLimit-Status"))
			assert.Equal(t, "2", remaining(rec))
		})
	}
}

// TestTimeIsUpAndTokensAreGivenBack has the second of two identities on a frozen node: what was taken of the first one
// is given back when the decision's time is up, and not within that time.
func TestTimeIsUpAndTokensAreGivenBack(t *testing.T) {
	t.Parallel()
	addrs, processes := startClusterProcesses(t, 2)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ReadTimeout: patience})
	t.Cleanup(func() { _ = rdb.Close() })
	limiter := newLimiter(t, rdb, ginlimit.WithTimeout(2*time.Second))
	limit := ginlimit.PerDay(5)
	on := func(name string, node int) string { // a client whose key is there
		for i := 0; ; i++ {
			master, err := rdb.MasterForKey(t.Context(), redisKey(ginlimit.Key(name, strconv.Itoa(i)), limit))
			require.NoError(t, err)
			if master.Options().Addr == addrs[node] {
				return strconv.Itoa(i)
			}
		}
	}
	r := serve(limiter.Handler(limit, ginlimit.WithName("user"), ginlimit.WithKey(ginlimit.ByHeader("User")),
		ginlimit.WithIdentity("team", ginlimit.ByHeader("Team"), limit)))
	user, team := on("user", 0), on("team", 1)
	ask := func() int { return get(r, "/", with("User", user), with("Team", team)).Code }
	require.Equal(t, 200, ask())

	require.NoError(t, processes[1].Signal(syscall.SIGSTOP))
	defer func() { require.NoError(t, processes[1].Signal(syscall.SIGCONT)) }()
	require.Equal(t, 503, ask())
	require.True(t, becomesTrue(t.Context().Done(), func() bool {
		p, err := limiter.Peek(t.Context(), ginlimit.Key("user", user), limit)
		return err == nil && p.Remaining == 4
	}))
}

// TestIdentitiesOfDifferentPlaces has one identity decided on in the process, as Redis refuses its key, and the others in
// Redis: each gets back what was taken of it.
func TestIdentitiesOfDifferentPlaces(t *testing.T) {
	t.Parallel()
	for _, broken := range []string{ginlimit.Key("address", "192.0.2.1"), ginlimit.Key("all", "all")} {
		for _, most := range []int{3, 100} { // the identity "all" is the closest to exhaustion, or is not
			rdb := connect(t, startRedis(t))
			limit, shared := ginlimit.PerDay(10), ginlimit.PerHour(most)
			for _, l := range []ginlimit.Limit{limit, shared} {
				require.NoError(t, rdb.RPush(t.Context(), redisKey(broken, l), "x").Err())
			}
			l := newLimiter(t, rdb, ginlimit.WithFailure(ginlimit.FailLocal))
			refund := false
			r := serve(l.Handler(limit, ginlimit.WithName("address"), ginlimit.WithIdentity("all", everybody, shared),
				ginlimit.WithRefund(func(*gin.Context) bool { return refund })))
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
			rec := get(r, "/")
			assert.Equal(t, 200, rec.Code)
			assert.Equal(t, "degraded", rec.Header().Get("X-RateLimit-Status"))
			assertLeft(1)
			refund = true
			get(r, "/")
			assertLeft(1)
		}
	}
}

// TestIdentitiesKnownOverCostNoTrip asks again for what Redis has just refused.
func TestIdentitiesKnownOverCostNoTrip(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	r := identities(newLimiter(t, rdb, believing()))
	for range 1000 {
		get(r, "/", with("X-Api-Key", "a"))
	}
	require.Less(t, scriptCalls(t, rdb), 100)
}

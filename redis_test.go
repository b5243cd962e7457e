package ginlimit_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

func TestScriptIsLoadedOnceAndCalledBySHA(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limiter := newLimiter(t, rdb)
	for range 10 {
		_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(50))
		require.NoError(t, err)
	}
	calls := commandCalls(t, rdb)
	assert.Equal(t, "1", calls["script|load"])
	assert.Equal(t, "10", calls["evalsha"])
	assert.NotContains(t, calls, "eval")
}

// commandCalls returns how often a server ran each command.
func commandCalls(t *testing.T, rdb *redis.Client) map[string]string {
	t.Helper()
	stats, err := rdb.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	calls := map[string]string{}
	for _, m := range regexp.MustCompile(`cmdstat_([^:]+):calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
		calls[m[1]] = m[2]
	}
	return calls
}

// TestScriptFlushLosesNoDecision answers the fault of system A: after SCRIPT FLUSH every request was refused.
func TestScriptFlushLosesNoDecision(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limiter := newLimiter(t, rdb)
	const callers, each = 8, 200
	limit := ginlimit.Limit{Rate: 1, Period: 24 * time.Hour, Burst: callers * each / 2}

	ctx, stop := context.WithCancel(t.Context())
	var flusher, all sync.WaitGroup
	flusher.Go(func() {
		for ctx.Err() == nil {
			_ = rdb.ScriptFlush(ctx).Err()
		}
	})
	var mu sync.Mutex
	admitted := 0
	for range callers {
		all.Go(func() {
			for range each {
				r, err := limiter.Allow(t.Context(), "k", limit)
				if !assert.NoError(t, err) {
					return
				}
				if r.Allowed {
					mu.Lock()
					admitted++
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	stop()
	flusher.Wait()
	assert.Equal(t, limit.Burst, admitted)
}

func TestDecisionsGoOnAfterARestart(t *testing.T) {
	t.Parallel()
	addr, process := startRedisProcess(t)
	limiter := newLimiter(t, connect(t, addr))
	_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1))
	require.NoError(t, err)

	require.NoError(t, process.Kill())
	require.True(t, becomesTrue(t.Context().Done(), func() bool {
		_, err = limiter.Allow(t.Context(), "k", ginlimit.PerHour(1))
		return err != nil
	}))
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)

	require.NotNil(t, launchRedis(t, addr))
	var r ginlimit.Result
	require.True(t, becomesTrue(t.Context().Done(), func() bool {
		r, err = limiter.Allow(t.Context(), "k", ginlimit.PerHour(1))
		return err == nil
	}))
	require.True(t, r.Allowed, "the buckets went with the server")
}

// TestNoChargeIsSentTwice freezes Redis for longer than the client waits for a reply: the charge that
// was on its way is made once, whatever the client makes of it.
func TestNoChargeIsSentTwice(t *testing.T) {
	t.Parallel()
	patience := 100 * time.Millisecond
	for name, start := range map[string]func(t *testing.T) (redis.UniversalClient, *os.Process){
		"server": func(t *testing.T) (redis.UniversalClient, *os.Process) {
			addr, process := startRedisProcess(t)
			return redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: patience, MinIdleConns: 8}), process
		},
		"cluster": func(t *testing.T) (redis.UniversalClient, *os.Process) {
			addr, process := startRedisProcess(t, "--cluster-enabled", "yes")
			require.NoError(t, connect(t, addr).Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
			return redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: []string{addr}, ReadTimeout: patience, MinIdleConns: 8}), process
		},
	} {
		for _, callers := range []int{1, 8} { // alone, and some in a pipeline
			t.Run(fmt.Sprint(name, " ", callers), func(t *testing.T) {
				t.Parallel()
				rdb, process := start(t)
				defer rdb.Close()
				limiter, limit := newLimiter(t, rdb), ginlimit.PerHour(100)
				require.True(t, becomesTrue(t.Context().Done(), func() bool {
					_, err := limiter.Peek(t.Context(), "k", limit)
					return err == nil && rdb.PoolStats().IdleConns >= 8
				}))
				// It goes on while a client that sends again would do so, on a connection of which Redis
				// has heard by then.
				require.NoError(t, process.Signal(syscall.SIGSTOP))
				resumed := time.AfterFunc(3*patience, func() { _ = process.Signal(syscall.SIGCONT) })
				defer resumed.Stop()
				var all sync.WaitGroup
				for i := range callers {
					all.Go(func() {
						if _, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), limit); err != nil {
							assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
						}
					})
				}
				all.Wait()
				for i := range callers {
					var r ginlimit.Result
					require.True(t, becomesTrue(t.Context().Done(), func() bool {
						var err error
						r, err = limiter.Peek(t.Context(), fmt.Sprint("client ", i), limit)
						return err == nil
					}))
					require.GreaterOrEqual(t, r.Remaining, 99, "charged once, or never if it was not sent")
				}
			})
		}
	}
}

func TestScriptIsLoadedWhenRedisIsFirstReached(t *testing.T) {
	t.Parallel()
	addr := "127.0.0.1:" + freePort(t)
	rdb := redis.NewClient(&redis.Options{Addr: addr, DialerRetries: 1, MaxRetries: -1})
	defer rdb.Close()
	limiter := newLimiter(t, rdb)
	_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1))
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.NotNil(t, launchRedis(t, addr))
	require.True(t, becomesTrue(t.Context().Done(), func() bool {
		_, err = limiter.Allow(t.Context(), "k", ginlimit.PerHour(1))
		return err == nil
	}))
	calls := commandCalls(t, rdb)
	assert.Equal(t, "1", calls["script|load"])
	assert.NotContains(t, calls, "eval")
}

func TestLimiterNeedsNoRedisToStart(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + freePort(t), DialerRetries: 1, MaxRetries: -1})
	defer rdb.Close()
	limiter := newLimiter(t, rdb)
	_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1))
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.True(t, strings.HasPrefix(err.Error(), "ginlimit: "), err)
}

func TestForeignValuesAreErrorsAndStay(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limiter, ctx := newLimiter(t, rdb), t.Context()
	hour, minute := ginlimit.PerHour(7), ginlimit.PerMinute(7)
	name := redisKey("k", hour)
	for _, c := range []struct {
		what  string
		write func() error
	}{
		{"a list", func() error { return rdb.RPush(ctx, name, "x").Err() }},
		{"a list that expires", func() error {
			return errorsOf(rdb.RPush(ctx, name, "x").Err(), rdb.PExpire(ctx, name, time.Hour).Err())
		}},
		{"a hash", func() error { return rdb.HSet(ctx, name, "a", "b").Err() }},
		{"text", func() error { return rdb.Set(ctx, name, "text", time.Hour).Err() }},
		{"a number without expiry", func() error { return rdb.Set(ctx, name, "0", 0).Err() }},
	} {
		t.Run(c.what, func(t *testing.T) {
			require.NoError(t, rdb.Del(ctx, name).Err())
			require.NoError(t, c.write())
			before, err := rdb.Dump(ctx, name).Result()
			require.NoError(t, err)
			for _, limits := range [][]ginlimit.Limit{{hour}, {minute, hour}} {
				_, err = limiter.Allow(ctx, "k", limits...)
				require.ErrorIs(t, err, ginlimit.ErrUnavailable)
				_, err = limiter.Peek(ctx, "k", limits...)
				require.ErrorIs(t, err, ginlimit.ErrUnavailable)
				require.ErrorIs(t, limiter.Refund(ctx, "k", 1, limits...), ginlimit.ErrUnavailable)
				require.ErrorIs(t, limiter.Block(ctx, "k", time.Hour, limits...), ginlimit.ErrUnavailable)
			}
			after, err := rdb.Dump(ctx, name).Result()
			require.NoError(t, err)
			require.Equal(t, before, after)
			require.Zero(t, rdb.Exists(ctx, redisKey("k", minute)).Val(), "all or none")
		})
	}
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestFullMemoryChargesAllOrNone(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limiter, ctx := newLimiter(t, rdb), t.Context()
	minute, hour := ginlimit.PerMinute(5), ginlimit.PerHour(5)
	_, err := limiter.Allow(ctx, "k", minute) // one of the two buckets exists
	require.NoError(t, err)
	require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	_, err = limiter.Allow(ctx, "k", minute, hour)
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "0").Err())
	r, err := limiter.Peek(ctx, "k", minute)
	require.NoError(t, err)
	require.Equal(t, 4, r.Remaining)
}

// TestDocumentedPrivilegesAreEnough lets a user run nothing but what docs/operations.md says: no TIME, as on some
// managed servers. A cluster client must also be told of the slots.
func TestDocumentedPrivilegesAreEnough(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]ginlimit.Algorithm{
		"TokenBucket": ginlimit.TokenBucket, "FixedWindow": ginlimit.FixedWindow, "SlidingWindow": ginlimit.SlidingWindow,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := startRedis(t)
			user := restrict(t, addr, name)
			rdb := redis.NewClient(&user)
			defer rdb.Close()
			doEverything(t, rdb, a)
			if a != ginlimit.TokenBucket {
				limiter := newLimiter(t, rdb, ginlimit.WithAlgorithm(a))
				for i, s := range windowTrace(5, 300) {
					_, err := s.apply(t, limiter)
					require.NoError(t, err, "%s, step %d, %s", a, i, s)
				}
			}
			forbiddenNothing(t, addr)
		})
	}
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		addrs := startCluster(t, 3)
		for _, addr := range addrs {
			restrict(t, addr, "TokenBucket", privilegesOf(t, "On a cluster add")...)
		}
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Username: "app", Password: "secret"})
		defer rdb.Close()
		doEverything(t, rdb, ginlimit.TokenBucket)
		for _, addr := range addrs {
			assert.NotContains(t, commandCalls(t, connect(t, addr)), "command", "asked for by a client that does not know")
			forbiddenNothing(t, addr)
		}
	})
	t.Run("plans", func(t *testing.T) {
		t.Parallel()
		addr := startRedis(t)
		user := restrict(t, addr, "TokenBucket", append([]string{"-@all"}, privilegesOf(t, "`NewPlans` besides needs")...)...)
		rdb := redis.NewClient(&user)
		defer rdb.Close()
		s := newSource()
		plans := newPlans(t, rdb, s)
		for want := range int64(3) {
			limit, err := newPlans(t, rdb, s).Get(t.Context(), "three")
			require.NoError(t, err)
			require.Equal(t, ginlimit.PerMinute(3), limit)
			require.Equal(t, want+1, s.asked.Load(), "kept in Redis, until it is invalidated")
			require.NoError(t, plans.Invalidate(t.Context(), "three"))
		}
		forbiddenNothing(t, addr)
	})
}

// forbiddenNothing looks whether Redis has refused a user a command.
func forbiddenNothing(t *testing.T, addr string) {
	t.Helper()
	refused, err := connect(t, addr).Do(t.Context(), "ACL", "LOG").Slice()
	require.NoError(t, err)
	assert.Empty(t, refused)
}

func doEverything(t *testing.T, rdb redis.UniversalClient, a ginlimit.Algorithm) {
	limiter, ctx := newLimiter(t, rdb, ginlimit.WithAlgorithm(a)), t.Context()
	for _, limits := range [][]ginlimit.Limit{{ginlimit.PerHour(7)}, {ginlimit.PerMinute(7), ginlimit.PerHour(7)}} {
		for range 3 {
			r, err := limiter.Allow(ctx, "k", limits...)
			require.NoError(t, err)
			require.True(t, r.Allowed)
		}
		_, err := limiter.AllowUpTo(ctx, "k", 10, limits...)
		require.NoError(t, err)
		_, err = limiter.Peek(ctx, "k", limits...)
		require.NoError(t, err)
		require.NoError(t, limiter.Refund(ctx, "k", 1, limits...))
		require.NoError(t, limiter.Refund(ctx, "k", 100, limits...))
		require.NoError(t, limiter.Block(ctx, "k", time.Hour, limits...))
		require.NoError(t, limiter.Reset(ctx, "k", limits...))
		require.NoError(t, limiter.Wait(ctx, "k", limits...))
		require.NoError(t, limiter.Reset(ctx, "k", limits...))
	}
}

func TestBucketsAreBoundedByTheTimeToFull(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limiter, ctx := newLimiter(t, rdb), t.Context()
	limit := ginlimit.PerMinute(60)
	_, err := limiter.AllowN(ctx, "k", 3, limit)
	require.NoError(t, err)
	ttl := rdb.PTTL(ctx, redisKey("k", limit)).Val()
	require.LessOrEqual(t, ttl, 3*time.Second)
	require.Greater(t, ttl, 2*time.Second)
	require.NoError(t, limiter.Refund(ctx, "k", 3, limit))
	require.Zero(t, rdb.DBSize(ctx).Val(), "a full bucket has no key")
	_, err = limiter.Peek(ctx, "k", limit)
	require.NoError(t, err)
	require.Zero(t, rdb.DBSize(ctx).Val())
}

func TestClusterDecidesOnManyKeysAndLimits(t *testing.T) {
	t.Parallel()
	addrs := startCluster(t, 3)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	defer rdb.Close()
	limiter := newLimiter(t, rdb)
	limits := []ginlimit.Limit{ginlimit.PerMinute(2), ginlimit.PerHour(3), ginlimit.PerDay(100)}
	var all sync.WaitGroup
	for caller := range 10 {
		all.Go(func() {
			for i := range 100 {
				key := fmt.Sprintf("client %d of %d {}", i, caller)
				for want := 1; want >= -1; want-- {
					r, err := limiter.Allow(t.Context(), key, limits...)
					if !assert.NoError(t, err) {
						return
					}
					assert.Equal(t, want >= 0, r.Allowed)
					assert.Equal(t, max(0, want), r.Remaining)
				}
			}
		})
	}
	all.Wait()
	require.NoError(t, limiter.Reset(t.Context(), "client 1 of 1 {}", limits...))

	// The script is lost on one node alone, as on one that has just joined.
	require.NoError(t, connect(t, addrs[1]).ScriptFlush(t.Context()).Err())
	for i := range 30 {
		r, err := limiter.Allow(t.Context(), fmt.Sprint("after ", i), limits...)
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}
}

func TestPrefixesKeepLimitersApart(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limit, ctx := ginlimit.PerHour(1), t.Context()
	for _, prefix := range []string{"", "a", "b"} {
		r, err := newLimiter(t, rdb, ginlimit.WithPrefix(prefix)).Allow(ctx, "k", limit)
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}
	require.ElementsMatch(t, []string{"{k}:h", "a:{k}:h", "b:{k}:h"}, rdb.Keys(ctx, "*").Val())
}

func TestFailoverClientDecides(t *testing.T) {
	t.Parallel()
	master := startRedis(t)
	_, port, err := net.SplitHostPort(master)
	require.NoError(t, err)
	config := filepath.Join(t.TempDir(), "sentinel.conf")
	require.NoError(t, os.WriteFile(config, []byte("sentinel monitor main 127.0.0.1 "+port+" 1\n"), 0o600))
	sentinel, _ := startRedisProcess(t, config, "--sentinel")
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{sentinel}})
	defer rdb.Close()
	limiter := newLimiter(t, rdb)
	for want := 2; want >= 0; want-- {
		r, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(3))
		require.NoError(t, err)
		require.Equal(t, want, r.Remaining)
	}
}

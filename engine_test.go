package ginlimit_test

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// engine is one place where buckets are kept, with a clock that the test moves.
type engine struct {
	limiter   *ginlimit.Limiter
	algorithm ginlimit.Algorithm
	advance   func(time.Duration)
	// ahead is how far the clock may have run by itself: 0 where it is the test's alone.
	ahead time.Duration
	// frozen is set where the clock does not go on by itself.
	frozen bool
	// state returns a bucket's time to full and the value kept with it.
	state func(key string, l ginlimit.Limit) (ttl int64, value string)
	rdb   *redis.Client // nil in the process
}

// onEveryEngine runs a test of the token bucket on miniredis with a set clock, on a real redis-server, and in the
// process.
func onEveryEngine(t *testing.T, test func(t *testing.T, e engine)) {
	onEveryEngineOf(t, ginlimit.TokenBucket, test)
}

// onEveryWindow runs a test of both windows on every engine.
func onEveryWindow(t *testing.T, test func(t *testing.T, e engine)) {
	for _, algorithm := range windowAlgorithms {
		t.Run(algorithm.String(), func(t *testing.T) { onEveryEngineOf(t, algorithm, test) })
	}
}

// onEveryAlgorithm runs a test of all algorithms on every engine.
func onEveryAlgorithm(t *testing.T, test func(t *testing.T, e engine)) {
	onEveryEngine(t, test)
	onEveryWindow(t, test)
}

var windowAlgorithms = []ginlimit.Algorithm{ginlimit.FixedWindow, ginlimit.SlidingWindow}

func onEveryEngineOf(t *testing.T, a ginlimit.Algorithm, test func(t *testing.T, e engine)) {
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		test(t, miniredisEngine(t, a))
	})
	t.Run("redis-server", func(t *testing.T) {
		t.Parallel()
		test(t, redisEngine(t, a))
	})
	t.Run("local", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { test(t, localEngine(t, a)) })
	})
}

// localEngine is to be used in a bubble, whose clock it goes by.
func localEngine(t testing.TB, a ginlimit.Algorithm) engine {
	limiter, err := ginlimit.NewLocal(ginlimit.WithAlgorithm(a))
	require.NoError(t, err)
	return engine{limiter: limiter, algorithm: a, advance: time.Sleep}
}

func miniredisEngine(t testing.TB, a ginlimit.Algorithm) engine {
	mini := miniredis.NewMiniRedis()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	mini.SetTime(now)
	mini.ClockTTL(true)
	require.NoError(t, mini.Start())
	t.Cleanup(mini.Close)
	rdb := connectDirect(t, mini.Addr())
	return engine{
		limiter:   newLimiter(t, rdb, ginlimit.WithAlgorithm(a)),
		algorithm: a,
		rdb:       rdb,
		frozen:    true,
		advance: func(d time.Duration) {
			now = now.Add(d)
			mini.SetTime(now)
		},
		state: func(key string, l ginlimit.Limit) (int64, string) {
			name := redisKey(key, l)
			if !mini.Exists(name) {
				return 0, ""
			}
			value, err := mini.Get(name)
			require.NoError(t, err)
			return mini.TTL(name).Milliseconds(), value
		},
	}
}

// redisEngine moves the clock of a redis-server by shortening what its keys have left to live.
func redisEngine(t testing.TB, a ginlimit.Algorithm) engine {
	rdb := connect(t, startRedis(t))
	ctx := t.Context()
	return engine{
		limiter:   newLimiter(t, rdb, ginlimit.WithAlgorithm(a), ginlimit.WithDenyMemory(0)), // it knows nothing of such a clock
		algorithm: a,
		rdb:       rdb,
		ahead:     3 * time.Second,
		advance: func(d time.Duration) {
			keys, err := rdb.Keys(ctx, "*").Result()
			require.NoError(t, err)
			for _, key := range keys {
				ttl, err := rdb.PTTL(ctx, key).Result()
				require.NoError(t, err)
				if ttl > 0 {
					require.NoError(t, rdb.PExpire(ctx, key, max(0, ttl-d)).Err())
				}
			}
		},
		state: func(key string, l ginlimit.Limit) (int64, string) {
			name := redisKey(key, l)
			var ttl *redis.DurationCmd
			var value *redis.StringCmd
			_, err := rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
				ttl, value = p.PTTL(ctx, name), p.Get(ctx, name)
				return nil
			})
			if err == redis.Nil {
				return 0, ""
			}
			require.NoError(t, err)
			return max(0, ttl.Val().Milliseconds()), value.Val()
		},
	}
}

// patient lets Redis take as long as a busy machine may, where that must not be what ends a decision.
func patient() ginlimit.Option { return ginlimit.WithTimeout(10 * time.Second) }

// newLimiter returns a limiter that has the patience of a busy machine, and no decision that Redis has not made.
func newLimiter(t testing.TB, rdb redis.UniversalClient, opts ...ginlimit.Option) *ginlimit.Limiter {
	t.Helper()
	limiter, err := ginlimit.NewLimiter(rdb, append([]ginlimit.Option{
		patient(), ginlimit.WithFailure(ginlimit.FailClosed), ginlimit.WithLogger(slog.New(slog.DiscardHandler)),
	}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, limiter.Close()) })
	return limiter
}

// redisKey is the key of a bucket, as design and documentation name it: prefix:{key}:period.
func redisKey(key string, l ginlimit.Limit) string {
	_, period, _ := strings.Cut(ginlimit.Limit{Rate: 1, Period: l.Period}.String(), "/")
	return "ginlimit:{" + key + "}:" + period
}

// redisKey is the key of what is counted by the engine's algorithm.
func (e engine) redisKey(key string, l ginlimit.Limit) string {
	ends := map[ginlimit.Algorithm]string{ginlimit.FixedWindow: ":fixed", ginlimit.SlidingWindow: ":sliding"}
	return redisKey(key, l) + ends[e.algorithm]
}

// requireDuration wants a duration that a clock which ran ahead may have shortened.
func (e engine) requireDuration(t *testing.T, want, got time.Duration) {
	t.Helper()
	require.LessOrEqual(t, got, want)
	require.GreaterOrEqual(t, got, want-e.ahead)
}

package ginlimit_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
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

// engines are those in real time. With the tag integration, a real redis-server is one of them.
var engines = map[string]func(testing.TB, ginlimit.Algorithm) engine{"miniredis": miniredisEngine}

// onEveryEngine runs a test of the token bucket on miniredis with a set clock, in the process, and on a real redis-server.
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
	for name, start := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, start(t, a))
		})
	}
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
	rdb := testkit.ConnectDirect(t, mini.Addr())
	return engine{
		limiter:   testkit.NewLimiter(t, rdb, ginlimit.WithAlgorithm(a)),
		algorithm: a,
		rdb:       rdb,
		frozen:    true,
		advance: func(d time.Duration) {
			now = now.Add(d)
			mini.SetTime(now)
		},
		state: func(key string, l ginlimit.Limit) (int64, string) {
			name := testkit.RedisKey(key, l)
			if !mini.Exists(name) {
				return 0, ""
			}
			value, err := mini.Get(name)
			require.NoError(t, err)
			return mini.TTL(name).Milliseconds(), value
		},
	}
}

// redisKey is the key of what is counted by the engine's algorithm.
func (e engine) redisKey(key string, l ginlimit.Limit) string {
	return testkit.RedisKeyOf(e.algorithm, key, l)
}

// requireDuration wants a duration that a clock which ran ahead may have shortened.
func (e engine) requireDuration(t *testing.T, want, got time.Duration) {
	t.Helper()
	require.LessOrEqual(t, got, want)
	require.GreaterOrEqual(t, got, want-e.ahead)
}

// aroundHook calls a function for each call of the client, alone or a pipeline, that calls the script.
type aroundHook func(send func() error) error

func (h aroundHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h aroundHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !strings.HasPrefix(cmd.Name(), "eval") {
			return next(ctx, cmd)
		}
		return h(func() error { return next(ctx, cmd) })
	}
}

func (h aroundHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !strings.HasPrefix(cmds[0].Name(), "eval") {
			return next(ctx, cmds)
		}
		return h(func() error { return next(ctx, cmds) })
	}
}

func (e engine) allowN(t *testing.T, n int, limits ...ginlimit.Limit) ginlimit.Result {
	t.Helper()
	r, err := e.limiter.AllowN(t.Context(), "k", n, limits...)
	require.NoError(t, err)
	return r
}

// allowed takes n tokens and wants so many to remain.
func (e engine) allowed(t *testing.T, n, remaining int, limits ...ginlimit.Limit) {
	t.Helper()
	r := e.allowN(t, n, limits...)
	require.True(t, r.Allowed)
	require.Equal(t, n, r.Granted)
	require.Equal(t, remaining, r.Remaining)
	require.Zero(t, r.RetryAfter)
}

// denied asks for n tokens and wants a refusal for so long.
func (e engine) denied(t *testing.T, n int, retryAfter time.Duration, limits ...ginlimit.Limit) {
	t.Helper()
	r := e.allowN(t, n, limits...)
	require.False(t, r.Allowed)
	require.Zero(t, r.Granted)
	e.requireDuration(t, retryAfter, r.RetryAfter)
}

// token is how long a token takes to come back: all those of a window come a period after the first was taken.
func (e engine) token(d time.Duration, l ginlimit.Limit) time.Duration {
	if e.algorithm == ginlimit.TokenBucket {
		return d
	}
	return l.Period
}

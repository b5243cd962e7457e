package testkit

import (
	"maps"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// Engine is one place where buckets are kept, with a clock that the test moves.
type Engine struct {
	Limiter   *Limiter
	Algorithm ginlimit.Algorithm
	Advance   func(time.Duration)
	// Started is when the clock began to run by itself: zero where it is the test's alone.
	Started time.Time
	// Frozen is set where the clock does not go on by itself.
	Frozen bool
	// State returns a bucket's time to full and the value kept with it.
	State func(key string, l ginlimit.Limit) (ttl int64, value string)
	Rdb   *redis.Client // nil in the process
}

type startEngine = func(testing.TB, ginlimit.Algorithm) Engine

// engines are those in real time. With the tag integration, a real redis-server is one of them.
func engines() map[string]startEngine {
	all := map[string]startEngine{"miniredis": MiniredisEngine}
	maps.Copy(all, servers())
	return all
}

// Ahead is how far the clock may have run by itself.
func (e Engine) Ahead() time.Duration {
	if e.Started.IsZero() {
		return 0
	}
	return time.Since(e.Started) + time.Second
}

// OnEveryEngine runs a test of the token bucket on miniredis with a set clock, in the process, and
// on a real redis-server.
func OnEveryEngine(t *testing.T, test func(t *testing.T, e Engine)) {
	OnEveryEngineOf(t, ginlimit.TokenBucket, test)
}

// OnEveryWindow runs a test of both windows on every engine.
func OnEveryWindow(t *testing.T, test func(t *testing.T, e Engine)) {
	t.Parallel()
	for _, algorithm := range WindowAlgorithms {
		t.Run(algorithm.String(), func(t *testing.T) { OnEveryEngineOf(t, algorithm, test) })
	}
}

// OnEveryAlgorithm runs a test of all algorithms on every engine.
func OnEveryAlgorithm(t *testing.T, test func(t *testing.T, e Engine)) {
	OnEveryWindow(t, test)
	onEngines(t, ginlimit.TokenBucket, test)
}

// OnEveryEngineOf runs a test of an algorithm on every engine.
func OnEveryEngineOf(t *testing.T, a ginlimit.Algorithm, test func(t *testing.T, e Engine)) {
	t.Parallel()
	onEngines(t, a, test)
}

func onEngines(t *testing.T, a ginlimit.Algorithm, test func(t *testing.T, e Engine)) {
	for name, start := range engines() {
		Run(t, name, func(t *testing.T) { test(t, start(t, a)) })
	}
	RunSynctest(t, "local", func(t *testing.T) { test(t, LocalEngine(t, a)) })
}

// LocalEngine is to be used in a bubble, whose clock it goes by.
func LocalEngine(t testing.TB, a ginlimit.Algorithm) Engine {
	return Engine{Limiter: NewLocal(t, WithAlgorithm(a)), Algorithm: a, Advance: time.Sleep}
}

// MiniredisEngine is a Redis in the process, with a set clock.
func MiniredisEngine(t testing.TB, a ginlimit.Algorithm) Engine {
	mini := miniredis.NewMiniRedis()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	mini.SetTime(now)
	mini.ClockTTL(true)
	require.NoError(t, mini.Start())
	t.Cleanup(mini.Close)
	rdb := ConnectDirect(t, mini.Addr())
	return Engine{
		Limiter:   NewLimiter(t, rdb, WithAlgorithm(a)),
		Algorithm: a,
		Rdb:       rdb,
		Frozen:    true,
		Advance: func(d time.Duration) {
			now = now.Add(d)
			mini.SetTime(now)
		},
		State: func(key string, l ginlimit.Limit) (int64, string) {
			name := RedisKey(key, l)
			if !mini.Exists(name) {
				return 0, ""
			}
			value, err := mini.Get(name)
			require.NoError(t, err)
			return mini.TTL(name).Milliseconds(), value
		},
	}
}

// RedisKey is the key of what is counted by the engine's algorithm.
func (e Engine) RedisKey(key string, l ginlimit.Limit) string {
	return RedisKeyOf(e.Algorithm, key, l)
}

// Oldest is when a window is over, or enough of a log has left.
func (e Engine) Oldest(fixed, sliding time.Duration) time.Duration {
	if e.Algorithm == ginlimit.FixedWindow {
		return fixed + time.Minute
	}
	return sliding
}

package ginlimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// The deny memory.

// believing remembers from the first refusal on.
func believing() ginlimit.Option { return ginlimit.WithDenyMemory(ginlimit.DefaultDenyMemory) }

// scriptCalls returns how often the script was called.
func scriptCalls(t *testing.T, rdb *redis.Client) int {
	t.Helper()
	calls, err := strconv.Atoi(commandCalls(t, rdb)["evalsha"])
	require.NoError(t, err)
	return calls
}

// impatientTrace is a trace of few keys that ask again soon, so that much is refused from memory.
func impatientTrace(seed uint64, length int) []step {
	r := rand.New(rand.NewPCG(seed, 1))
	steps := trace(seed, length, traceLimits, ample)
	for i := range steps {
		s := &steps[i]
		s.limits = traceLimits[:5][r.IntN(5)]
		s.key = "client " + s.limits[0].String()
		s.wait = time.Duration(r.IntN(30)) * time.Millisecond
		s.n = 1 + r.IntN(min(int(burst(s.limits[0])), 10))
		s.d = time.Duration(1+r.IntN(300)) * time.Millisecond
		if r.IntN(4) > 0 {
			s.op = "AllowN"
		}
	}
	return steps
}

// TestTraceEqualsModelWithDenyMemory has Redis and the process go by one clock, so that what is refused from
// memory must be what Redis would say to the millisecond.
func TestTraceEqualsModelWithDenyMemory(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			mini := miniredis.NewMiniRedis()
			mini.ClockTTL(true)
			require.NoError(t, mini.Start()) // outside the bubble: it waits for connections
			defer mini.Close()
			synctest.Test(t, func(t *testing.T) {
				rdb := redis.NewClient(&redis.Options{Addr: mini.Addr(), ContextTimeoutEnabled: true})
				defer rdb.Close()
				limiter, err := ginlimit.NewLimiter(rdb, believing(), patient())
				require.NoError(t, err)
				defer limiter.Close()
				m, known := newModel(), 0
				for i, s := range impatientTrace(seed, 5000) {
					time.Sleep(s.wait) // the bubble's clock
					mini.SetTime(time.Now())
					m.advance(s.wait)
					want := s.expect(m)
					got, err := s.apply(t, limiter)
					if got.Source == ginlimit.FromMemory {
						known++
						got.Source = 0
					}
					if err != nil || got != want {
						require.Failf(t, "differs", "seed %d, step %d, %s:\nwant %+v\n got %+v, error %v", seed, i, s, want, got, err)
					}
				}
				require.Greater(t, known, 400)
			})
		})
	}
}

// TestKnownOverCostsNoTrip sends 100,000 requests of a client that is over its limit.
func TestKnownOverCostsNoTrip(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]ginlimit.Option{"believing": {believing()}, "by default": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := connect(t, startRedis(t))
			limiter, limit := newLimiter(t, rdb, opts...), ginlimit.PerDay(1)
			_, err := limiter.Allow(t.Context(), "k", limit)
			require.NoError(t, err)
			if opts == nil { // it first watches the bucket
				require.True(t, becomesTrue(t.Context().Done(), func() bool {
					r, err := limiter.Allow(t.Context(), "k", limit)
					return err == nil && r.Source == ginlimit.FromMemory
				}))
			}
			before, start := scriptCalls(t, rdb), time.Now()
			var all sync.WaitGroup
			for range 64 {
				all.Go(func() {
					for range 100_000 / 64 {
						r, err := limiter.Allow(t.Context(), "k", limit)
						assert.NoError(t, err)
						assert.False(t, r.Allowed)
					}
				})
			}
			all.Wait()
			calls, seconds := scriptCalls(t, rdb)-before, int(time.Since(start)/time.Second)
			t.Logf("%d calls of the script in %d s", calls, seconds+1)
			require.LessOrEqual(t, calls, 10*(1+seconds), "a handful each second")
		})
	}
}

// TestDenyMemoryRefusesNobodyWhomRedisWouldAdmit looks into the bucket, without taking anything, just before
// each refusal.
func TestDenyMemoryRefusesNobodyWhomRedisWouldAdmit(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limiter, looker := newLimiter(t, rdb, believing()), newLimiter(t, rdb)
	var known atomic.Int64
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	var all sync.WaitGroup
	for i, limit := range []ginlimit.Limit{
		ginlimit.PerSecond(200).WithBurst(1), ginlimit.PerSecond(70).WithBurst(2), ginlimit.PerSecond(500),
		{Rate: 3, Period: 10 * time.Millisecond, Burst: 2},
	} {
		all.Go(func() {
			key := fmt.Sprint("client ", i)
			for ctx.Err() == nil {
				before, err := looker.Peek(t.Context(), key, limit)
				assert.NoError(t, err)
				r, err := limiter.Allow(t.Context(), key, limit)
				assert.NoError(t, err)
				if r.Source == ginlimit.FromMemory {
					known.Add(1)
					assert.False(t, before.Allowed, "%s: there was a token", limit)
				}
			}
		})
	}
	all.Wait()
	require.Greater(t, known.Load(), int64(50))
}

// TestDenyMemoryKnowsTheCost wants the cheaper request to be asked for, where the dearer one is known to be
// refused.
func TestDenyMemoryKnowsTheCost(t *testing.T) {
	t.Parallel()
	limiter, limit := newLimiter(t, connect(t, startRedis(t)), believing()), ginlimit.PerDay(10)
	allowN := func(n int, limits ...ginlimit.Limit) ginlimit.Result {
		r, err := limiter.AllowN(t.Context(), "k", n, limits...)
		require.NoError(t, err)
		return r
	}
	require.True(t, allowN(6, limit).Allowed)
	require.Equal(t, ginlimit.FromRedis, allowN(5, limit).Source)
	known := allowN(5, limit)
	require.Equal(t, ginlimit.FromMemory, known.Source)
	require.Equal(t, 4, known.Remaining)
	require.Equal(t, ginlimit.FromMemory, allowN(6, limit).Source, "dearer still")
	require.True(t, allowN(4, limit).Allowed, "there are four")

	require.Equal(t, ginlimit.FromRedis, allowN(1, limit).Source)
	require.Equal(t, ginlimit.FromMemory, allowN(1, limit).Source)
	up, err := limiter.AllowUpTo(t.Context(), "k", 3, limit)
	require.NoError(t, err)
	require.Equal(t, ginlimit.FromMemory, up.Source)
	require.Zero(t, up.Granted)
	require.True(t, allowN(1, limit.WithBurst(11)).Allowed, "under another limit")
	look, err := limiter.Peek(t.Context(), "k", limit)
	require.NoError(t, err)
	require.Equal(t, ginlimit.FromRedis, look.Source, "whoever looks wants to know")
}

func TestOwnChangesEndARememberedRefusal(t *testing.T) {
	t.Parallel()
	limit := ginlimit.PerDay(2)
	for name, change := range map[string]func(*testing.T, *ginlimit.Limiter) error{
		"Refund": func(t *testing.T, l *ginlimit.Limiter) error { return l.Refund(t.Context(), "k", 1, limit) },
		"Reset":  func(t *testing.T, l *ginlimit.Limiter) error { return l.Reset(t.Context(), "k", limit) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := connect(t, startRedis(t))
			limiter, other := newLimiter(t, rdb, believing()), newLimiter(t, rdb)
			refused := func(source ginlimit.Source) {
				r, err := limiter.Allow(t.Context(), "k", limit)
				require.NoError(t, err)
				require.False(t, r.Allowed)
				require.Equal(t, source, r.Source)
			}
			_, err := limiter.AllowN(t.Context(), "k", 2, limit)
			require.NoError(t, err)
			refused(ginlimit.FromRedis)
			refused(ginlimit.FromMemory)
			require.NoError(t, change(t, limiter))
			r, err := limiter.Allow(t.Context(), "k", limit)
			require.NoError(t, err)
			require.True(t, r.Allowed, "at once")

			if r.Remaining > 0 {
				_, err = limiter.Allow(t.Context(), "k", limit)
				require.NoError(t, err)
			}
			refused(ginlimit.FromRedis)
			start := time.Now()
			require.NoError(t, change(t, other))
			require.True(t, becomesTrue(t.Context().Done(), func() bool {
				r, err := limiter.Allow(t.Context(), "k", limit)
				return err == nil && r.Allowed
			}), "that of another process, in a second")
			t.Logf("seen after %s", time.Since(start))
		})
	}
	t.Run("Block", func(t *testing.T) {
		t.Parallel()
		limiter := newLimiter(t, connect(t, startRedis(t)), believing())
		_, err := limiter.AllowN(t.Context(), "k", 2, limit)
		require.NoError(t, err)
		for range 2 {
			_, err = limiter.Allow(t.Context(), "k", limit)
			require.NoError(t, err)
		}
		require.NoError(t, limiter.Block(t.Context(), "k", 72*time.Hour, limit))
		r, err := limiter.Allow(t.Context(), "k", limit)
		require.NoError(t, err)
		require.InDelta(t, 72*time.Hour, r.RetryAfter, float64(10*time.Second))
	})
}

func TestDenyMemoryIsOffWhereItIsTold(t *testing.T) {
	t.Parallel()
	limiter, limit := newLimiter(t, connect(t, startRedis(t)), ginlimit.WithDenyMemory(0)), ginlimit.PerDay(1)
	start := time.Now()
	for time.Since(start) < 50*time.Millisecond {
		r, err := limiter.Allow(t.Context(), "k", limit)
		require.NoError(t, err)
		require.Equal(t, ginlimit.FromRedis, r.Source)
	}
}

// TestDefaultDenyMemoryLeavesASetClockAlone is for those who test their applications with miniredis.
func TestDefaultDenyMemoryLeavesASetClockAlone(t *testing.T) {
	t.Parallel()
	e, limit := miniredisEngine(t, ginlimit.TokenBucket), ginlimit.PerMinute(1)
	for range 3 {
		r, err := e.limiter.Allow(t.Context(), "k", limit)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		start := time.Now()
		for time.Since(start) < 20*time.Millisecond {
			r, err := e.limiter.Allow(t.Context(), "k", limit)
			require.NoError(t, err)
			require.False(t, r.Allowed)
			require.Equal(t, ginlimit.FromRedis, r.Source)
		}
		e.advance(time.Minute)
	}
}

// TestDenyMemoryIsBounded refuses many more clients than it remembers.
func TestDenyMemoryIsBounded(t *testing.T) { // not parallel: it measures the heap
	limiter, limit := newLimiter(t, connect(t, startRedis(t)), ginlimit.WithDenyMemory(100)), ginlimit.PerDay(1)
	refuse := func(from, to int) {
		for i := from; i < to; i++ {
			for range 2 {
				_, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), limit)
				require.NoError(t, err)
			}
		}
	}
	refuse(0, 500)
	before := heapInUse()
	refuse(500, 5500)
	perClient := float64(heapInUse()-before) / 5000
	t.Logf("%.0f bytes more for each of 5,000 clients", perClient)
	require.Less(t, perClient, 40.0)
}

//go:build integration

package limits_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestRememberedDenialCostsNoTrip sends 100,000 requests of a client that is over its limit.
func TestRememberedDenialCostsNoTrip(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	limiter, limit := testkit.NewLimiter(t, rdb, testkit.RemembersDenials()), ginlimit.PerDay(1)
	_, err := limiter.Allow(t.Context(), "k", limit)
	require.NoError(t, err)
	before, start := testkit.ScriptCalls(t, rdb), time.Now()
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
	calls, seconds := testkit.ScriptCalls(t, rdb)-before, int(time.Since(start)/time.Second)
	t.Logf("%d calls of the script in %d s", calls, seconds+1)
	require.LessOrEqual(t, calls, 10*(1+seconds), "a handful each second")
}

// TestDenyCacheDeniesNoClientThatRedisWouldAdmit looks into the bucket, without taking anything, just before
// each denial.
func TestDenyCacheDeniesNoClientThatRedisWouldAdmit(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	limiter, looker := testkit.NewLimiter(t, rdb, testkit.RemembersDenials()), testkit.NewLimiter(t, rdb)
	var known atomic.Int64
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	begin := time.Now()
	enough := func() bool { return time.Since(begin) > 2*time.Second && known.Load() > 50 }
	var all sync.WaitGroup
	for i, limit := range []ginlimit.Limit{
		ginlimit.PerSecond(200).WithBurst(1), ginlimit.PerSecond(70).WithBurst(2), ginlimit.PerSecond(500),
		{Rate: 3, Period: 10 * time.Millisecond, Burst: 2},
		ginlimit.PerSecond(5), // also a busy machine asks for it before its next token
	} {
		all.Go(func() {
			key := fmt.Sprint("client ", i)
			for ctx.Err() == nil && !enough() {
				before, err := looker.Peek(t.Context(), key, limit)
				assert.NoError(t, err)
				r, err := limiter.Allow(t.Context(), key, limit)
				assert.NoError(t, err)
				if r.Source == ginlimit.FromCache {
					known.Add(1)
					assert.False(t, before.Allowed, "%s: there was a token", limit)
				}
			}
		})
	}
	all.Wait()
	require.True(t, enough(), "%d denials from memory", known.Load())
}

// TestDenyCacheKnowsTheCost wants the cheaper request to be asked for, where the dearer one is known to be
// denied.
func TestDenyCacheKnowsTheCost(t *testing.T) {
	t.Parallel()
	limiter, limit := testkit.NewLimiter(t, testkit.Connect(t, testkit.StartRedis(t)), testkit.RemembersDenials()),
		ginlimit.PerDay(10)
	allowN := func(n int, limits ...ginlimit.Limit) ginlimit.Result {
		r, err := limiter.AllowN(t.Context(), "k", n, limits...)
		require.NoError(t, err)
		return r
	}
	require.True(t, allowN(6, limit).Allowed)
	require.Equal(t, ginlimit.FromRedis, allowN(5, limit).Source)
	known := allowN(5, limit)
	require.Equal(t, ginlimit.FromCache, known.Source)
	require.Equal(t, 4, known.Remaining)
	require.Equal(t, ginlimit.FromCache, allowN(6, limit).Source, "dearer still")
	require.True(t, allowN(4, limit).Allowed, "there are four")

	require.Equal(t, ginlimit.FromRedis, allowN(1, limit).Source)
	require.Equal(t, ginlimit.FromCache, allowN(1, limit).Source)
	up, err := limiter.AllowUpTo(t.Context(), "k", 3, limit)
	require.NoError(t, err)
	require.Equal(t, ginlimit.FromCache, up.Source)
	require.Zero(t, up.Granted)
	require.True(t, allowN(1, limit.WithBurst(11)).Allowed, "under another limit")
	look, err := limiter.Peek(t.Context(), "k", limit)
	require.NoError(t, err)
	require.Equal(t, ginlimit.FromRedis, look.Source, "whoever looks wants to know")
}

func TestOwnChangesEndARememberedDenial(t *testing.T) {
	t.Parallel()
	limit := ginlimit.PerDay(2)
	for name, change := range map[string]func(*testing.T, *testkit.Limiter) error{
		"Refund": func(t *testing.T, l *testkit.Limiter) error { return l.Refund(t.Context(), "k", 1, limit) },
		"Reset":  func(t *testing.T, l *testkit.Limiter) error { return l.Reset(t.Context(), "k", limit) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := testkit.Connect(t, testkit.StartRedis(t))
			limiter, other := testkit.NewLimiter(t, rdb, testkit.RemembersDenials()), testkit.NewLimiter(t, rdb)
			denied := func(source ginlimit.Source) {
				r, err := limiter.Allow(t.Context(), "k", limit)
				require.NoError(t, err)
				require.False(t, r.Allowed)
				require.Equal(t, source, r.Source)
			}
			_, err := limiter.AllowN(t.Context(), "k", 2, limit)
			require.NoError(t, err)
			denied(ginlimit.FromRedis)
			denied(ginlimit.FromCache)
			require.NoError(t, change(t, limiter))
			r, err := limiter.Allow(t.Context(), "k", limit)
			require.NoError(t, err)
			require.True(t, r.Allowed, "at once")

			if r.Remaining > 0 {
				_, err = limiter.Allow(t.Context(), "k", limit)
				require.NoError(t, err)
			}
			denied(ginlimit.FromRedis)
			start := time.Now()
			require.NoError(t, change(t, other))
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
				r, err := limiter.Allow(t.Context(), "k", limit)
				return err == nil && r.Allowed
			}), "that of another process, in a second")
			t.Logf("seen after %s", time.Since(start))
		})
	}
	t.Run("Block", func(t *testing.T) {
		t.Parallel()
		limiter := testkit.NewLimiter(t, testkit.Connect(t, testkit.StartRedis(t)), testkit.RemembersDenials())
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

func TestDenyCacheCanBeTurnedOff(t *testing.T) {
	t.Parallel()
	limiter, limit := testkit.NewLimiter(t, testkit.Connect(t, testkit.StartRedis(t)), ginlimit.WithDenyCache(0)),
		ginlimit.PerDay(1)
	start := time.Now()
	for time.Since(start) < 50*time.Millisecond {
		r, err := limiter.Allow(t.Context(), "k", limit)
		require.NoError(t, err)
		require.Equal(t, ginlimit.FromRedis, r.Source)
	}
}

// TestDenyCacheIsBounded denies many more clients than it remembers.
func TestDenyCacheIsBounded(t *testing.T) { // not parallel: it measures the heap
	limiter, limit := testkit.NewLimiter(t, testkit.Connect(t, testkit.StartRedis(t)), ginlimit.WithDenyCache(100)),
		ginlimit.PerDay(1)
	deny := func(from, to int) {
		for i := from; i < to; i++ {
			for range 2 {
				_, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), limit)
				require.NoError(t, err)
			}
		}
	}
	deny(0, 500)
	before := testkit.HeapInUse()
	deny(500, 5500)
	perClient := float64(testkit.HeapInUse()-before) / 5000
	t.Logf("%.0f bytes more for each of 5,000 clients", perClient)
	require.Less(t, perClient, 40.0)
}

// TestChangeThatMayStillBeMadeEndsDenials: nothing is remembered for a while after a change without a reply.
func TestChangeThatMayStillBeMadeEndsDenials(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	rdb.AddHook(refundsHook{})
	limiter, limit := testkit.NewLimiter(t, rdb, testkit.RemembersDenials()), ginlimit.PerDay(1)
	for range 2 {
		_, err := limiter.Allow(t.Context(), "k", limit)
		require.NoError(t, err)
	}
	start := time.Now()
	require.ErrorIs(t, limiter.Refund(t.Context(), "k", 1, limit), ginlimit.ErrUnavailable)
	for range 5 {
		r, err := limiter.Allow(t.Context(), "k", limit)
		require.NoError(t, err)
		if time.Since(start) < time.Second {
			require.Equal(t, ginlimit.FromRedis, r.Source)
		}
	}
}

// refundsHook keeps what gives tokens back from Redis.
type refundsHook struct{}

func (refundsHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (refundsHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (refundsHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if slices.Contains(cmd.Args(), any("give")) {
			err := errors.New("kept from Redis")
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

// TestDenyCacheOfWindows: a client that is over costs no trip, and is told the same as by Redis.
func TestDenyCacheOfWindows(t *testing.T) {
	t.Parallel()
	for _, a := range testkit.WindowAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			rdb := testkit.Connect(t, testkit.StartRedis(t))
			limiter := testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a), testkit.RemembersDenials())
			limit, ctx := ginlimit.PerHour(5), t.Context()
			ask := func(n int) ginlimit.Result {
				r, err := limiter.AllowN(ctx, "k", n, limit)
				require.NoError(t, err)
				return r
			}
			require.True(t, ask(4).Allowed)
			require.Equal(t, ginlimit.FromRedis, ask(2).Source)
			known := ask(2)
			require.Equal(t, ginlimit.FromCache, known.Source)
			require.Equal(t, 1, known.Remaining)
			require.InDelta(t, time.Hour, known.RetryAfter, float64(10*time.Second))
			require.InDelta(t, time.Hour, known.ResetAfter, float64(10*time.Second))
			require.Equal(t, ginlimit.FromRedis, ask(3).Source, "waits are those of one cost")
			require.True(t, ask(1).Allowed, "what fits is asked for")
			require.False(t, ask(1).Allowed)
			require.Equal(t, ginlimit.FromCache, ask(1).Source)
			require.NoError(t, limiter.Refund(ctx, "k", 1, limit))
			require.True(t, ask(1).Allowed)
			require.False(t, ask(1).Allowed)
			require.NoError(t, limiter.Reset(ctx, "k", limit))
			require.True(t, ask(5).Allowed)
		})
	}
}

// TestDenyCacheNeverOutlastsAWindow compares short windows with what a limiter without memory is told.
func TestDenyCacheNeverOutlastsAWindow(t *testing.T) {
	t.Parallel()
	for _, a := range testkit.WindowAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			rdb := testkit.Connect(t, testkit.StartRedis(t))
			limiter := testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a), testkit.RemembersDenials())
			plain := testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a), ginlimit.WithDenyCache(0))
			limit := ginlimit.Limit{Rate: 3, Period: 20 * time.Millisecond}
			fromMemory := 0
			for range 5000 {
				before, err := plain.Peek(t.Context(), "k", limit)
				require.NoError(t, err)
				r, err := limiter.Allow(t.Context(), "k", limit)
				require.NoError(t, err)
				if r.Source == ginlimit.FromCache {
					fromMemory++
					require.False(t, before.Allowed, "Redis would have admitted it before")
				}
			}
			require.Positive(t, fromMemory)
		})
	}
}

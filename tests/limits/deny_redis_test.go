//go:build integration

package limits_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

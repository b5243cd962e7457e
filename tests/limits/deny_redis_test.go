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
	testkit.Must(limiter.Allow(t.Context(), "k", limit))
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
				before := testkit.Must(plain.Peek(t.Context(), "k", limit))
				r := testkit.Must(limiter.Allow(t.Context(), "k", limit))
				if r.Source == ginlimit.FromCache {
					fromMemory++
					require.False(t, before.Allowed, "Redis would have admitted it before")
				}
			}
			require.Positive(t, fromMemory)
		})
	}
}

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

// Guarantee 1, with leases: callers of several limiters ask about one key as often as they can.
// Over the run, no more is admitted than burst + rate × time.
func TestLeasesAdmitNoMore(t *testing.T) {
	var everLeased int64 // a key that is always used up has no leases
	for _, callers := range []int{1, 16} {
		for _, limits := range [][]ginlimit.Limit{
			{ginlimit.PerSecond(5000).WithBurst(500)},
			{ginlimit.PerSecond(5000).WithBurst(500), ginlimit.PerMinute(200_000).WithBurst(1000)},
		} {
			t.Run(fmt.Sprint(callers, " callers ", limits), func(t *testing.T) {
				addr := testkit.StartRedis(t)
				var admitted, leased atomic.Int64
				var all sync.WaitGroup
				length := 2 * time.Second
				if testkit.RaceDetector {
					length /= 2
				}
				ctx, cancel := context.WithTimeout(t.Context(), length)
				defer cancel()
				start := time.Now()
				for range 3 {
					l := testkit.NewLimiter(t, testkit.Connect(t, addr), ginlimit.WithLease(20*time.Millisecond))
					for range callers {
						all.Go(func() {
							for ctx.Err() == nil {
								r, err := l.Allow(t.Context(), "k", limits...)
								assert.NoError(t, err)
								admitted.Add(int64(r.Granted))
								if r.Source == ginlimit.FromLease {
									leased.Add(1)
								}
								if !r.Allowed {
									time.Sleep(100 * time.Microsecond)
								}
							}
						})
					}
				}
				all.Wait()
				took := time.Since(start) + time.Millisecond
				for _, l := range limits {
					require.LessOrEqual(t, admitted.Load(), testkit.Burst(l)+int64(took)*int64(l.Rate)/int64(l.Period))
				}
				everLeased += leased.Load()
				t.Logf("%d admitted in %s, %d of them from leases", admitted.Load(), took, leased.Load())
			})
		}
	}
	require.Positive(t, everLeased)
}

// TestLeasesSaveTrips: one caller whose key is hot, at a good part of its limit.
func TestLeasesSaveTrips(t *testing.T) {
	testkit.Nightly(t, "a lease lasts 20 ms, in which a process that gets no core admits nobody")
	for name, algorithm := range map[string]ginlimit.Algorithm{
		"token bucket": ginlimit.TokenBucket, "fixed window": ginlimit.FixedWindow,
	} {
		t.Run(name, func(t *testing.T) {
			limit := ginlimit.PerSecond(1_000_000)
			l := testkit.NewLimiter(t, testkit.Connect(t, testkit.StartRedis(t)),
				ginlimit.WithLease(20*time.Millisecond), testkit.WithAlgorithm(algorithm),
				testkit.RemembersDenials())
			const calls = 50_000
			for start := time.Now(); time.Since(start) < 100*time.Millisecond; { // it learns how much is used
				testkit.Must(l.Allow(t.Context(), "k", limit))
			}
			before, start := l.Stats(), time.Now()
			for range calls {
				if r, err := l.Allow(t.Context(), "k", limit); err != nil || !r.Allowed {
					require.Failf(t, "is not allowed", "%+v, %v, %+v", r, err, l.Stats())
				}
			}
			stats := l.Stats()
			leased, trips := stats.Leased-before.Leased, stats.Decisions-before.Decisions
			require.InDelta(t, calls, leased+trips, calls/100, "what a lease leaves is given back by a call of its own")
			require.Greater(t, leased, 20*trips)
			t.Logf("%d admissions, %d trips, %s each", calls, trips, time.Since(start)/calls)
		})
	}
}

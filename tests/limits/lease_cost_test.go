package limits_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestARareKeyCostsNoMore with leases than without, neither calls nor keys in Redis: one that is used once in
// two lives of a lease at most.
func TestARareKeyCostsNoMore(t *testing.T) {
	for name, limit := range map[string]ginlimit.Limit{
		"token bucket": ginlimit.PerSecond(500), "fixed window": fixedMinute, "calendar": quotaOfDay,
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
				var calls []int64
				var keys [][]string
				for _, lease := range []time.Duration{0, 200 * time.Millisecond, time.Second / 2} {
					l := testkit.NewLimiter(t, b.Client(t), ginlimit.WithLease(lease), testkit.RemembersDenials())
					testkit.Must(l.Allow(t.Context(), "warm", limit))
					b.Mini.FlushAll()
					before := b.Hook.Calls.Load()
					for range 50 {
						testkit.Must(l.Allow(t.Context(), "k", limit))
						b.Advance(time.Second)
					}
					testkit.Must(l.Allow(t.Context(), "k", limit))
					calls, keys = append(calls, b.Hook.Calls.Load()-before), append(keys, slices.Clone(b.Mini.Keys()))
					require.Zero(t, l.Stats().Leased)
				}
				require.Equal(t, []int64{51, 51, 51}, calls)
				require.Len(t, keys[0], 1)
				require.Equal(t, [][]string{keys[0], keys[0], keys[0]}, keys)
			})
		})
	}
}

// TestALeaseThatIsUsedNoMore costs one call more, which gives back what is left in the bucket of its tokens.
// If all of them have flowed back, it costs none.
func TestALeaseThatIsUsedNoMore(t *testing.T) {
	for name, c := range map[string]struct {
		before, calls int64
	}{
		"left in the bucket": {200, 1},
		"flowed back":        {1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
				limit := ginlimit.PerHour(3600).WithBurst(1000)
				l := b.Limiter(t)
				require.True(t, testkit.Must(l.AllowN(t.Context(), "k", int(c.before), limit)).Allowed)
				require.Equal(t, "rrrlrlllrll", testkit.Sources(t, l, 11, limit))
				before := b.Hook.Calls.Load()
				b.Advance(time.Hour)
				require.Equal(t, c.calls, b.Hook.Calls.Load()-before)
				require.NoError(t, l.Close())
				require.Equal(t, c.calls, b.Hook.Calls.Load()-before, "nothing is left to give back")
			})
		})
	}
}

// TestADecisionByALeaseAllocatesNothingMore than one that Redis makes.
func TestADecisionByALeaseAllocatesNothingMore(t *testing.T) {
	if testkit.RaceDetector {
		t.Skip("the race detector allocates")
	}
	rdb, _ := testkit.NewMiniredis(t)
	limit, ctx := ginlimit.PerSecond(1_000_000), context.Background()
	l := testkit.NewLimiter(t, rdb)
	plain := testkit.NewPolicy(t, l, "plain", limit)
	leased := testkit.NewPolicy(t, l, "leased", limit, ginlimit.WithLease(time.Minute))
	measure := func(p *ginlimit.Policy, want ginlimit.Source) float64 {
		least := 1e9
		for range 5 { // other goroutines may allocate meanwhile
			least = min(least, testing.AllocsPerRun(50, func() {
				if r, err := p.Allow(ctx, "alice"); err != nil || r.Source != want {
					panic(r.Source.String())
				}
			}))
		}
		return least
	}
	byRedis := measure(plain, ginlimit.FromRedis)
	for range 2000 { // until enough is leased
		testkit.Must(leased.Allow(ctx, "alice"))
	}
	for { // a new lease of two thousand tokens or more
		r := testkit.Must(leased.Allow(ctx, "alice"))
		if r.Source == ginlimit.FromRedis {
			break
		}
	}
	require.LessOrEqual(t, measure(leased, ginlimit.FromLease), byRedis)
}

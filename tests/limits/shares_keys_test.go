package limits_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What others do to a shared bucket, and what is left of its keys.

// TestARaisedRateLeavesASharedBucketToItsTenants: the bucket lacks more tokens by the new rate than the
// tenants have taken.
func TestARaisedRateLeavesASharedBucketToItsTenants(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		for place, l := range map[string]*testkit.Limiter{
			"Redis": testkit.NewLimiter(t, b.Redis, ginlimit.WithDenyCache(0)), "process": testkit.NewLocal(t),
		} {
			p := testkit.NewPolicy(t, l, "p", testkit.LimitsOfContext(), ginlimit.WithShares(unusedTenant))
			before := testkit.WithLimits(t.Context(), ginlimit.PerMinute(60).WithBurst(1000))
			after := testkit.WithLimits(t.Context(), ginlimit.PerMinute(600).WithBurst(1000))
			for _, row := range []struct {
				ctx      context.Context
				tenant   string
				n, wants int
			}{{before, "a", 40, 40}, {after, "b", 300, 300}, {after, "b", 1, 0}, {before, "c", 2, 2}, {after, "c", 1, 1}} {
				r := testkit.Must(p.Share(row.tenant, 1).AllowUpTo(row.ctx, "k", row.n))
				require.Equal(t, row.wants, r.Granted, "%s: %+v", place, r)
			}
		}
	})
}

// TestTenantsUnderTwoBursts: what a tenant holds is known for as long as the bucket lacks it, whatever the burst
// was when it was taken.
func TestTenantsUnderTwoBursts(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		for place, l := range map[string]*testkit.Limiter{
			"Redis": testkit.NewLimiter(t, b.Redis, ginlimit.WithDenyCache(0)), "process": testkit.NewLocal(t),
		} {
			p := testkit.NewPolicy(t, l, "p", testkit.LimitsOfContext(), ginlimit.WithShares(unusedTenant)).Share("a", 1)
			small := testkit.WithLimits(t.Context(), ginlimit.PerSecond(100))
			large := testkit.WithLimits(t.Context(), ginlimit.PerSecond(100).WithBurst(10_000))
			for _, row := range []struct {
				ctx        context.Context
				n, granted int
			}{{small, 1, 1}, {large, 10_000, 4999}, {large, 1, 0}} {
				require.Equal(t, row.granted, testkit.Must(p.AllowUpTo(row.ctx, "k", row.n)).Granted, place)
			}
			time.Sleep(2 * time.Second)
			b.Mini.SetTime(time.Now())
			r := testkit.Must(p.Peek(large, "k"))
			require.Equal(t, 200, r.Remaining, "%s: it holds 4,800, and 5,200 are free", place)
		}
	})
}

// TestWhatTenantsHoldOutlivesTheBucket, whatever is asked: else a tenant would be forgotten.
func TestWhatTenantsHoldOutlivesTheBucket(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		p := testkit.NewPolicy(t, testkit.NewLimiter(t, b.Redis, ginlimit.WithDenyCache(0)), "p",
			ginlimit.PerSecond(1).WithBurst(300), ginlimit.WithShares(unusedTenant))
		testkit.Must(p.Share("large", 1).AllowN(t.Context(), "k", 100))
		for i := range 40 {
			testkit.Must(p.Share(fmt.Sprint(i), 1).AllowN(t.Context(), "k", 1))
		}
		for i := range 90 {
			time.Sleep(time.Second)
			b.Mini.SetTime(time.Now())
			testkit.Must(p.Share("large", 1).Peek(t.Context(), "k"))
			if i%3 == 0 {
				testkit.Must(p.Share(fmt.Sprint("late ", i), 1).AllowN(t.Context(), "k", 1+i%2))
			}
			bucket := b.Mini.TTL("ginlimit:{p|k}:s")
			for _, key := range b.Mini.Keys() {
				require.GreaterOrEqual(t, b.Mini.TTL(key), bucket, key)
			}
		}
		r := testkit.Must(p.Share("large", 1).Peek(t.Context(), "k"))
		require.Less(t, r.Remaining, 100, "it holds more than 50")
		require.Greater(t, r.Remaining, 50)
	})
}

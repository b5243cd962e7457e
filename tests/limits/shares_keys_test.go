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

// What others do to a shared bucket, and what is left of its keys.

// TestUnsharedChargesLeaveTenantsWhatTheyHold, as while a deployment begins to share a limit, after a hash
// slot has migrated, or when the rate is raised.
func TestUnsharedChargesLeaveTenantsWhatTheyHold(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		limit := ginlimit.PerMinute(60).WithBurst(100)
		p := testkit.NewPolicy(t, b.Limiter, "p", limit, ginlimit.WithShares(unusedTenant))
		if b.Other == b.Limiter {
			t.Skip("a process has one policy of a name")
		}
		plain := testkit.NewPolicy(t, b.Other, "p", limit)
		takes := func(p *ginlimit.Policy, n, granted int) {
			t.Helper()
			r, err := p.AllowUpTo(t.Context(), "k", n)
			require.NoError(t, err)
			require.Equal(t, granted, r.Granted, "%+v", r)
		}
		takes(p.Share("a", 1), 10, 10)
		takes(plain, 40, 40)
		takes(p.Share("b", 3), 1, 1)
		takes(p.Share("a", 1), 100, 20) // it holds 30, and 29 are free
		takes(p.Share("b", 3), 100, 22)
		takes(plain, 100, 7)
		takes(p.Share("a", 1), 1, 0)
		time.Sleep(20 * time.Second)
		// 20 tokens have flowed back: 15 of b's, 5 of a's. So a holds 25, b 8.
		takes(p.Share("a", 1), 1, 0)
		takes(p.Share("b", 3), 100, 13)
	})
}

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
				r, err := p.Share(row.tenant, 1).AllowUpTo(row.ctx, "k", row.n)
				require.NoError(t, err)
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
				r, err := p.AllowUpTo(row.ctx, "k", row.n)
				require.NoError(t, err)
				require.Equal(t, row.granted, r.Granted, place)
			}
			time.Sleep(2 * time.Second)
			b.Mini.SetTime(time.Now())
			r, err := p.Peek(large, "k")
			require.NoError(t, err)
			require.Equal(t, 200, r.Remaining, "%s: it holds 4,800, and 5,200 are free", place)
		}
	})
}

// TestManyTenantsThatHaveLeftCountNoMore after the few calls that it takes to remove them, of which each
// removes some hundreds: then Remaining of the others is that of the process.
func TestManyTenantsThatHaveLeftCountNoMore(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		const many = 3000
		limit := ginlimit.PerSecond(1000).WithBurst(10_000)
		remaining := map[string][]int{}
		for place, l := range map[string]*testkit.Limiter{
			"Redis": testkit.NewLimiter(t, b.Redis, ginlimit.WithDenyCache(0)), "process": testkit.NewLocal(t),
		} {
			p := testkit.NewPolicy(t, l, "p", limit, ginlimit.WithShares(unusedTenant))
			ask := func(tenant string, n int) {
				r, err := p.Share(tenant, 1).AllowN(t.Context(), "k", n)
				require.NoError(t, err)
				require.True(t, r.Allowed)
				remaining[place] = append(remaining[place], r.Remaining)
			}
			ask("large", 4000)
			for i := range many {
				ask(fmt.Sprint(i), 1)
			}
			time.Sleep(3500 * time.Millisecond)
			b.Mini.SetTime(time.Now())
			for range 20 {
				ask("new", 10)
				ask("large", 10)
			}
		}
		for i, want := range remaining["process"] {
			switch got := remaining["Redis"][i]; {
			case i <= many:
				require.Equal(t, want, got)
			case i <= many+24:
				require.InEpsilon(t, want, got, 0.2)
			default:
				require.InEpsilon(t, want, got, 0.03)
			}
		}
	})
}

// TestWhatTenantsHoldOutlivesTheBucket, whatever is asked: else a tenant would be forgotten.
func TestWhatTenantsHoldOutlivesTheBucket(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		p := testkit.NewPolicy(t, testkit.NewLimiter(t, b.Redis, ginlimit.WithDenyCache(0)), "p",
			ginlimit.PerSecond(1).WithBurst(300), ginlimit.WithShares(unusedTenant))
		_, err := p.Share("large", 1).AllowN(t.Context(), "k", 100)
		require.NoError(t, err)
		for i := range 40 {
			_, err := p.Share(fmt.Sprint(i), 1).AllowN(t.Context(), "k", 1)
			require.NoError(t, err)
		}
		for i := range 90 {
			time.Sleep(time.Second)
			b.Mini.SetTime(time.Now())
			_, err := p.Share("large", 1).Peek(t.Context(), "k")
			require.NoError(t, err)
			if i%3 == 0 {
				_, err = p.Share(fmt.Sprint("late ", i), 1).AllowN(t.Context(), "k", 1+i%2)
				require.NoError(t, err)
			}
			bucket := b.Mini.TTL("ginlimit:{p|k}:s")
			for _, key := range b.Mini.Keys() {
				require.GreaterOrEqual(t, b.Mini.TTL(key), bucket, key)
			}
		}
		r, err := p.Share("large", 1).Peek(t.Context(), "k")
		require.NoError(t, err)
		require.Less(t, r.Remaining, 100, "it holds more than 50")
		require.Greater(t, r.Remaining, 50)
	})
}

// TestTenantsBesideAnotherPolicy: many tenants' calls are merged while calls of another policy use the memory
// of calls that were answered.
func TestTenantsBesideAnotherPolicy(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	l := testkit.NewLimiter(t, rdb, testkit.Patient())
	limit := ginlimit.PerDay(100_000)
	shared := testkit.NewPolicy(t, l, "shared", ginlimit.PerHour(100_000), ginlimit.WithShares(unusedTenant))
	plain := testkit.NewPolicy(t, l, "plain", limit)
	var all sync.WaitGroup
	var granted atomic.Int64
	for i := range 32 {
		all.Go(func() {
			for range 25 {
				r, err := shared.Share(fmt.Sprint(i), 1).Allow(t.Context(), "k")
				assert.NoError(t, err)
				granted.Add(int64(r.Granted))
				_, err = plain.Allow(t.Context(), "k")
				assert.NoError(t, err)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 800, granted.Load())
	r, err := shared.Share("new", 1).Peek(t.Context(), "k")
	require.NoError(t, err)
	require.InDelta(t, (100_000-800)/2, r.Remaining, 100, "of an hour's tokens a few flow back")
}

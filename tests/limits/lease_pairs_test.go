package limits_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Leases beside each other feature: see docs/reference.md.

// leaseBurst is how many tokens of [testkit.LeasePerMinute] there are at once under leases of
// [testkit.LeaseLife]: twice what flows back in that time is kept for what is held.
const leaseBurst = 1000 - 2*60

// admittedBy takes all tokens of the client "alice" that there are, one by one, of policies that take turns.
func admittedBy(t *testing.T, policies ...*ginlimit.Policy) (n int) {
	t.Helper()
	for denied := 0; denied < len(policies); {
		denied = 0
		for _, p := range policies {
			r, err := p.Allow(t.Context(), "alice")
			require.NoError(t, err)
			if n += r.Granted; !r.Allowed {
				denied++
			}
		}
	}
	return n
}

// TestWaitsUnderALease are served from it, and neither sooner nor later than the limit admits.
func TestWaitsUnderALease(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := testkit.NewLimiter(t, b.Redis, ginlimit.WithLease(100*time.Millisecond), testkit.RemembersDenials())
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerSecond(100).WithBurst(200))
		var all sync.WaitGroup
		start := time.Now()
		for range 3 {
			all.Go(func() {
				for range 300 {
					assert.NoError(t, p.Wait(t.Context(), "alice"))
					time.Sleep(2 * time.Millisecond)
				}
			})
		}
		all.Wait()
		require.Positive(t, l.Stats().Leased)
		require.GreaterOrEqual(t, time.Since(start), 7*time.Second-10*time.Millisecond,
			"900 tokens, of which 200 are there at once")
		require.Less(t, time.Since(start), 7500*time.Millisecond)

		leased := l.Stats().Leased
		queued := testkit.NewPolicy(t, l, "queued", ginlimit.PerMinute(60_000),
			ginlimit.InFlight(1),
			ginlimit.WithQueue(1, time.Hour))
		for range 50 {
			slot, next := testkit.Reserve(t, queued), make(chan *ginlimit.Reservation, 1)
			all.Go(func() { next <- testkit.Reserve(t, queued) })
			time.Sleep(10 * time.Millisecond)
			slot.Release()
			slot = <-next
			require.True(t, slot.Result().Allowed)
			require.Equal(t, ginlimit.FromRedis, slot.Result().Source)
			slot.Release()
			synctest.Wait()
		}
		all.Wait()
		require.Equal(t, leased, l.Stats().Leased, "who waits for a slot takes no tokens ahead")
	})
}

// TestALeaseLeavesTheFloor to the policy that its own is derived from, in the same process and in others.
func TestALeaseLeavesTheFloor(t *testing.T) {
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow} {
		for _, processes := range []int{1, 2} {
			t.Run(fmt.Sprint(a, processes), func(t *testing.T) {
				testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
					limit, all := testkit.LeasePerMinute, leaseBurst
					if a == ginlimit.FixedWindow {
						limit, all = ginlimit.PerMinute(1000).WithAlgorithm(a), 1000
					}
					l := b.Limiter(t)
					people := testkit.NewPolicy(t, l, "api", limit)
					batch := testkit.Derive(t, people, ginlimit.WithFloor(400))
					if processes == 2 {
						people = testkit.NewPolicy(t, b.Limiter(t), "api", limit)
					}
					require.Equal(t, all-400, admittedBy(t, batch))
					require.Positive(t, l.Stats().Leased)
					require.Equal(t, 400, admittedBy(t, people))
					require.Zero(t, admittedBy(t, batch, people))
				})
			})
		}
	}
}

// TestALeaseLeavesALargeFloor whole: who has that floor gets only what is above it and what the lease keeps.
func TestALeaseLeavesALargeFloor(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t)
		people := testkit.NewPolicy(t, l, "api", ginlimit.WithLimitFunc(
			func(context.Context, string) ([]ginlimit.Limit, error) {
				return []ginlimit.Limit{testkit.LeasePerMinute}, nil
			}))
		batch := testkit.Derive(t, people, ginlimit.WithFloor(leaseBurst-1))
		require.Equal(t, 1, admittedBy(t, batch))
		require.Equal(t, leaseBurst-1, admittedBy(t, people))
		batch = testkit.Derive(t, people, ginlimit.WithFloor(leaseBurst))
		r, err := batch.Allow(t.Context(), "another")
		require.NoError(t, err)
		require.Equal(t, ginlimit.Result{
			Limit: testkit.LeasePerMinute, Name: "api", RetryAfter: -1, Source: ginlimit.FromPolicy, Cause: ginlimit.CauseNever,
		}, r)
	})
}

// TestALeaseOfACalendarQuota ends with its period: in each, processes with leases admit exactly the quota.
func TestALeaseOfACalendarQuota(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		life := ginlimit.WithLease(2 * time.Hour) // in which 200 tokens flow back
		one, two := b.Limiter(t, life), b.Limiter(t, life)
		quota := ginlimit.PerCalendar(2400, endingDay())
		p, q := testkit.NewPolicy(t, one, "api", quota), testkit.NewPolicy(t, two, "api", quota)
		used := b.Leases(t, p) + b.Leases(t, q)
		require.Less(t, used, 2000)
		b.Advance(time.Minute)
		require.Equal(t, 2400, admittedBy(t, p, q), "nothing is left of the period that has ended")
		b.Advance(24 * time.Hour)
		used = b.Leases(t, p) + b.Leases(t, q)
		require.Equal(t, 2400, used+admittedBy(t, p, q))
	})
}

// TestAnotherPlanEndsALease at once in the process that asks for the plan. What was leased stays
// charged until it goes back.
func TestAnotherPlanEndsALease(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		plan := []ginlimit.Limit{testkit.LeasePerMinute}
		p := testkit.NewPolicy(t, b.Limiter(t), "api",
			ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) { return plan, nil }))
		for _, other := range []ginlimit.Limit{ginlimit.PerHour(0), ginlimit.PerMinute(1),
			testkit.LeasePerMinute.WithBurst(2000), ginlimit.PerHour(50)} {
			plan = []ginlimit.Limit{testkit.LeasePerMinute}
			require.NoError(t, p.Reset(t.Context(), "alice"))
			b.Advance(5 * time.Second)
			used := b.Leases(t, p)
			plan = []ginlimit.Limit{other}
			got, err := p.Allow(t.Context(), "alice")
			require.NoError(t, err)
			require.NotEqual(t, ginlimit.FromLease, got.Source, "%s", other)
			require.Equal(t, other.Rate > 1, got.Allowed, "%s", other)
			if other.Rate == 1 {
				require.Positive(t, got.RetryAfter, "what was used under the other plan counts")
			}
			plan = []ginlimit.Limit{testkit.LeasePerMinute}
			used += admittedBy(t, p)
			require.InDelta(t, leaseBurst, used, 3, "%s: no token is used twice, and none is lost", other)
		}
	})
}

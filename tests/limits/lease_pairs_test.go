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
			r := testkit.Must(p.Allow(t.Context(), "alice"))
			if n += r.Granted; !r.Allowed {
				denied++
			}
		}
	}
	return n
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
		r := testkit.Must(batch.Allow(t.Context(), "another"))
		require.Equal(t, ginlimit.Result{
			Limit: testkit.LeasePerMinute, Name: "api", RetryAfter: -1, Source: ginlimit.FromPolicy, Cause: ginlimit.CauseNever,
		}, r)
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
			got := testkit.Must(p.Allow(t.Context(), "alice"))
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

package limits_test

import (
	"context"
	"strconv"
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

// Denials beside leases, and what a client is told.

// TestAClientThatWaitsIsAdmitted beside leases too, if nobody else took the token: as Redis says, as
// this process says while it does not ask Redis again, and in whole seconds over HTTP.
func TestAClientThatWaitsIsAdmitted(t *testing.T) {
	const fixed = ginlimit.FixedWindow
	for name, row := range map[string]struct {
		limits []ginlimit.Limit
		lease  time.Duration
	}{
		"a token bucket":  {[]ginlimit.Limit{ginlimit.PerSecond(500)}, 200 * time.Millisecond},
		"a long lease":    {[]ginlimit.Limit{ginlimit.PerMinute(60).WithBurst(100)}, time.Minute},
		"a small one":     {[]ginlimit.Limit{ginlimit.PerSecond(1000).WithBurst(10)}, 20 * time.Millisecond},
		"several":         {[]ginlimit.Limit{ginlimit.PerSecond(500), ginlimit.PerMinute(6000)}, 200 * time.Millisecond},
		"a window":        {[]ginlimit.Limit{ginlimit.PerMinute(60).WithAlgorithm(fixed)}, time.Second},
		"a short window":  {[]ginlimit.Limit{ginlimit.Per(10, 50*time.Millisecond).WithAlgorithm(fixed)}, time.Second},
		"has no leases":   {[]ginlimit.Limit{ginlimit.PerSecond(5)}, 200 * time.Millisecond},
		"has none at all": {[]ginlimit.Limit{ginlimit.PerSecond(5)}, 0},
	} {
		for trusts, opts := range map[string][]ginlimit.LimiterOption{"trusted": {testkit.RemembersDenials()},
			"learning": nil} {
			testkit.RunOnLeaseBench(t, name+", "+trusts, func(t *testing.T, b *testkit.LeaseBench) {
				l := testkit.NewLimiter(t, b.Client(t), append(opts, ginlimit.WithLease(row.lease))...)
				p := testkit.NewPolicy(t, l, "api", ginlimit.WithLimits(row.limits...))
				sources := map[ginlimit.Source]int{}
				for i := range 16 {
					var last ginlimit.Result
					for last.Allowed = true; last.Allowed; {
						var err error
						last, err = p.Allow(t.Context(), "alice")
						require.NoError(t, err)
					}
					if i%2 == 0 { // while the denial is remembered
						b.Advance(min(last.RetryAfter/3, 20*time.Millisecond).Truncate(time.Millisecond))
						r := testkit.Must(p.Allow(t.Context(), "alice"))
						if r.Allowed { // somebody gave back
							continue
						}
						last = r
					}
					sources[last.Source]++
					require.Positive(t, last.RetryAfter)
					b.Advance(last.RetryAfter)
					r := testkit.Must(p.Allow(t.Context(), "alice"))
					require.True(t, r.Allowed, "round %d: after %s, %+v", i, last.RetryAfter, r)
				}
				require.NotEmpty(t, sources)
				if trusts == "trusted" {
					require.Positive(t, sources[ginlimit.FromCache])
				}
			})
		}
	}
}

// TestRemainingCanBeTaken at once by the process that was told so, with nobody else there.
func TestRemainingCanBeTaken(t *testing.T) {
	for name, limits := range map[string][]ginlimit.Limit{
		"a token bucket": {ginlimit.PerSecond(500)},
		"several":        {ginlimit.PerSecond(500), ginlimit.PerMinute(6000).WithBurst(900)},
		"a window":       {ginlimit.Per(400, 5*time.Second).WithAlgorithm(ginlimit.FixedWindow)},
	} {
		for _, calls := range []int{1, 3, 10, 61, 150} {
			testkit.RunOnLeaseBench(t, name+" after "+strconv.Itoa(calls), func(t *testing.T, b *testkit.LeaseBench) {
				lease := ginlimit.WithLease(200 * time.Millisecond)
				l, other := b.Limiter(t, lease), b.Limiter(t, lease)
				var last ginlimit.Result
				for i := range calls {
					for _, l := range []*testkit.Limiter{other, l} {
						r := testkit.Must(l.Allow(t.Context(), "k", limits...))
						if last = r; r.Source == ginlimit.FromLease {
							require.Zero(t, r.RetryAfter)
						}
					}
					if i < calls-1 {
						b.Advance(time.Duration(i%3) * time.Millisecond)
					}
				}
				require.GreaterOrEqual(t, testkit.AdmittedNow(t, l, "k", limits...), last.Remaining)
			})
		}
	}
}

// TestTokensOfBothTakeOneTimeout: a request that takes tokens of the lease and others from Redis makes
// two calls, and both together take no longer than the timeout.
func TestTokensOfBothTakeOneTimeout(t *testing.T) {
	limit := ginlimit.PerHour(3600).WithBurst(1000)
	for way, want := range map[time.Duration]error{ // there and back
		20 * time.Millisecond: nil,
		30 * time.Millisecond: ginlimit.ErrUnavailable,
	} {
		testkit.RunOnLeaseBench(t, way.String(), func(t *testing.T, b *testkit.LeaseBench) {
			timeout := ginlimit.WithTimeout(ginlimit.DefaultTimeout)
			l, other := b.Limiter(t, timeout), b.Limiter(t, timeout)
			var last ginlimit.Result
			for range 40 {
				r := testkit.Must(l.Allow(t.Context(), "k", limit))
				last = r
			}
			require.Equal(t, ginlimit.FromLease, last.Source)
			held := last.Remaining
			r := testkit.Must(other.Peek(t.Context(), "k", limit))
			r = testkit.Must(other.AllowN(t.Context(), "k", r.Remaining-held, limit))
			require.True(t, r.Allowed)

			b.Hook.Wait.Store(int64(way))
			start := time.Now()
			r, err := l.AllowN(t.Context(), "k", held+1, limit)
			require.ErrorIs(t, err, want)
			require.Equal(t, want == nil, r.Allowed)
			require.LessOrEqual(t, time.Since(start), ginlimit.DefaultTimeout*11/10)
			b.Hook.Wait.Store(0)
		})
	}
}

// TestALeaseLeavesTheFloor to the policy that its own is derived from, in the same process and in others.
func TestALeaseLeavesTheFloor(t *testing.T) {
	for limit, all := range map[ginlimit.Limit]int{testkit.LeasePerMinute: leaseBurst, fixedMinute: 1000} {
		testkit.RunOnLeaseBench(t, limit.String(), func(t *testing.T, b *testkit.LeaseBench) {
			l := b.Limiter(t)
			people, others := testkit.NewPolicy(t, l, "api", limit), testkit.NewPolicy(t, b.Limiter(t), "api", limit)
			batch := testkit.Derive(t, people, ginlimit.WithFloor(400))
			require.Equal(t, all-400, admittedBy(t, batch))
			require.Positive(t, l.Stats().Leased)
			require.Equal(t, 400, admittedBy(t, people, others))
			require.Zero(t, admittedBy(t, batch, people))
		})
	}
}

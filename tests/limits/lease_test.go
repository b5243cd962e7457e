package limits_test

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Leases, by what a caller sees of them.

// TestLease: from the fourth call on, each call to Redis takes as many tokens ahead as were used before.
func TestLease(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t)
		require.Equal(t, "rrrrlrlllrlllllll", testkit.Sources(t, l, 17, testkit.LeasePerMinute))
		r := testkit.Must(l.Peek(t.Context(), "k", testkit.LeasePerMinute))
		require.Equal(t, testkit.LeaseBurst-17, r.Remaining)
		require.Equal(t, "r", testkit.Sources(t, l, 1, testkit.LeasePerMinute))

		want := testkit.Must(l.Peek(t.Context(), "k", testkit.LeasePerMinute))
		r = testkit.Must(l.AllowN(t.Context(), "k", 3, testkit.LeasePerMinute))
		require.Equal(t, ginlimit.Result{
			Allowed: true, Granted: 3, Limit: testkit.LeasePerMinute, Name: "test", Remaining: r.Remaining,
			ResetAfter: want.ResetAfter, Source: ginlimit.FromLease,
		}, r)
		next := testkit.Must(l.AllowUpTo(t.Context(), "k", 2, testkit.LeasePerMinute))
		require.Equal(t, ginlimit.FromLease, next.Source)
		require.Equal(t, 2, next.Granted)
		require.Equal(t, r.Remaining-2, next.Remaining)
		stats := l.Stats()
		require.Equal(t, 1, stats.Leases)
		require.EqualValues(t, 13, stats.Leased)

		b.Advance(testkit.LeaseLife)
		require.Zero(t, l.Stats().Leases)
		require.Equal(t, "r", testkit.Sources(t, l, 1, testkit.LeasePerMinute))
	})
}

// TestLeaseOfAFixedWindow ends with it, and what is leased of a window is taken of it.
func TestLeaseOfAFixedWindow(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		fixed := testkit.WithAlgorithm(ginlimit.FixedWindow)
		l, other := b.Limiter(t, fixed, ginlimit.WithLease(time.Hour)), b.Limiter(t, fixed, ginlimit.WithLease(time.Hour))
		limit := ginlimit.PerMinute(100)
		require.Equal(t, "rrrlrl", testkit.Sources(t, l, 6, limit))
		b.Advance(59 * time.Second)
		require.Equal(t, "l", testkit.Sources(t, l, 1, limit))
		b.Advance(time.Second - 15*time.Millisecond)
		require.Equal(t, "r", testkit.Sources(t, l, 1, limit), "a thousandth early")
		for range 3 {
			b.Advance(time.Minute)
			admitted := 0
			for range 101 {
				for _, l := range []*testkit.Limiter{l, other} {
					r := testkit.Must(l.Allow(t.Context(), "k", limit))
					admitted += r.Granted
				}
			}
			require.Equal(t, 100, admitted)
		}
		require.Positive(t, other.Stats().Leased)
	})
}

// Which policies have leases, and how much of their bursts is kept for these.

var (
	quotaOfDay    = ginlimit.PerCalendar(1000, ginlimit.CalendarDay(nil))
	fixedMinute   = ginlimit.PerMinute(1000).WithAlgorithm(ginlimit.FixedWindow)
	slidingMinute = fixedMinute.WithAlgorithm(ginlimit.SlidingWindow)
)

// TestAnyFloorKeepsTheSameRoom: a derived policy may leave any floor above what leases keep.
func TestAnyFloorKeepsTheSameRoom(t *testing.T) {
	rdb, _ := testkit.NewMiniredis(t)
	p := testkit.NewPolicy(t, testkit.NewLimiter(t, rdb), "api", ginlimit.PerSecond(500),
		ginlimit.WithLease(200*time.Millisecond))
	for floor, ok := range map[int]bool{0: true, 1: true, 299: true, 300: false, 400: false, 499: false} {
		_, err := p.With(ginlimit.WithFloor(floor))
		if require.Equal(t, ok, err == nil, floor); !ok {
			require.ErrorContains(t, err, fmt.Sprintf("WithFloor(%d) leaves nothing of 500/s; "+
				"WithLease keeps some of its burst: make either smaller", floor))
		}
	}
}

// TestRoomForLeases is taken of the burst of policies that may have leases, and of no other.
func TestRoomForLeases(t *testing.T) {
	short := 200 * time.Millisecond
	for name, row := range map[string]struct {
		limits []ginlimit.Limit
		lease  time.Duration
		atOnce int
	}{
		"no lease":                    {[]ginlimit.Limit{ginlimit.PerSecond(500)}, 0, 500},
		"what flows back in it":       {[]ginlimit.Limit{ginlimit.PerSecond(500)}, short, 300},
		"at most half of the burst":   {[]ginlimit.Limit{ginlimit.PerSecond(500)}, time.Hour, 250},
		"a small burst":               {[]ginlimit.Limit{ginlimit.PerSecond(500).WithBurst(11)}, time.Second, 11},
		"too small a burst":           {[]ginlimit.Limit{ginlimit.PerSecond(500).WithBurst(7)}, time.Second, 7},
		"too slow":                    {[]ginlimit.Limit{ginlimit.PerSecond(5)}, short, 5},
		"too slow, of a large burst":  {[]ginlimit.Limit{ginlimit.PerSecond(5).WithBurst(1000)}, short, 1000},
		"the fastest":                 {[]ginlimit.Limit{ginlimit.PerSecond(500), ginlimit.PerMinute(6000)}, short, 300},
		"beside a slow one":           {[]ginlimit.Limit{ginlimit.PerSecond(500), ginlimit.PerHour(6000)}, short, 300},
		"one has too small a burst":   {[]ginlimit.Limit{ginlimit.PerSecond(50), ginlimit.PerDay(10).WithBurst(7)}, short, 7},
		"a window":                    {[]ginlimit.Limit{fixedMinute}, short, 1000},
		"a quota":                     {[]ginlimit.Limit{quotaOfDay}, short, 1000},
		"beside a window":             {[]ginlimit.Limit{ginlimit.PerSecond(500), fixedMinute}, short, 500},
		"a sliding window beside one": {[]ginlimit.Limit{slidingMinute, quotaOfDay}, short, 1000},
	} {
		testkit.RunOnLeaseBench(t, name, func(t *testing.T, b *testkit.LeaseBench) {
			l := testkit.NewLimiter(t, b.Client(t), ginlimit.WithLease(row.lease))
			require.Equal(t, row.atOnce, testkit.Must(l.AllowUpTo(t.Context(), "at once", 2000, row.limits...)).Granted)
			most := max(1, row.atOnce-100)
			require.True(t, testkit.Must(l.AllowN(t.Context(), "k", most, row.limits...)).Allowed)
			require.Equal(t, row.atOnce-most, testkit.AdmittedNow(t, l, "k", row.limits...), "the rest one by one")
			require.Equal(t, row.atOnce, testkit.Must(l.Peek(t.Context(), "untouched", row.limits...)).Remaining)
			require.False(t, testkit.Must(l.AllowN(t.Context(), "untouched", row.atOnce+1, row.limits...)).Allowed)
		})
	}
}

// TestAnyLeaseAdmitsNoMore: of any limit and any lease, two processes that use it moderately, wait
// while they hold tokens, and then take all they can, never get more than the burst and what flows
// back.
func TestAnyLeaseAdmitsNoMore(t *testing.T) {
	for i, lease := range []time.Duration{0, 1, time.Millisecond, 20 * time.Millisecond, 1100 * time.Millisecond,
		24 * time.Hour} {
		for j, limit := range []ginlimit.Limit{
			ginlimit.PerSecond(1), ginlimit.PerSecond(100).WithBurst(1), ginlimit.PerSecond(1000).WithBurst(8),
			ginlimit.PerSecond(2000).WithBurst(30), ginlimit.PerSecond(700), ginlimit.PerDay(1_000_000).WithBurst(40),
			ginlimit.PerSecond(50_000).WithBurst(100), ginlimit.PerHour(1).WithBurst(50), ginlimit.Per(1, 24*time.Hour),
			ginlimit.PerSecond(1_000_000_000), ginlimit.PerSecond(1).WithBurst(math.MaxInt32),
			ginlimit.Per(37, 100*time.Millisecond).WithAlgorithm(ginlimit.FixedWindow),
		} {
			if (i+j)%2 != 0 && !testkit.Full() {
				continue // each lease has half of the limits, and each limit half of the leases
			}
			testkit.RunOnLeaseBench(t, fmt.Sprint(lease, " ", limit), func(t *testing.T, b *testkit.LeaseBench) {
				leases := ginlimit.WithLease(lease)
				all := []*testkit.Limiter{b.Limiter(t, leases), b.Limiter(t, leases)}
				admitted := newAdmissions(limit)
				take := func(i, n int) {
					r := testkit.Must(all[i%2].AllowUpTo(t.Context(), "k", n, limit))
					admitted.add(t, r.Granted)
				}
				for i := range 1 + testkit.Steps(4) {
					for j := range 20 {
						take(j/3, 1)
						b.Advance(time.Duration(j%3) * time.Millisecond)
					}
					b.Advance(min(lease/2, 200*time.Millisecond).Truncate(time.Millisecond))
					for j := range 25 {
						take(i+j%2, 1)
						take(i+j%2, 20)
					}
				}
			})
		}
	}
}

// admissions are the tokens that were admitted under a limit.
type admissions struct {
	limit  ginlimit.Limit
	level  float64 // of a bucket that has them all
	last   time.Time
	window time.Time // when the window began
}

func newAdmissions(limit ginlimit.Limit) *admissions {
	return &admissions{limit: limit, last: time.Now()}
}

// add admits tokens now, and requires that the limit allows them.
func (a *admissions) add(t *testing.T, n int) {
	t.Helper()
	now := time.Now()
	if a.limit.Algorithm != ginlimit.FixedWindow {
		a.level = max(0, a.level-float64(now.Sub(a.last))*float64(a.limit.Rate)/float64(a.limit.Period))
	} else if n > 0 && now.Sub(a.window) >= a.limit.Period {
		a.level, a.window = 0, now
	}
	a.last = now
	a.level += float64(n)
	require.LessOrEqual(t, a.level, float64(testkit.Burst(a.limit))+1e-6)
}

// TestOfTwoDefaultsOneStays: a default lease is left out beside a default ban, and both beside shares.
func TestOfTwoDefaultsOneStays(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t, ginlimit.WithLease(time.Second), ginlimit.WithBan(time.Hour, time.Hour))
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(600))
		r := testkit.Must(p.AllowN(t.Context(), "client", 600))
		require.Equal(t, ginlimit.FromRedis, r.Source)
		require.Equal(t, 600, r.Granted, "nothing of the burst is kept for leases")
		r = testkit.Must(p.Allow(t.Context(), "client"))
		require.Equal(t, ginlimit.CauseBan, r.Cause)

		shares := testkit.NewPolicy(t, l, "shared", ginlimit.PerMinute(8),
			ginlimit.WithShares(func(*gin.Context) (string, int) { return "a", 1 }))
		for want := range 5 {
			r = testkit.Must(shares.Share("a", 1).Allow(t.Context(), "all"))
			require.Equal(t, want < 4, r.Allowed)
		}
		require.Equal(t, ginlimit.CauseShare, r.Cause)
	})
}

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

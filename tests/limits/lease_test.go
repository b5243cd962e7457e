package limits_test

import (
	"context"
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

// TestOwnChangesEndALease at once, and those of another limiter within its life.
func TestOwnChangesEndALease(t *testing.T) {
	for name, change := range map[string]func(ctx context.Context, l *testkit.Limiter) error{
		"Block": func(ctx context.Context, l *testkit.Limiter) error {
			return l.Block(ctx, "k", 3*time.Hour, testkit.LeasePerMinute)
		},
		"Reset": func(ctx context.Context, l *testkit.Limiter) error { return l.Reset(ctx, "k", testkit.LeasePerMinute) },
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
				l, other := b.Limiter(t), b.Limiter(t)
				testkit.Sources(t, l, 10, testkit.LeasePerMinute)
				require.Equal(t, 1, l.Stats().Leases)
				require.NoError(t, change(t.Context(), other))
				require.Equal(t, "l", testkit.Sources(t, l, 1, testkit.LeasePerMinute), "it cannot know")
				require.NoError(t, change(t.Context(), l))
				require.Zero(t, l.Stats().Leases)
				r := testkit.Must(l.Allow(t.Context(), "k", testkit.LeasePerMinute))
				require.Equal(t, ginlimit.FromRedis, r.Source)
				require.Equal(t, name != "Block", r.Allowed)
			})
		})
	}
	t.Run("within its life", func(t *testing.T) {
		testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
			l, other := b.Limiter(t), b.Limiter(t)
			testkit.Sources(t, l, 10, testkit.LeasePerMinute)
			require.NoError(t, other.Block(t.Context(), "k", 3*time.Hour, testkit.LeasePerMinute))
			b.Advance(testkit.LeaseLife)
			require.False(t, testkit.Must(l.Allow(t.Context(), "k", testkit.LeasePerMinute)).Allowed)
		})
	})
}

// TestCloseGivesBack what is not used, as far as it is left when Redis does it at the latest.
func TestCloseGivesBack(t *testing.T) {
	for name, row := range map[string]struct {
		algorithm ginlimit.Algorithm
		limit     ginlimit.Limit
		after     time.Duration
		left      int
	}{
		"to a window":                      {ginlimit.FixedWindow, ginlimit.PerMinute(1000), 0, 1000 - 10},
		"to a token bucket":                {ginlimit.TokenBucket, testkit.LeasePerMinute, 0, 1000 - 11},
		"what has not flowed back":         {ginlimit.TokenBucket, testkit.LeasePerMinute, 4 * time.Second, 1000 - 11 + 4},
		"to one that was full by itself":   {ginlimit.TokenBucket, testkit.LeasePerMinute, 12 * time.Second, 1000},
		"after the lease has ended":        {ginlimit.FixedWindow, ginlimit.PerHour(1000), 70 * time.Second, 1000 - 10},
		"nothing to a window that is over": {ginlimit.FixedWindow, ginlimit.Per(1000, 30*time.Second), 31 * time.Second, 999},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
				algorithm := testkit.WithAlgorithm(row.algorithm)
				soon := ginlimit.WithTimeout(ginlimit.DefaultTimeout)
				l, other := b.Limiter(t, algorithm, soon), b.Limiter(t, algorithm, ginlimit.WithLease(0))
				if row.algorithm == ginlimit.TokenBucket { // whose callers count before they have a token
					require.Equal(t, "rrrrlrlllrl", testkit.Sources(t, l, 11, row.limit))
				} else {
					require.Equal(t, "rrrlrlllrl", testkit.Sources(t, l, 10, row.limit))
				}
				b.Advance(row.after)
				if row.left == 999 { // another's window
					testkit.Sources(t, other, 1, row.limit)
				}
				require.NoError(t, l.Close())
				r := testkit.Must(other.Peek(t.Context(), "k", row.limit))
				least := row.left
				if row.algorithm == ginlimit.TokenBucket { // of which a part of a token has flowed back until then
					least--
				}
				require.LessOrEqual(t, r.Remaining, row.left)
				require.GreaterOrEqual(t, r.Remaining, least)
				require.ErrorIs(t, testkit.Err(l.Allow(t.Context(), "k", row.limit)), ginlimit.ErrUnavailable)
				require.Zero(t, l.Stats().Leases)
			})
		})
	}
}

// TestFaultsOfWithLease are found with all others.
func TestFaultsOfWithLease(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	for name, lease := range map[string]time.Duration{"negative": -1, "above a day": 24*time.Hour + 1} {
		_, err := ginlimit.NewLimiter(rdb, ginlimit.WithLease(lease))
		require.ErrorContains(t, err, "WithLease", name)
		_, err = testkit.NewLimiter(t, rdb).Policy("test", ginlimit.PerSecond(1), ginlimit.WithLease(lease))
		require.ErrorContains(t, err, "WithLease", name)
	}
	sliding, lease := ginlimit.PerSecond(1).WithAlgorithm(ginlimit.SlidingWindow), ginlimit.WithLease(24*time.Hour)
	_, err := testkit.NewLimiter(t, rdb).Policy("test", ginlimit.PerMinute(1), sliding, lease)
	require.ErrorContains(t, err, "WithLease", "beside a token bucket")
	_, err = testkit.NewLimiter(t, rdb, lease).Policy("test", sliding)
	require.NoError(t, err, "the limiter's lease is for other policies")
}

// TestAClientsOwnSlidingWindowHasNoLease, as a token counts from when it was used: what was taken
// ahead would count from before.
func TestAClientsOwnSlidingWindowHasNoLease(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t)
		for name, limits := range map[string][]ginlimit.Limit{
			"alone":  {ginlimit.PerMinute(1000).WithAlgorithm(ginlimit.SlidingWindow)},
			"beside": {testkit.LeasePerMinute, ginlimit.PerMinute(1000).WithAlgorithm(ginlimit.SlidingWindow)},
		} {
			p := testkit.NewPolicy(t, l, name, testkit.LimitsFrom(limits...))
			for range 40 {
				require.Equal(t, ginlimit.FromRedis, testkit.Must(p.Allow(t.Context(), "alice")).Source, name)
				b.Advance(time.Millisecond)
			}
		}
		require.Zero(t, l.Stats().Leased)
	})
}

// TestAPolicyMayHaveNoLease though the limiter has one by default.
func TestAPolicyMayHaveNoLease(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t)
		p := testkit.Must(l.Policy("without", testkit.LeasePerMinute, ginlimit.WithLease(0)))
		testkit.Must(l.Policy("60/m", ginlimit.PerMinute(60), ginlimit.WithLease(0)))
		for range 20 {
			require.Equal(t, ginlimit.FromRedis, testkit.Must(p.Allow(t.Context(), "client")).Source)
		}
	})
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

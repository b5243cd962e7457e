package limits_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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
		r, err := l.Peek(t.Context(), "k", testkit.LeasePerMinute)
		require.NoError(t, err)
		require.Equal(t, testkit.LeaseBurst-17, r.Remaining)
		require.Equal(t, "r", testkit.Sources(t, l, 1, testkit.LeasePerMinute))

		want, err := l.Peek(t.Context(), "k", testkit.LeasePerMinute)
		require.NoError(t, err)
		r, err = l.AllowN(t.Context(), "k", 3, testkit.LeasePerMinute)
		require.NoError(t, err)
		require.Equal(t, ginlimit.Result{
			Allowed: true, Granted: 3, Limit: testkit.LeasePerMinute, Name: "test", Remaining: r.Remaining,
			ResetAfter: want.ResetAfter, Source: ginlimit.FromLease,
		}, r)
		next, err := l.AllowUpTo(t.Context(), "k", 2, testkit.LeasePerMinute)
		require.NoError(t, err)
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

// TestMoreThanALeaseHolds is taken from Redis, all or none, and the lease stays.
func TestMoreThanALeaseHolds(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t)
		require.Equal(t, "rrrrlrlllrl", testkit.Sources(t, l, 11, testkit.LeasePerMinute))
		ask := func(n int) ginlimit.Result {
			r, err := l.AllowN(t.Context(), "k", n, testkit.LeasePerMinute)
			require.NoError(t, err)
			return r
		}
		r := ask(500) // the lease holds 6
		require.Equal(t, ginlimit.FromRedis, r.Source)
		require.Equal(t, 500, r.Granted)
		require.Equal(t, testkit.LeaseBurst-17-500, r.Remaining)
		r = ask(370) // and Redis has 363
		require.Equal(t, ginlimit.FromRedis, r.Source)
		require.False(t, r.Allowed)
		require.Equal(t, 363, r.Remaining)
		r = ask(6)
		require.Equal(t, ginlimit.FromLease, r.Source)
		require.True(t, r.Allowed)
		require.Equal(t, 363, ask(363).Granted)
		require.False(t, ask(1).Allowed)
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
					r, err := l.Allow(t.Context(), "k", limit)
					require.NoError(t, err)
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
				r, err := l.Allow(t.Context(), "k", testkit.LeasePerMinute)
				require.NoError(t, err)
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
			r, err := l.Allow(t.Context(), "k", testkit.LeasePerMinute)
			require.NoError(t, err)
			require.False(t, r.Allowed)
		})
	})
}

// TestLosingRedisEndsLeases, and a caller who leaves does not.
func TestLosingRedisEndsLeases(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t)
		testkit.Sources(t, l, 10, testkit.LeasePerMinute)
		ctx, cancel := context.WithCancel(t.Context())
		b.Hook.Wait.Store(int64(time.Second))
		time.AfterFunc(time.Millisecond, cancel)
		_, err := l.Allow(ctx, "another", testkit.LeasePerMinute)
		require.ErrorIs(t, err, context.Canceled)
		b.Hook.Wait.Store(0)
		time.Sleep(time.Second)
		require.Equal(t, 1, l.Stats().Leases)

		b.Hook.Fail.Store(true)
		_, err = l.Allow(t.Context(), "another", testkit.LeasePerMinute)
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
		require.Zero(t, l.Stats().Leases)
		b.Hook.Fail.Store(false)
	})
}

// TestALateTripTakesWhatItsCallerWants from the process' share, not what it wanted of Redis ahead.
func TestALateTripTakesWhatItsCallerWants(t *testing.T) {
	for _, late := range []bool{true, false} {
		t.Run(map[bool]string{true: "late", false: "failed"}[late], func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
				l := b.Limiter(t, ginlimit.WithTimeout(200*time.Millisecond), ginlimit.WithFailureMode(ginlimit.FailLocal))
				require.Equal(t, "rrrrlrlllrlllllll", testkit.Sources(t, l, 17, testkit.LeasePerMinute))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if late {
					b.Hook.Wait.Store(int64(time.Second))
				} else {
					b.Hook.Fail.Store(true)
				}
				r, err := l.AllowUpTo(ctx, "k", 3, testkit.LeasePerMinute)
				require.NoError(t, err)
				require.Equal(t, ginlimit.FromLocal, r.Source)
				require.Equal(t, 3, r.Granted)
				require.Equal(t, testkit.LeaseBurst-3, r.Remaining)
				b.Hook.Wait.Store(0)
				b.Hook.Fail.Store(false)
				time.Sleep(2 * time.Second)
			})
		})
	}
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
				r, err := other.Peek(t.Context(), "k", row.limit)
				require.NoError(t, err)
				least := row.left
				if row.algorithm == ginlimit.TokenBucket { // of which a part of a token has flowed back until then
					least--
				}
				require.LessOrEqual(t, r.Remaining, row.left)
				require.GreaterOrEqual(t, r.Remaining, least)
				_, err = l.Allow(t.Context(), "k", row.limit)
				require.ErrorIs(t, err, ginlimit.ErrUnavailable)
				require.Zero(t, l.Stats().Leases)
			})
		})
	}
}

// TestCloseGivesBackWhatIsTakenAheadMeanwhile by a decision that is in flight when it begins.
func TestCloseGivesBackWhatIsTakenAheadMeanwhile(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l, other := b.Limiter(t, ginlimit.WithTimeout(ginlimit.DefaultTimeout)), b.Limiter(t)
		require.Equal(t, "rrrrlrlll", testkit.Sources(t, l, 9, testkit.LeasePerMinute))
		b.Hook.Wait.Store(int64(20 * time.Millisecond))
		var last sync.WaitGroup
		last.Go(func() {
			r, err := l.Allow(t.Context(), "k", testkit.LeasePerMinute)
			assert.NoError(t, err)
			assert.Equal(t, ginlimit.FromRedis, r.Source)
		})
		time.Sleep(10 * time.Millisecond)
		require.NoError(t, l.Close())
		last.Wait()
		b.Hook.Wait.Store(0)
		r, err := other.Peek(t.Context(), "k", testkit.LeasePerMinute)
		require.NoError(t, err)
		require.Equal(t, testkit.LeaseBurst-10, r.Remaining)
	})
}

// TestLeaseOverHTTP: headers, the source, and a policy's own lease.
func TestLeaseOverHTTP(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		var sources []ginlimit.Source
		l := testkit.NewLimiter(t, b.Client(t),
			ginlimit.WithHeaders(ginlimit.XRateLimit|ginlimit.RateLimitDraft),
			ginlimit.WithObserver(func(_ context.Context, e ginlimit.Event) { sources = append(sources, e.Source) }))
		api := []ginlimit.PolicyOption{testkit.LeasePerMinute, ginlimit.WithLease(testkit.LeaseLife)}
		leased := testkit.Serve(l.Handler("api", api...))
		plain := testkit.Serve(l.Handler("plain", testkit.LeasePerMinute))
		for range 11 {
			require.Equal(t, http.StatusOK, testkit.Get(leased, "/").Code)
		}
		rec := testkit.Get(leased, "/") // one of those that the tenth has taken ahead
		require.Equal(t, "5", testkit.Remaining(rec))
		require.Equal(t, "1000", rec.Header().Get("X-RateLimit-Limit"))
		require.Equal(t, "17", rec.Header().Get("X-RateLimit-Reset"), "by the bucket")
		require.Contains(t, rec.Header().Get("RateLimit"), `"api";r=5`)
		require.Empty(t, rec.Header().Get("X-RateLimit-Status"))
		require.Equal(t, ginlimit.FromLease, sources[11])

		require.Equal(t, "4", testkit.Remaining(testkit.Get(leased, "/")))

		before := l.Stats().Leased
		for range 20 {
			testkit.Get(plain, "/")
		}
		require.Equal(t, before, l.Stats().Leased, "the limiter has none by default")
	})
}

// TestAPolicyMayHaveNoLease though the limiter has one by default.
func TestAPolicyMayHaveNoLease(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t)
		p, err := l.Policy("without", testkit.LeasePerMinute, ginlimit.WithLease(0))
		require.NoError(t, err)
		_, err = l.Policy("60/m", ginlimit.PerMinute(60), ginlimit.WithLease(0))
		require.NoError(t, err)
		for range 20 {
			r, err := p.Allow(t.Context(), "client")
			require.NoError(t, err)
			require.Equal(t, ginlimit.FromRedis, r.Source)
		}
	})
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
				r, err := p.Allow(t.Context(), "alice")
				require.NoError(t, err)
				require.Equal(t, ginlimit.FromRedis, r.Source, name)
				b.Advance(time.Millisecond)
			}
		}
		require.Zero(t, l.Stats().Leased)
	})
}

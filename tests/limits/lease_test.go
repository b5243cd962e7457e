package limits_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Leases, by what a caller sees of them.

// TestLease: from the third call on, each call to Redis takes as many tokens ahead as were used before.
func TestLease(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t)
		require.Equal(t, "rrrlrlllrlllllll", testkit.Sources(t, l, 16, testkit.LeasePerMinute))
		r, err := l.Peek(t.Context(), "k", testkit.LeasePerMinute)
		require.NoError(t, err)
		require.Equal(t, 1000-16, r.Remaining)
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
		require.Equal(t, "rrrlrlllrl", testkit.Sources(t, l, 10, testkit.LeasePerMinute))
		ask := func(n int) ginlimit.Result {
			r, err := l.AllowN(t.Context(), "k", n, testkit.LeasePerMinute)
			require.NoError(t, err)
			return r
		}
		r := ask(500) // the lease holds 6
		require.Equal(t, ginlimit.FromRedis, r.Source)
		require.Equal(t, 500, r.Granted)
		require.Equal(t, 1000-16-500, r.Remaining)
		r = ask(490) // and Redis has 484
		require.Equal(t, ginlimit.FromRedis, r.Source)
		require.False(t, r.Allowed)
		require.Equal(t, 484, r.Remaining)
		r = ask(6)
		require.Equal(t, ginlimit.FromLease, r.Source)
		require.True(t, r.Allowed)
		require.Equal(t, 484, ask(484).Granted)
		require.False(t, ask(1).Allowed)
	})
}

// TestLeaseOfAFixedWindow ends with it. The clock is trusted once it was seen to run.
func TestLeaseOfAFixedWindow(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := testkit.NewLimiter(t, b.Client(t), ginlimit.WithLease(testkit.LeaseLife),
			testkit.WithAlgorithm(ginlimit.FixedWindow))
		limit := ginlimit.PerMinute(100)
		require.Equal(t, "rrrr", testkit.Sources(t, l, 4, limit))
		b.Advance(10 * time.Millisecond)
		require.Equal(t, "r", testkit.Sources(t, l, 1, limit))
		require.Equal(t, "rl", testkit.Sources(t, l, 2, limit), "it runs")
		b.Advance(time.Minute - 15*time.Millisecond)
		require.Equal(t, "r", testkit.Sources(t, l, 1, limit), "a thousandth early")
		b.Advance(time.Second)
		require.Equal(t, "r", testkit.Sources(t, l, 1, limit))
	})
}

// TestOwnChangesEndALease at once, and those of another limiter within its life.
func TestOwnChangesEndALease(t *testing.T) {
	for name, change := range map[string]func(ctx context.Context, l *testkit.Limiter) error{
		"Block": func(ctx context.Context, l *testkit.Limiter) error {
			return l.Block(ctx, "k", 3*time.Hour, testkit.LeasePerMinute)
		},
		"Refund": func(ctx context.Context, l *testkit.Limiter) error {
			return l.Refund(ctx, "k", 1, testkit.LeasePerMinute)
		},
		"Reset": func(ctx context.Context, l *testkit.Limiter) error { return l.Reset(ctx, "k", testkit.LeasePerMinute) },
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
				l, other := b.Limiter(t), b.Limiter(t)
				testkit.Sources(t, l, 9, testkit.LeasePerMinute)
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
			testkit.Sources(t, l, 9, testkit.LeasePerMinute)
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
		testkit.Sources(t, l, 9, testkit.LeasePerMinute)
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
				require.Equal(t, "rrrlrlllrlllllll", testkit.Sources(t, l, 16, testkit.LeasePerMinute))
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
				require.Equal(t, 1000-3, r.Remaining)
				b.Hook.Wait.Store(0)
				b.Hook.Fail.Store(false)
				time.Sleep(2 * time.Second)
			})
		})
	}
}

// TestCloseGivesBack exactly what is not used, unless it may be void before it is back.
func TestCloseGivesBack(t *testing.T) {
	for name, row := range map[string]struct {
		algorithm ginlimit.Algorithm
		limit     ginlimit.Limit
		timeout   time.Duration
		left      int
	}{
		"to a window": {ginlimit.FixedWindow, ginlimit.PerMinute(1000),
			ginlimit.DefaultTimeout, 1000 - 10},
		"to a token bucket":               {ginlimit.TokenBucket, testkit.LeasePerMinute, ginlimit.DefaultTimeout, 1000 - 10},
		"nothing, as the way may be long": {ginlimit.TokenBucket, testkit.LeasePerMinute, 10 * time.Second, 1000 - 16},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
				l := b.Limiter(t, testkit.WithAlgorithm(row.algorithm), ginlimit.WithTimeout(row.timeout))
				other := b.Limiter(t, testkit.WithAlgorithm(row.algorithm))
				b.Advance(0)
				require.Equal(t, "rrrlrlllrl", testkit.Sources(t, l, 10, row.limit))
				require.NoError(t, l.Close())
				r, err := other.Peek(t.Context(), "k", row.limit)
				require.NoError(t, err)
				require.Equal(t, row.left, r.Remaining)
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
		require.Equal(t, "rrrlrlll", testkit.Sources(t, l, 8, testkit.LeasePerMinute))
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
		require.Equal(t, 1000-9, r.Remaining)
	})
}

// TestLeaseOverHTTP: headers, the source, a policy's own lease, and none for what may be given back.
func TestLeaseOverHTTP(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		var sources []ginlimit.Source
		l := testkit.NewLimiter(t, b.Client(t), testkit.TrustsClock(),
			ginlimit.WithHeaders(ginlimit.XRateLimit|ginlimit.RateLimitDraft),
			ginlimit.WithObserver(func(_ context.Context, e ginlimit.Event) { sources = append(sources, e.Source) }))
		api := []ginlimit.PolicyOption{testkit.LeasePerMinute, ginlimit.WithLease(testkit.LeaseLife)}
		leased := testkit.Serve(l.Handler("api", api...))
		refunded := testkit.Serve(l.Handler("api",
			append(api, ginlimit.WithRefund(func(*gin.Context) bool { return true }))...))
		plain := testkit.Serve(l.Handler("plain", testkit.LeasePerMinute))
		for range 10 {
			require.Equal(t, http.StatusOK, testkit.Get(leased, "/").Code)
		}
		rec := testkit.Get(leased, "/") // one of those that the ninth has taken ahead
		require.Equal(t, "5", testkit.Remaining(rec))
		require.Equal(t, "1000", rec.Header().Get("X-RateLimit-Limit"))
		require.Equal(t, "16", rec.Header().Get("X-RateLimit-Reset"), "by the bucket")
		require.Contains(t, rec.Header().Get("RateLimit"), `"api";r=5`)
		require.Empty(t, rec.Header().Get("X-RateLimit-Status"))
		require.Equal(t, ginlimit.FromLease, sources[10])

		require.Equal(t, http.StatusOK, testkit.Get(refunded, "/").Code)
		require.Equal(t, ginlimit.FromRedis, sources[11])
		r, err := l.Peek(t.Context(), ginlimit.Key("api", "192.0.2.1"), testkit.LeasePerMinute)
		require.NoError(t, err)
		require.Equal(t, 1000-16, r.Remaining, "its token is given back")
		require.Equal(t, 1, l.Stats().Leases, "the lease stays")
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

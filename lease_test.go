package ginlimit_test

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Leases, by what a caller sees of them.

// leaseLife and leasePerMinute have up to 60 tokens flow back in the life of a lease, one per second.
const leaseLife = time.Minute

var leasePerMinute = ginlimit.PerMinute(60).WithBurst(1000)

// leaseBench is a server whose clock runs with that of a bubble.
type leaseBench struct {
	*testkit.Bubble
	hook *leaseHook
}

// leaseHook has commands wait, or fail.
type leaseHook struct {
	wait atomic.Int64
	fail atomic.Bool
}

func (h *leaseHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *leaseHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		time.Sleep(time.Duration(h.wait.Load()))
		if h.fail.Load() {
			cmd.SetErr(io.ErrUnexpectedEOF)
			return io.ErrUnexpectedEOF
		}
		return next(ctx, cmd)
	}
}

func (h *leaseHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		time.Sleep(time.Duration(h.wait.Load()))
		if h.fail.Load() {
			for _, cmd := range cmds {
				cmd.SetErr(io.ErrUnexpectedEOF)
			}
			return io.ErrUnexpectedEOF
		}
		return next(ctx, cmds)
	}
}

func onLeaseBench(t *testing.T, test func(t *testing.T, b *leaseBench)) {
	t.Helper()
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		bench := &leaseBench{b, new(leaseHook)}
		bench.advance(0)
		test(t, bench)
	})
}

func (b *leaseBench) advance(d time.Duration) {
	time.Sleep(d)
	b.Mini.SetTime(time.Now())
}

func (b *leaseBench) client(t *testing.T) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true, Dialer: b.Dial})
	rdb.AddHook(b.hook)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func (b *leaseBench) limiter(t *testing.T, opts ...ginlimit.Option) *ginlimit.Limiter {
	return testkit.NewLimiter(t, b.client(t), append([]ginlimit.Option{ginlimit.WithLease(leaseLife), testkit.TrustsClock()}, opts...)...)
}

// sources makes calls for a token, and returns where they were decided, by a letter each.
func sources(t *testing.T, limiter *ginlimit.Limiter, calls int, limit ginlimit.Limit) (letters string) {
	t.Helper()
	for range calls {
		r, err := limiter.Allow(t.Context(), "k", limit)
		require.NoError(t, err)
		letters += r.Source.String()[:1]
	}
	return letters
}

// TestLease: from the third call on, each call to Redis takes as many tokens ahead as were used before.
func TestLease(t *testing.T) {
	onLeaseBench(t, func(t *testing.T, b *leaseBench) {
		l := b.limiter(t)
		require.Equal(t, "rrrlrlllrlllllll", sources(t, l, 16, leasePerMinute))
		r, err := l.Peek(t.Context(), "k", leasePerMinute)
		require.NoError(t, err)
		require.Equal(t, 1000-16, r.Remaining)
		require.Equal(t, "r", sources(t, l, 1, leasePerMinute))

		want, err := l.Peek(t.Context(), "k", leasePerMinute)
		require.NoError(t, err)
		r, err = l.AllowN(t.Context(), "k", 3, leasePerMinute)
		require.NoError(t, err)
		require.Equal(t, ginlimit.Result{
			Allowed: true, Granted: 3, Limit: leasePerMinute, Remaining: r.Remaining, ResetAfter: want.ResetAfter, Source: ginlimit.FromLease,
		}, r)
		next, err := l.AllowUpTo(t.Context(), "k", 2, leasePerMinute)
		require.NoError(t, err)
		require.Equal(t, ginlimit.FromLease, next.Source)
		require.Equal(t, 2, next.Granted)
		require.Equal(t, r.Remaining-2, next.Remaining)
		stats := l.Stats()
		require.Equal(t, 1, stats.Leases)
		require.EqualValues(t, 13, stats.Leased)

		b.advance(leaseLife)
		require.Zero(t, l.Stats().Leases)
		require.Equal(t, "r", sources(t, l, 1, leasePerMinute))
	})
}

// TestMoreThanALeaseHolds is taken from Redis, all or none, and the lease stays.
func TestMoreThanALeaseHolds(t *testing.T) {
	onLeaseBench(t, func(t *testing.T, b *leaseBench) {
		l := b.limiter(t)
		require.Equal(t, "rrrlrlllrl", sources(t, l, 10, leasePerMinute))
		ask := func(n int) ginlimit.Result {
			r, err := l.AllowN(t.Context(), "k", n, leasePerMinute)
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
	onLeaseBench(t, func(t *testing.T, b *leaseBench) {
		l := testkit.NewLimiter(t, b.client(t), ginlimit.WithLease(leaseLife), ginlimit.WithAlgorithm(ginlimit.FixedWindow))
		limit := ginlimit.PerMinute(100)
		require.Equal(t, "rrrr", sources(t, l, 4, limit))
		b.advance(10 * time.Millisecond)
		require.Equal(t, "r", sources(t, l, 1, limit))
		require.Equal(t, "rl", sources(t, l, 2, limit), "it runs")
		b.advance(time.Minute - 15*time.Millisecond)
		require.Equal(t, "r", sources(t, l, 1, limit), "a thousandth early")
		b.advance(time.Second)
		require.Equal(t, "r", sources(t, l, 1, limit))
	})
}

// TestOwnChangesEndALease at once, and those of another limiter within its life.
func TestOwnChangesEndALease(t *testing.T) {
	for name, change := range map[string]func(ctx context.Context, l *ginlimit.Limiter) error{
		"Block": func(ctx context.Context, l *ginlimit.Limiter) error {
			return l.Block(ctx, "k", 3*time.Hour, leasePerMinute)
		},
		"Refund": func(ctx context.Context, l *ginlimit.Limiter) error { return l.Refund(ctx, "k", 1, leasePerMinute) },
		"Reset":  func(ctx context.Context, l *ginlimit.Limiter) error { return l.Reset(ctx, "k", leasePerMinute) },
	} {
		t.Run(name, func(t *testing.T) {
			onLeaseBench(t, func(t *testing.T, b *leaseBench) {
				l, other := b.limiter(t), b.limiter(t)
				sources(t, l, 9, leasePerMinute)
				require.Equal(t, 1, l.Stats().Leases)
				require.NoError(t, change(t.Context(), other))
				require.Equal(t, "l", sources(t, l, 1, leasePerMinute), "it cannot know")
				require.NoError(t, change(t.Context(), l))
				require.Zero(t, l.Stats().Leases)
				r, err := l.Allow(t.Context(), "k", leasePerMinute)
				require.NoError(t, err)
				require.Equal(t, ginlimit.FromRedis, r.Source)
				require.Equal(t, name != "Block", r.Allowed)
			})
		})
	}
	t.Run("within its life", func(t *testing.T) {
		onLeaseBench(t, func(t *testing.T, b *leaseBench) {
			l, other := b.limiter(t), b.limiter(t)
			sources(t, l, 9, leasePerMinute)
			require.NoError(t, other.Block(t.Context(), "k", 3*time.Hour, leasePerMinute))
			b.advance(leaseLife)
			r, err := l.Allow(t.Context(), "k", leasePerMinute)
			require.NoError(t, err)
			require.False(t, r.Allowed)
		})
	})
}

// TestLosingRedisEndsLeases, and a caller who leaves does not.
func TestLosingRedisEndsLeases(t *testing.T) {
	onLeaseBench(t, func(t *testing.T, b *leaseBench) {
		l := b.limiter(t)
		sources(t, l, 9, leasePerMinute)
		ctx, cancel := context.WithCancel(t.Context())
		b.hook.wait.Store(int64(time.Second))
		time.AfterFunc(time.Millisecond, cancel)
		_, err := l.Allow(ctx, "another", leasePerMinute)
		require.ErrorIs(t, err, context.Canceled)
		b.hook.wait.Store(0)
		time.Sleep(time.Second)
		require.Equal(t, 1, l.Stats().Leases)

		b.hook.fail.Store(true)
		_, err = l.Allow(t.Context(), "another", leasePerMinute)
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
		require.Zero(t, l.Stats().Leases)
		b.hook.fail.Store(false)
	})
}

// TestALateTripTakesWhatItsCallerWants from the process' share, not what it wanted of Redis ahead.
func TestALateTripTakesWhatItsCallerWants(t *testing.T) {
	for _, late := range []bool{true, false} {
		t.Run(map[bool]string{true: "late", false: "failed"}[late], func(t *testing.T) {
			onLeaseBench(t, func(t *testing.T, b *leaseBench) {
				l := b.limiter(t, ginlimit.WithTimeout(200*time.Millisecond), ginlimit.WithFailure(ginlimit.FailLocal))
				require.Equal(t, "rrrlrlllrlllllll", sources(t, l, 16, leasePerMinute))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if late {
					b.hook.wait.Store(int64(time.Second))
				} else {
					b.hook.fail.Store(true)
				}
				r, err := l.AllowUpTo(ctx, "k", 3, leasePerMinute)
				require.NoError(t, err)
				require.Equal(t, ginlimit.FromLocal, r.Source)
				require.Equal(t, 3, r.Granted)
				require.Equal(t, 1000-3, r.Remaining)
				b.hook.wait.Store(0)
				b.hook.fail.Store(false)
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
		"to a window":                     {ginlimit.FixedWindow, ginlimit.PerMinute(1000), ginlimit.DefaultTimeout, 1000 - 10},
		"to a token bucket":               {ginlimit.TokenBucket, leasePerMinute, ginlimit.DefaultTimeout, 1000 - 10},
		"nothing, as the way may be long": {ginlimit.TokenBucket, leasePerMinute, 10 * time.Second, 1000 - 16},
	} {
		t.Run(name, func(t *testing.T) {
			onLeaseBench(t, func(t *testing.T, b *leaseBench) {
				l := b.limiter(t, ginlimit.WithAlgorithm(row.algorithm), ginlimit.WithTimeout(row.timeout))
				other := b.limiter(t, ginlimit.WithAlgorithm(row.algorithm))
				b.advance(0)
				require.Equal(t, "rrrlrlllrl", sources(t, l, 10, row.limit))
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
	onLeaseBench(t, func(t *testing.T, b *leaseBench) {
		l, other := b.limiter(t, ginlimit.WithTimeout(ginlimit.DefaultTimeout)), b.limiter(t)
		require.Equal(t, "rrrlrlll", sources(t, l, 8, leasePerMinute))
		b.hook.wait.Store(int64(20 * time.Millisecond))
		var last sync.WaitGroup
		last.Go(func() {
			r, err := l.Allow(t.Context(), "k", leasePerMinute)
			assert.NoError(t, err)
			assert.Equal(t, ginlimit.FromRedis, r.Source)
		})
		time.Sleep(10 * time.Millisecond)
		require.NoError(t, l.Close())
		last.Wait()
		b.hook.wait.Store(0)
		r, err := other.Peek(t.Context(), "k", leasePerMinute)
		require.NoError(t, err)
		require.Equal(t, 1000-9, r.Remaining)
	})
}

// TestLeaseOverHTTP: headers, the outcome, a policy's own lease, and none for what may be given back.
func TestLeaseOverHTTP(t *testing.T) {
	onLeaseBench(t, func(t *testing.T, b *leaseBench) {
		var outcomes []ginlimit.Outcome
		l := testkit.NewLimiter(t, b.client(t), testkit.TrustsClock(), ginlimit.WithHeaders(ginlimit.XRateLimit|ginlimit.RateLimitDraft),
			ginlimit.WithObserver(func(_ context.Context, e ginlimit.Event) { outcomes = append(outcomes, e.Outcome) }))
		api := []ginlimit.Option{ginlimit.WithName("api"), ginlimit.WithLease(leaseLife)}
		leased := serve(l.Handler(leasePerMinute, api...))
		refunded := serve(l.Handler(leasePerMinute, append(api, ginlimit.WithRefund(func(*gin.Context) bool { return true }))...))
		plain := serve(l.Handler(leasePerMinute, ginlimit.WithName("plain")))
		for range 10 {
			require.Equal(t, http.StatusOK, get(leased, "/").Code)
		}
		rec := get(leased, "/") // one of those that the ninth has taken ahead
		require.Equal(t, "5", remaining(rec))
		require.Equal(t, "1000", rec.Header().Get("X-RateLimit-Limit"))
		require.Equal(t, "16", rec.Header().Get("X-RateLimit-Reset"), "by the bucket")
		require.Contains(t, rec.Header().Get("RateLimit"), `"api";r=5`)
		require.Empty(t, rec.Header().Get("X-RateLimit-Status"))
		require.Equal(t, ginlimit.OutcomeAllowedFromLease, outcomes[10])

		require.Equal(t, http.StatusOK, get(refunded, "/").Code)
		require.Equal(t, ginlimit.OutcomeAllowed, outcomes[11])
		r, err := l.Peek(t.Context(), ginlimit.Key("api", "192.0.2.1"), leasePerMinute)
		require.NoError(t, err)
		require.Equal(t, 1000-16, r.Remaining, "its token is given back")
		require.Equal(t, 1, l.Stats().Leases, "the lease stays")
		require.Equal(t, "4", remaining(get(leased, "/")))

		before := l.Stats().Leased
		for range 20 {
			get(plain, "/")
		}
		require.Equal(t, before, l.Stats().Leased, "the limiter has none by default")
	})
}

// TestAPolicyMayHaveNoLease though the limiter has one by default.
func TestAPolicyMayHaveNoLease(t *testing.T) {
	onLeaseBench(t, func(t *testing.T, b *leaseBench) {
		l := b.limiter(t)
		p, err := l.Policy(leasePerMinute, ginlimit.WithName("without"), ginlimit.WithLease(0))
		require.NoError(t, err)
		_, err = l.Policy(ginlimit.PerMinute(60), ginlimit.WithAlgorithm(ginlimit.SlidingWindow), ginlimit.WithLease(0))
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
	rdb, _ := newMiniredis(t)
	for name, opts := range map[string][]ginlimit.Option{
		"negative":       {ginlimit.WithLease(-1)},
		"above a day":    {ginlimit.WithLease(24*time.Hour + 1)},
		"sliding window": {ginlimit.WithLease(time.Second), ginlimit.WithAlgorithm(ginlimit.SlidingWindow)},
	} {
		_, err := ginlimit.NewLimiter(rdb, opts...)
		require.ErrorContains(t, err, "WithLease", name)
		l := testkit.NewLimiter(t, rdb)
		_, err = l.Policy(ginlimit.PerSecond(1), opts...)
		require.ErrorContains(t, err, "WithLease", name)
	}
	_, err := testkit.NewLimiter(t, rdb, ginlimit.WithLease(24*time.Hour)).Policy(ginlimit.PerSecond(1), ginlimit.WithAlgorithm(ginlimit.SlidingWindow))
	require.ErrorContains(t, err, "WithLease", "of the limiter's lease and the policy's algorithm")
}

package limits_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// The suite that every engine passes. Limits are of minutes and more, so that a real clock, which runs
// ahead by milliseconds, does not show in whole tokens.

// TestChangedLimit: a bucket is as long from full under another limit as it was, alone and beside another.
func TestChangedLimit(t *testing.T) {
	testkit.OnEveryEngine(t, func(t *testing.T, e testkit.Engine) {
		free, paid, days := ginlimit.PerHour(10), ginlimit.PerHour(1000), ginlimit.PerDay(1000)
		e.Allowed(t, 10, 0, free)
		e.Denied(t, 1, 3600*time.Millisecond, paid) // as empty as before, but refilled at the new rate
		for range 3 {                               // far above the new capacity
			r := e.AllowN(t, 1, free.WithBurst(1), days)
			require.False(t, r.Allowed)
			e.RequireDuration(t, time.Hour, r.ResetAfter)
		}
		e.Advance(30 * time.Minute)
		e.Allowed(t, 1, 499, paid)
		// Half empty, and kept with a rest of 29,999 units, which under the other limit would be 30 seconds.
		e.Allowed(t, 30000, 29999, ginlimit.PerMinute(59999))
		e.Denied(t, 1, 30001*time.Millisecond, ginlimit.PerMinute(1))
		e.Denied(t, 1, 30001*time.Millisecond, ginlimit.PerMinute(1), ginlimit.PerDay(5))
	})
}

func TestUnlimitedAndProhibitedAreNotCounted(t *testing.T) {
	testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
		unlimited, prohibited, ctx := ginlimit.PerMinute(-1), ginlimit.PerMinute(0), t.Context()
		r := e.AllowN(t, testkit.AsInt(1<<40), unlimited)
		require.Equal(t, ginlimit.Result{
			Allowed: true, Granted: testkit.AsInt(1 << 40), Limit: unlimited, Name: "test", Remaining: math.MaxInt,
			Source: ginlimit.FromPolicy}, r)
		r = e.AllowN(t, 1, prohibited)
		require.Equal(t, ginlimit.Result{Limit: prohibited, Name: "test", RetryAfter: ginlimit.Never,
			Source: ginlimit.FromPolicy,
			Cause:  ginlimit.CauseNever}, r)

		// Prohibited wins, and charges no other limit; unlimited adds nothing to one.
		hour := ginlimit.PerHour(2)
		require.False(t, e.AllowN(t, 1, hour, prohibited).Allowed)
		e.Allowed(t, 1, 1, hour, unlimited)

		for _, limit := range []ginlimit.Limit{unlimited, prohibited} {
			require.NoError(t, e.Limiter.Refund(ctx, "k", 1, limit))
			require.NoError(t, e.Limiter.Reset(ctx, "k", limit))
		}
		require.NoError(t, e.Limiter.Block(ctx, "k", time.Hour, prohibited))
		require.NoError(t, e.Limiter.Block(ctx, "b", time.Hour, hour, prohibited))
		r = testkit.Must(e.Limiter.Peek(ctx, "b", hour))
		require.False(t, r.Allowed, "the limit that is counted is blocked")
		require.ErrorIs(t, e.Limiter.Block(ctx, "k", time.Hour, unlimited), ginlimit.ErrInvalidArgument)
	})
}

func TestKeysDoNotMeet(t *testing.T) {
	testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
		limit := ginlimit.PerHour(1)
		keys := []string{"a", "A", "a ", "a:h", "a}", "a{", "{a}", "{}", "}", "é", "\x00", "a\n", "#", "##",
			"0123456789012345678901234567890123456789012345678901234567890123",
			"01234567890123456789012345678901234567890123456789012345678901234",
			"01234567890123456789012345678901234567890123456789012345678901235"}
		for _, key := range keys { // nobody gets another's bucket by naming its text in the slot
			if text := string(clientkey.Text{}.Append(nil, "", key)); text != key {
				keys = append(keys, text)
			}
		}
		for _, key := range keys {
			r, err := e.Limiter.Allow(t.Context(), key, limit)
			require.NoError(t, err, "%q", key)
			require.True(t, r.Allowed, "%q", key)
		}
	})
}

func TestLargestLimitsStayExact(t *testing.T) {
	testkit.OnEveryEngine(t, func(t *testing.T, e testkit.Engine) {
		if !testkit.Has64Bits {
			t.Skip("an int has 32 bits")
		}
		const drain = 1 << 20
		burst := testkit.AsInt(1<<53 - 1 - drain) // the largest: with the drain it is just exact
		limit := ginlimit.Limit{Rate: drain, Period: time.Millisecond, Burst: burst}
		r := e.AllowN(t, burst-1, limit)
		require.True(t, r.Allowed)
		require.GreaterOrEqual(t, r.Remaining, 1)
		r = e.AllowN(t, burst, limit)
		require.False(t, r.Allowed)
		e.RequireDuration(t, 8589934591*time.Millisecond, r.RetryAfter)

		r, err := e.Limiter.Allow(t.Context(), "k", limit.WithBurst(burst+1))
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
		require.Zero(t, r)

		require.NoError(t, e.Limiter.Block(t.Context(), "b", 1<<62, ginlimit.PerMinute(1)))
		for _, ask := range []func(context.Context, string, ...ginlimit.Limit) (ginlimit.Result,
			error){e.Limiter.Peek, e.Limiter.Allow} {
			r, err = ask(t.Context(), "b", ginlimit.Limit{Rate: testkit.AsInt(1 << 40), Period: time.Minute})
			require.NoError(t, err, "a level that passes every number is told as the largest one")
			require.False(t, r.Allowed)

			r = testkit.Must(ask(t.Context(), "b", ginlimit.Limit{Rate: 120_000_000, Period: time.Minute, Burst: 991}))
			require.Equal(t, (1<<53-1-990+1999)/2000*time.Millisecond, r.RetryAfter, "by the unit")
		}
	})
}

func TestWhatCannotBeBlocked(t *testing.T) {
	t.Parallel()
	l := testkit.NewLocal(t)
	for limit, want := range map[ginlimit.Limit]string{
		ginlimit.InFlight(3): "there are only requests in flight; give the policy a rate too",
		ginlimit.Unlimited(): "unlimited is never counted, so it has no bucket to block",
	} {
		err := testkit.NewPolicy(t, l, limit.String(), limit).Block(t.Context(), "k", time.Hour)
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
		require.ErrorContains(t, err, want)
	}
}

func TestRaisedLimitEndsNoBlock(t *testing.T) {
	testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
		small, large, ctx := ginlimit.PerMinute(1), ginlimit.PerMinute(6000), t.Context()
		require.NoError(t, e.Limiter.Block(ctx, "k", time.Hour, small))
		e.Denied(t, 1, time.Hour, large)
		other := ginlimit.PerDay(9000)
		r := e.AllowN(t, 1, large, other)
		require.False(t, r.Allowed)
		e.RequireDuration(t, time.Hour, r.RetryAfter)
		require.NoError(t, e.Limiter.Refund(ctx, "k", 1, large))
		e.Denied(t, 1, time.Hour, large)
		e.Advance(time.Hour)
		require.True(t, e.AllowN(t, 1, large, other).Allowed)
	})
}

// Guarantee 7, of this process: invented clients, of whom there are more than there is room for,
// are not all remembered.
func TestLocalMemoryIsBounded(t *testing.T) { // not parallel: it measures the heap
	limiter := testkit.WithoutRedis(t)
	limit := ginlimit.PerDay(5)
	const room = 32_768 // buckets; internal/memory holds the number that is documented
	testkit.SetLocalBuckets(limiter.Limiter, room)
	const banned, invented = 64, room * 9 / 8
	for i := range banned {
		testkit.RequireMade(t, limiter.Block(t.Context(), fmt.Sprint("banned ", i), 100*24*time.Hour, limit))
	}
	before := testkit.HeapInUse()
	for i := range invented {
		if _, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), limit); err != nil {
			t.Fatal(err)
		}
	}
	perBucket := float64(testkit.HeapInUse()-before) / room
	t.Logf("%.0f bytes for each of %d buckets", perBucket, room)
	require.Less(t, perBucket, 400.0)
	kept := limiter.Stats().LocalBuckets
	require.LessOrEqual(t, kept, room)
	require.GreaterOrEqual(t, kept, room*9/10)
	for i := range banned {
		r := testkit.Must(limiter.Peek(t.Context(), fmt.Sprint("banned ", i), limit))
		require.False(t, r.Allowed, "what takes longest to be full is forgotten last")
	}
}

func TestBadArgumentsAreErrorsAndTakeNothing(t *testing.T) {
	testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
		ctx, l, ok := t.Context(), e.Limiter, ginlimit.PerHour(3)
		with := map[string]func(key string, n int, limits ...ginlimit.Limit) error{
			"AllowN": func(key string, n int, limits ...ginlimit.Limit) error {
				r, err := l.AllowN(ctx, key, n, limits...)
				assert.Zero(t, r)
				return err
			},
			"AllowUpTo": func(key string, n int, limits ...ginlimit.Limit) error {
				_, err := l.AllowUpTo(ctx, key, n, limits...)
				return err
			},
			"Refund": func(key string, n int, limits ...ginlimit.Limit) error {
				return l.Refund(ctx, key, n, limits...)
			},
			"Allow": func(key string, n int, limits ...ginlimit.Limit) error {
				_, err := l.Allow(ctx, key, limits...)
				return err
			},
			"Peek": func(key string, n int, limits ...ginlimit.Limit) error {
				_, err := l.Peek(ctx, key, limits...)
				return err
			},
			"Wait":  func(key string, n int, limits ...ginlimit.Limit) error { return l.Wait(ctx, key, limits...) },
			"Reset": func(key string, n int, limits ...ginlimit.Limit) error { return l.Reset(ctx, key, limits...) },
			"Block": func(key string, n int, limits ...ginlimit.Limit) error {
				return l.Block(ctx, key, time.Second, limits...)
			},
		}
		for name, call := range with {
			assert.ErrorIs(t, call("", 1, ok), ginlimit.ErrNoKey, name)
			assert.ErrorIs(t, call("k", 1), ginlimit.ErrInvalidArgument, name)
			assert.ErrorIs(t, call("k", 1, ginlimit.Limit{}), ginlimit.ErrInvalidArgument, name)
			assert.ErrorIs(t, call("k", 1, ok, ginlimit.PerHour(4)), ginlimit.ErrInvalidArgument, name)
			both := call("k", 1, ginlimit.Limit{Rate: 1, Period: -1}, ginlimit.Limit{Rate: math.MaxInt, Period: 7, Burst: -1})
			assert.ErrorIs(t, both, ginlimit.ErrInvalidArgument, name)
			assert.Contains(t, both.Error(), "burst is negative", name)
			assert.Contains(t, both.Error(), "period is negative", name)
		}
		for _, name := range []string{"AllowN", "AllowUpTo", "Refund"} {
			for _, n := range []int{0, -1, math.MinInt} {
				assert.ErrorIs(t, with[name]("k", n, ok), ginlimit.ErrInvalidArgument, name)
				assert.NotErrorIs(t, with[name]("k", n, ok), ginlimit.ErrNoKey, name)
				assert.ErrorIs(t, with[name]("", n, ok), ginlimit.ErrInvalidArgument, name)
				assert.ErrorIs(t, with[name]("", n, ok), ginlimit.ErrNoKey, name)
			}
		}
		for _, d := range []time.Duration{0, -1, math.MinInt64} {
			assert.ErrorIs(t, l.Block(ctx, "k", d, ok), ginlimit.ErrInvalidArgument)
			assert.NotErrorIs(t, l.Block(ctx, "k", d, ok), ginlimit.ErrNoKey)
		}
		if e.Algorithm == ginlimit.TokenBucket {
			assert.ErrorIs(t, l.Block(ctx, "k", math.MaxInt64, ginlimit.PerSecond(testkit.AsInt(1<<40))),
				ginlimit.ErrInvalidArgument)
		}
		assert.ErrorIs(t, l.Wait(ctx, "k", ginlimit.PerHour(0)), ginlimit.ErrInvalidArgument)
		e.Allowed(t, 3, 0, ok)
	})
}

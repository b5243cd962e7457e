package limits_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What every engine does of a block.

func TestBlockDeniesForItsTime(t *testing.T) {
	testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
		limit, ctx := ginlimit.PerMinute(10), t.Context()
		require.NoError(t, e.Limiter.Block(ctx, "k", time.Hour, limit))
		e.Denied(t, 1, time.Hour, limit)
		require.NoError(t, e.Limiter.Block(ctx, "k", time.Minute, limit)) // not shortened
		require.NoError(t, e.Limiter.Refund(ctx, "k", 10, limit))         // not even by a refund
		e.Advance(59 * time.Minute)
		e.Denied(t, 1, time.Minute, limit)
		e.Advance(time.Minute)
		left := 0
		if e.Algorithm != ginlimit.TokenBucket {
			left = 9
		}
		e.Allowed(t, 1, left, limit)
		require.NoError(t, e.Limiter.Refund(ctx, "k", 1, limit)) // which works again
		e.Allowed(t, 1, left, limit)
	})
}

// TestBlockLeavesNothingBehind: once a block has ended, a bucket is like any other, even if it is still empty.
func TestBlockLeavesNothingBehind(t *testing.T) {
	testkit.OnEveryEngine(t, func(t *testing.T, e testkit.Engine) {
		limit, ctx := ginlimit.PerHour(10), t.Context()
		e.Allowed(t, 10, 0, limit)
		require.NoError(t, e.Limiter.Block(ctx, "k", 10*time.Millisecond, limit))
		e.Denied(t, 1, 6*time.Minute, limit) // the bucket was emptier than the block wants it
		e.Advance(10 * time.Millisecond)
		require.NoError(t, e.Limiter.Refund(ctx, "k", 3, limit))
		e.Allowed(t, 2, 1, limit)
	})
}

// TestRefundShortensNoBlock: what is given back during a block is there when it ends.
func TestRefundShortensNoBlock(t *testing.T) {
	testkit.OnEveryEngine(t, func(t *testing.T, e testkit.Engine) {
		limit, ctx := ginlimit.PerHour(10), t.Context()
		e.Allowed(t, 10, 0, limit)
		require.NoError(t, e.Limiter.Block(ctx, "k", time.Minute, limit))
		e.Denied(t, 1, 6*time.Minute, limit)
		for range 3 {
			require.NoError(t, e.Limiter.Refund(ctx, "k", 1, limit))
			e.Denied(t, 1, time.Minute, limit)
		}
		require.NoError(t, e.Limiter.Block(ctx, "k", 2*time.Minute, limit, ginlimit.PerDay(1)))
		require.NoError(t, e.Limiter.Block(ctx, "k", time.Second, limit))
		require.NoError(t, e.Limiter.Refund(ctx, "k", 10, limit, ginlimit.PerDay(1)))
		e.Denied(t, 1, 2*time.Minute, limit)
		e.Denied(t, 1, 2*time.Minute, limit, ginlimit.PerDay(1))
		e.Advance(2 * time.Minute)
		e.Allowed(t, 1, 0, limit)
		e.Denied(t, 1, 6*time.Minute, limit)
	})
}

func TestBlockUnderAnotherLimitShortensNothing(t *testing.T) {
	testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
		if !testkit.Has64Bits && e.Frozen {
			t.Skip("miniredis reads an expiry as an int")
		}
		years := 20 * 365 * 24 * time.Hour
		slow, fast, ctx := ginlimit.PerMinute(1), ginlimit.PerMinute(59999), t.Context()
		require.NoError(t, e.Limiter.Block(ctx, "k", years, slow))
		require.NoError(t, e.Limiter.Block(ctx, "k", time.Second, fast)) // under which the level passes 2^53
		require.NoError(t, e.Limiter.Refund(ctx, "k", 1, fast))
		e.Denied(t, 1, years, slow)
	})
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

func TestResetFillsUpAndEndsABlock(t *testing.T) {
	testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
		limit, ctx := ginlimit.PerMinute(10), t.Context()
		e.Allowed(t, 10, 0, limit)
		require.NoError(t, e.Limiter.Reset(ctx, "k", limit))
		e.Allowed(t, 10, 0, limit)
		require.NoError(t, e.Limiter.Block(ctx, "k", time.Hour, limit))
		require.NoError(t, e.Limiter.Reset(ctx, "k", limit))
		e.Allowed(t, 10, 0, limit)
	})
}

// TestBlockNeedsTokensToDeny: its error says what a policy without them lacks.
func TestBlockNeedsTokensToDeny(t *testing.T) {
	t.Parallel()
	l := testkit.NewLocal(t)
	for limit, want := range map[ginlimit.Limit]string{
		ginlimit.InFlight(3): "there are only requests in flight; give the policy a rate too",
		ginlimit.Unlimited(): "unlimited is never counted, so it has no bucket to block",
	} {
		err := testkit.NewPolicy(t, l, limit.String(), limit).Block(t.Context(), "alice", time.Hour)
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
		require.ErrorContains(t, err, want)
	}
}

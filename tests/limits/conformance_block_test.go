package limits_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What every engine does of a block.

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

package ginlimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// What every engine does of a block.

func TestBlockDeniesForItsTime(t *testing.T) {
	onEveryAlgorithm(t, func(t *testing.T, e engine) {
		limit, ctx := ginlimit.PerMinute(10), t.Context()
		require.NoError(t, e.limiter.Block(ctx, "k", time.Hour, limit))
		e.denied(t, 1, time.Hour, limit)
		require.NoError(t, e.limiter.Block(ctx, "k", time.Minute, limit)) // not shortened
		require.NoError(t, e.limiter.Refund(ctx, "k", 10, limit))         // not even by a refund
		e.advance(59 * time.Minute)
		e.denied(t, 1, time.Minute, limit)
		e.advance(time.Minute)
		left := 0
		if e.algorithm != ginlimit.TokenBucket {
			left = 9
		}
		e.allowed(t, 1, left, limit)
		require.NoError(t, e.limiter.Refund(ctx, "k", 1, limit)) // which works again
		e.allowed(t, 1, left, limit)
	})
}

// TestBlockLeavesNothingBehind: once a block has ended, a bucket is like any other, even if it is still empty.
func TestBlockLeavesNothingBehind(t *testing.T) {
	onEveryEngine(t, func(t *testing.T, e engine) {
		limit, ctx := ginlimit.PerHour(10), t.Context()
		e.allowed(t, 10, 0, limit)
		require.NoError(t, e.limiter.Block(ctx, "k", 10*time.Millisecond, limit))
		e.denied(t, 1, 6*time.Minute, limit) // the bucket was emptier than the block wants it
		e.advance(10 * time.Millisecond)
		require.NoError(t, e.limiter.Refund(ctx, "k", 3, limit))
		e.allowed(t, 2, 1, limit)
	})
}

// TestRefundShortensNoBlock: what is given back during a block is there when it ends.
func TestRefundShortensNoBlock(t *testing.T) {
	onEveryEngine(t, func(t *testing.T, e engine) {
		limit, ctx := ginlimit.PerHour(10), t.Context()
		e.allowed(t, 10, 0, limit)
		require.NoError(t, e.limiter.Block(ctx, "k", time.Minute, limit))
		e.denied(t, 1, 6*time.Minute, limit)
		for range 3 {
			require.NoError(t, e.limiter.Refund(ctx, "k", 1, limit))
			e.denied(t, 1, time.Minute, limit)
		}
		require.NoError(t, e.limiter.Block(ctx, "k", 2*time.Minute, limit, ginlimit.PerDay(1)))
		require.NoError(t, e.limiter.Block(ctx, "k", time.Second, limit))
		require.NoError(t, e.limiter.Refund(ctx, "k", 10, limit, ginlimit.PerDay(1)))
		e.denied(t, 1, 2*time.Minute, limit)
		e.denied(t, 1, 2*time.Minute, limit, ginlimit.PerDay(1))
		e.advance(2 * time.Minute)
		e.allowed(t, 1, 0, limit)
		e.denied(t, 1, 6*time.Minute, limit)
	})
}

func TestBlockUnderAnotherLimitShortensNothing(t *testing.T) {
	onEveryAlgorithm(t, func(t *testing.T, e engine) {
		if !has64Bits && e.frozen {
			t.Skip("miniredis reads an expiry as an int")
		}
		years := 20 * 365 * 24 * time.Hour
		slow, fast, ctx := ginlimit.PerMinute(1), ginlimit.PerMinute(59999), t.Context()
		require.NoError(t, e.limiter.Block(ctx, "k", years, slow))
		require.NoError(t, e.limiter.Block(ctx, "k", time.Second, fast)) // under which the level passes 2^53
		require.NoError(t, e.limiter.Refund(ctx, "k", 1, fast))
		e.denied(t, 1, years, slow)
	})
}

func TestRaisedLimitEndsNoBlock(t *testing.T) {
	onEveryAlgorithm(t, func(t *testing.T, e engine) {
		small, large, ctx := ginlimit.PerMinute(1), ginlimit.PerMinute(6000), t.Context()
		require.NoError(t, e.limiter.Block(ctx, "k", time.Hour, small))
		e.denied(t, 1, time.Hour, large)
		other := ginlimit.PerDay(9000)
		r := e.allowN(t, 1, large, other)
		require.False(t, r.Allowed)
		e.requireDuration(t, time.Hour, r.RetryAfter)
		require.NoError(t, e.limiter.Refund(ctx, "k", 1, large))
		e.denied(t, 1, time.Hour, large)
		e.advance(time.Hour)
		require.True(t, e.allowN(t, 1, large, other).Allowed)
	})
}

func TestResetFillsUpAndEndsABlock(t *testing.T) {
	onEveryAlgorithm(t, func(t *testing.T, e engine) {
		limit, ctx := ginlimit.PerMinute(10), t.Context()
		e.allowed(t, 10, 0, limit)
		require.NoError(t, e.limiter.Reset(ctx, "k", limit))
		e.allowed(t, 10, 0, limit)
		require.NoError(t, e.limiter.Block(ctx, "k", time.Hour, limit))
		require.NoError(t, e.limiter.Reset(ctx, "k", limit))
		e.allowed(t, 10, 0, limit)
	})
}

package limits_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestWaitN waits for several tokens at once.
func TestWaitN(t *testing.T) {
	t.Parallel()
	ten := ginlimit.PerSecond(10)
	for name, row := range map[string]struct {
		limits   []ginlimit.Limit
		first, n int
		waits    time.Duration
		err      error
	}{
		"there are so many":   {[]ginlimit.Limit{ten}, 5, 5, 0, nil},
		"some are missing":    {[]ginlimit.Limit{ten}, 8, 5, 300 * time.Millisecond, nil},
		"all are missing":     {[]ginlimit.Limit{ten}, 10, 10, time.Second, nil},
		"of several limits":   {[]ginlimit.Limit{ten, ginlimit.PerMinute(60).WithBurst(10)}, 10, 2, 2 * time.Second, nil},
		"of a fixed window":   {[]ginlimit.Limit{ten.WithAlgorithm(ginlimit.FixedWindow)}, 9, 2, time.Second, nil},
		"of a sliding window": {[]ginlimit.Limit{ten.WithAlgorithm(ginlimit.SlidingWindow)}, 9, 2, time.Second, nil},
		"more than there are": {[]ginlimit.Limit{ten}, 1, 11, 0, ginlimit.ErrInvalidArgument},
		"more than one holds": {[]ginlimit.Limit{ten.WithBurst(20), ginlimit.PerHour(12)},
			1, 13, 0, ginlimit.ErrInvalidArgument},
		"none": {[]ginlimit.Limit{ten}, 1, 0, 0, ginlimit.ErrInvalidArgument},
		"prohibited": {[]ginlimit.Limit{ginlimit.PerHour(0)},
			1, 2, 0, ginlimit.ErrInvalidArgument},
		"unlimited": {[]ginlimit.Limit{ginlimit.PerHour(-1)}, 1, 1 << 30, 0, nil},
		"at the deadline": {[]ginlimit.Limit{ginlimit.PerMinute(60)},
			60, 10, 10 * time.Second, nil},
		"after the deadline": {[]ginlimit.Limit{ginlimit.PerMinute(60)},
			60, 11, 0, context.DeadlineExceeded},
		"never before the end": {[]ginlimit.Limit{ginlimit.PerMinute(60).WithAlgorithm(ginlimit.FixedWindow)},
			60, 1, 0, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := testkit.NewPolicy(t, testkit.NewLocal(t), "test", ginlimit.WithLimits(row.limits...))
				testkit.Must(p.AllowN(t.Context(), "k", row.first))
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+time.Nanosecond)
				defer cancel()
				start := time.Now()
				err := p.WaitN(ctx, "k", row.n)
				require.Equal(t, row.waits, time.Since(start))
				if row.err != nil {
					require.ErrorIs(t, err, row.err)
					return
				}
				require.NoError(t, err)
			})
		})
	}
}

// TestWaitThatMayBeDecidedHereWaitsForNoOutage: it is not behind a caller whom only Redis may answer.
func TestWaitThatMayBeDecidedHereWaitsForNoOutage(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		limiter := testkit.NewLimiter(t, b.Redis, ginlimit.WithTimeout(50*time.Millisecond))
		closed := testkit.NewPolicy(t, limiter, "p", ginlimit.PerHour(10))
		local := testkit.Derive(t, closed, ginlimit.WithFailureMode(ginlimit.FailLocal))
		b.Late.Store(true)
		var all sync.WaitGroup
		defer all.Wait()
		defer b.Late.Store(false)
		all.Go(func() { assert.NoError(t, closed.Wait(t.Context(), "k")) })
		time.Sleep(time.Second)
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.NoError(t, local.Wait(soon, "k"))
	})
}

func TestEndedContextTakesNothing(t *testing.T) {
	testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
		limit := ginlimit.PerHour(2)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := e.Limiter.Allow(ended, "k", limit)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, ginlimit.ErrUnavailable, "the caller's doing, not Redis'")
		require.ErrorIs(t, e.Limiter.Wait(ended, "k", limit), context.Canceled)
		require.ErrorIs(t, e.Limiter.Block(ended, "k", time.Hour, limit), context.Canceled)
		e.Allowed(t, 2, 0, limit)
	})
}

func TestWaitDoesNotOutlastItsContext(t *testing.T) {
	testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
		limit := ginlimit.PerHour(1)
		e.Allowed(t, 1, 0, limit)
		soon, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		require.ErrorIs(t, e.Limiter.Wait(soon, "k", limit), context.DeadlineExceeded)
		require.Less(t, time.Since(start), 30*time.Second, "at once, not at the deadline")

		ended, cancel := context.WithCancel(t.Context())
		waited := make(chan error)
		go func() { waited <- e.Limiter.Wait(ended, "k", limit) }()
		cancel()
		require.ErrorIs(t, <-waited, context.Canceled)
	})
}

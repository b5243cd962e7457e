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

func TestCloseEndsAWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := testkit.NewLocal(t)
		limit := ginlimit.PerHour(1)
		require.NoError(t, l.Wait(t.Context(), "k", limit))
		waited := make(chan error)
		go func() { waited <- l.Wait(t.Context(), "k", limit) }()
		synctest.Wait()
		start := time.Now()
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-waited, ginlimit.ErrUnavailable)
		require.Zero(t, time.Since(start), "at once")
	})
}

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
				_, err := p.AllowN(t.Context(), "k", row.first)
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+time.Nanosecond)
				defer cancel()
				start := time.Now()
				err = p.WaitN(ctx, "k", row.n)
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

// TestWaitNEnds with its context, and with the limiter.
func TestWaitNEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := testkit.NewLocal(t)
		p := testkit.NewPolicy(t, limiter, "p", ginlimit.PerHour(10))
		_, err := p.AllowN(t.Context(), "k", 10)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var canceled, closed error
		var all sync.WaitGroup
		all.Go(func() { canceled = p.WaitN(ctx, "k", 5) })
		all.Go(func() { closed = p.WaitN(t.Context(), "k", 5) })
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		require.ErrorIs(t, canceled, context.Canceled)
		require.NoError(t, limiter.Close())
		all.Wait()
		require.ErrorIs(t, closed, ginlimit.ErrUnavailable)
		require.Equal(t, time.Minute, time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)))
	})
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

// TestWaitEndsWhereRedisRefuses: a foreign value at the key is no outage.
func TestWaitEndsWhereRedisRefuses(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	limiter := testkit.NewLimiter(t, rdb, ginlimit.WithFailureMode(ginlimit.FailClosed))
	require.NoError(t, rdb.Set(t.Context(), testkit.RedisKey("k", ginlimit.PerHour(1)), "theirs", 0).Err())
	require.ErrorIs(t, limiter.Wait(t.Context(), "k", ginlimit.PerHour(1)), ginlimit.ErrUnavailable)
}

// TestWaitAcrossAPeriodsEnd keeps the order of arrival, and takes of the period that begins when it does.
func TestWaitAcrossAPeriodsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// at midnight
		p := testkit.NewPolicy(t, testkit.NewLocal(t), "test", ginlimit.PerCalendar(1, ginlimit.CalendarDay(nil)))
		start := time.Now()
		var all sync.WaitGroup
		var order []int
		var mu sync.Mutex
		for i := range 6 {
			all.Go(func() {
				assert.NoError(t, p.Wait(t.Context(), "k"))
				mu.Lock()
				defer mu.Unlock()
				assert.Equal(t, time.Duration(i)*24*time.Hour, time.Since(start))
				order = append(order, i)
			})
			time.Sleep(5 * time.Hour)
		}
		all.Wait()
		require.Equal(t, []int{0, 1, 2, 3, 4, 5}, order)
	})
}

// TestWaitGoesOnThroughAnOutage if nobody else may decide, until its context ends.
func TestWaitGoesOnThroughAnOutage(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		limiter := testkit.NewLimiter(t, b.Redis, ginlimit.WithFailureMode(ginlimit.FailClosed),
			ginlimit.WithTimeout(50*time.Millisecond))
		b.Late.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		require.ErrorIs(t, limiter.Wait(ctx, "k", ginlimit.PerSecond(1)), context.DeadlineExceeded)
		require.Equal(t, 10*time.Second, time.Since(start))
		time.AfterFunc(10*time.Second, func() { b.Late.Store(false) })
		require.NoError(t, limiter.Wait(t.Context(), "k", ginlimit.PerSecond(1)))
		require.InDelta(t, 20, time.Since(start).Seconds(), 2)
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

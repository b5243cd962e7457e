package limits_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Those who wait for tokens.

func TestCloseEndsAWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := ginlimit.NewLocal()
		require.NoError(t, err)
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

// TestWaitN waits for several tokens at once, of a limiter and of a policy.
func TestWaitN(t *testing.T) {
	t.Parallel()
	ten := ginlimit.PerSecond(10)
	for name, row := range map[string]struct {
		algorithm ginlimit.Algorithm
		limits    []ginlimit.Limit
		first, n  int
		waits     time.Duration
		err       error
	}{
		"there are so many": {ginlimit.TokenBucket, []ginlimit.Limit{ten}, 5, 5, 0, nil},
		"some are missing":  {ginlimit.TokenBucket, []ginlimit.Limit{ten}, 8, 5, 300 * time.Millisecond, nil},
		"all are missing":   {ginlimit.TokenBucket, []ginlimit.Limit{ten}, 10, 10, time.Second, nil},
		"of several limits": {ginlimit.TokenBucket,
			[]ginlimit.Limit{ten, ginlimit.PerMinute(60).WithBurst(10)}, 10, 2, 2 * time.Second, nil},
		"of a fixed window":   {ginlimit.FixedWindow, []ginlimit.Limit{ten}, 9, 2, time.Second, nil},
		"of a sliding window": {ginlimit.SlidingWindow, []ginlimit.Limit{ten}, 9, 2, time.Second, nil},
		"more than there are": {ginlimit.TokenBucket, []ginlimit.Limit{ten}, 1, 11, 0, ginlimit.ErrInvalidLimit},
		"more than one holds": {ginlimit.TokenBucket,
			[]ginlimit.Limit{ten.WithBurst(20), ginlimit.PerHour(12)}, 1, 13, 0, ginlimit.ErrInvalidLimit},
		"none": {ginlimit.TokenBucket, []ginlimit.Limit{ten}, 1, 0, 0, ginlimit.ErrInvalidLimit},
		"prohibited": {ginlimit.TokenBucket, []ginlimit.Limit{ginlimit.PerHour(0)},
			1, 2, 0, ginlimit.ErrInvalidLimit},
		"unlimited": {ginlimit.TokenBucket, []ginlimit.Limit{ginlimit.PerHour(-1)}, 1, 1 << 30, 0, nil},
		"at the deadline": {ginlimit.TokenBucket, []ginlimit.Limit{ginlimit.PerMinute(60)},
			60, 10, 10 * time.Second, nil},
		"after the deadline": {ginlimit.TokenBucket, []ginlimit.Limit{ginlimit.PerMinute(60)},
			60, 11, 0, context.DeadlineExceeded},
		"never before the end": {ginlimit.FixedWindow, []ginlimit.Limit{ginlimit.PerMinute(60)},
			60, 1, 0, context.DeadlineExceeded},
	} {
		for _, of := range []string{"limiter", "policy"} {
			t.Run(name+", "+of, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					limiter := testkit.NewLocal(t, ginlimit.WithAlgorithm(row.algorithm))
					p := testkit.NewPolicy(t, limiter, row.limits[0], ginlimit.WithLimits(row.limits[1:]...))
					allow := func(n int) (ginlimit.Result, error) { return limiter.AllowN(t.Context(), "k", n, row.limits...) }
					wait := func(ctx context.Context) error { return limiter.WaitN(ctx, "k", row.n, row.limits...) }
					if of == "policy" {
						allow = func(n int) (ginlimit.Result, error) { return p.AllowN(t.Context(), "k", n) }
						wait = func(ctx context.Context) error { return p.WaitN(ctx, "k", row.n) }
					}
					_, err := allow(row.first)
					require.NoError(t, err)
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+time.Nanosecond)
					defer cancel()
					start := time.Now()
					err = wait(ctx)
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
}

// TestWaitNEnds with its context, and with the limiter.
func TestWaitNEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := testkit.NewLocal(t)
		p := testkit.NewPolicy(t, limiter, ginlimit.PerHour(10))
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

// TestOneOfThoseWhoWaitTries: a hundred callers who wait for the same tokens make few decisions for
// each, and are served in order of arrival.
func TestOneOfThoseWhoWaitTries(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		ticks := time.NewTicker(time.Millisecond)
		defer ticks.Stop()
		go func() {
			for {
				select {
				case <-ticks.C:
					b.Mini.SetTime(time.Now())
				case <-t.Context().Done():
					return
				}
			}
		}()
		b.Mini.SetTime(time.Now())
		limiter := testkit.NewLimiter(t, b.Redis, ginlimit.WithDenyMemory(0))
		limit := ginlimit.PerSecond(10).WithBurst(1)
		var all sync.WaitGroup
		var mu sync.Mutex
		var order []int
		var at []time.Time
		start := time.Now()
		for i := range 100 {
			time.Sleep(100 * time.Microsecond)
			all.Go(func() {
				assert.NoError(t, limiter.Wait(t.Context(), "k", limit))
				mu.Lock()
				defer mu.Unlock()
				order, at = append(order, i), append(at, time.Now())
			})
		}
		all.Wait()
		require.True(t, slices.IsSorted(order), order)
		require.Less(t, limiter.Stats().Decisions, uint64(300), "of 100 waits")
		require.Less(t, time.Since(start), 11*time.Second)
		for i := 1; i < len(at); i++ {
			require.GreaterOrEqual(t, at[i].Sub(at[i-1]), 99*time.Millisecond, "never more than the rate")
		}
	})
}

// TestWaitBehindAnother knows at once what it knows alone, and is served at once what was given back.
func TestWaitBehindAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := testkit.NewLocal(t)
		limit := ginlimit.PerHour(1).WithBurst(3)
		_, err := limiter.AllowN(t.Context(), "k", 3, limit)
		require.NoError(t, err)
		var all sync.WaitGroup
		start := time.Now()
		all.Go(func() { assert.NoError(t, limiter.WaitN(t.Context(), "k", 2, limit)) })
		synctest.Wait()
		require.ErrorIs(t, limiter.WaitN(t.Context(), "k", 4, limit), ginlimit.ErrInvalidLimit)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.ErrorIs(t, limiter.Wait(ctx, "k", limit), context.DeadlineExceeded)
		require.Zero(t, time.Since(start))
		all.Go(func() { assert.NoError(t, limiter.Wait(t.Context(), "k", limit)) })
		time.Sleep(63 * time.Second) // when nobody looks by themselves
		require.NoError(t, limiter.Reset(t.Context(), "k", limit))
		all.Wait()
		require.Equal(t, 63*time.Second, time.Since(start))
	})
}

// TestWaitsForOtherTokensShareNoQueue: nobody waits behind a caller who waits for other tokens.
func TestWaitsForOtherTokensShareNoQueue(t *testing.T) {
	t.Parallel()
	ten, one := ginlimit.PerHour(10), ginlimit.PerMinute(1)
	policy := func(t *testing.T, l *ginlimit.Limiter, limit ginlimit.Limit, opts ...ginlimit.Option) *ginlimit.Policy {
		return testkit.NewPolicy(t, l, limit, append(opts, ginlimit.WithName("p"))...)
	}
	for name, row := range map[string]func(t *testing.T, l *ginlimit.Limiter) (drain, behind,
		free func(context.Context) error){
		"a key that looks like a key and a limit": func(_ *testing.T, l *ginlimit.Limiter) (drain,
			behind, free func(context.Context) error) {
			drain = func(ctx context.Context) error { return l.WaitN(ctx, "k", 10, ten) }
			behind = func(ctx context.Context) error { return l.Wait(ctx, "k", one, ten) }
			return drain, behind, func(ctx context.Context) error { return l.Wait(ctx, "k 1/m", ten) }
		},
		"another algorithm": func(t *testing.T, l *ginlimit.Limiter) (drain, behind, free func(context.Context) error) {
			fixed := policy(t, l, ten, ginlimit.WithAlgorithm(ginlimit.FixedWindow))
			sliding := policy(t, l, ten, ginlimit.WithAlgorithm(ginlimit.SlidingWindow))
			drain = func(ctx context.Context) error { return fixed.WaitN(ctx, "k", 10) }
			behind = func(ctx context.Context) error { return fixed.Wait(ctx, "k") }
			return drain, behind, func(ctx context.Context) error { return sliding.Wait(ctx, "k") }
		},
		"a larger burst": func(t *testing.T, l *ginlimit.Limiter) (drain, behind, free func(context.Context) error) {
			drain = func(ctx context.Context) error { return l.WaitN(ctx, "k", 10, ten) }
			behind = func(ctx context.Context) error { return l.Wait(ctx, "k", ten) }
			return drain, behind, func(ctx context.Context) error { return l.Wait(ctx, "k", ten.WithBurst(20)) }
		},
		"no floor": func(t *testing.T, l *ginlimit.Limiter) (drain, behind, free func(context.Context) error) {
			batch, people := policy(t, l, ten, ginlimit.WithFloor(5)), policy(t, l, ten)
			drain = func(ctx context.Context) error { return batch.WaitN(ctx, "k", 5) }
			behind = func(ctx context.Context) error { return batch.Wait(ctx, "k") }
			return drain, behind, func(ctx context.Context) error { return people.Wait(ctx, "k") }
		},
		"no ban": func(t *testing.T, l *ginlimit.Limiter) (drain, behind, free func(context.Context) error) {
			banning, plain := policy(t, l, ten, ginlimit.WithBan(time.Hour, time.Hour)), policy(t, l, ten)
			drain = func(ctx context.Context) error {
				for range 11 {
					if _, err := banning.Allow(ctx, "k"); err != nil {
						return err
					}
				}
				return plain.Refund(ctx, "k", 10)
			}
			behind = func(ctx context.Context) error { return banning.Wait(ctx, "k") }
			return drain, behind, func(ctx context.Context) error { return plain.Wait(ctx, "k") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limiter := testkit.NewLocal(t)
				drain, behind, free := row(t, limiter)
				require.NoError(t, drain(t.Context()))
				var all sync.WaitGroup
				defer all.Wait()
				start := time.Now()
				all.Go(func() { assert.NoError(t, behind(t.Context())) })
				synctest.Wait()
				soon, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				require.NoError(t, free(soon), "there are tokens")
				require.Zero(t, time.Since(start), "at once")
				all.Wait()
				require.Positive(t, time.Since(start), "the other one had to wait")
			})
		})
	}
}

// TestWaitThatMayBeDecidedHereWaitsForNoOutage: it is not behind a caller whom only Redis may answer.
func TestWaitThatMayBeDecidedHereWaitsForNoOutage(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		limiter := testkit.NewLimiter(t, b.Redis, ginlimit.WithTimeout(50*time.Millisecond), ginlimit.WithName("p"))
		closed := testkit.NewPolicy(t, limiter, ginlimit.PerHour(10))
		local := testkit.NewPolicy(t, limiter, ginlimit.PerHour(10), ginlimit.WithFailure(ginlimit.FailLocal))
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

// TestEqualLimitsShareAQueue however they are written: one caller tries, and the others follow in order of arrival.
func TestEqualLimitsShareAQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := testkit.NewLocal(t)
		limits := []ginlimit.Limit{ginlimit.PerHour(1), ginlimit.PerHour(1).WithBurst(1)}
		require.NoError(t, limiter.Wait(t.Context(), "k", limits[0]))
		var all sync.WaitGroup
		var mu sync.Mutex
		var order []int
		for i := range 4 {
			all.Go(func() {
				assert.NoError(t, limiter.Wait(t.Context(), "k", limits[i%2]))
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			})
			time.Sleep(time.Minute)
		}
		all.Wait()
		require.Equal(t, []int{0, 1, 2, 3}, order)
	})
}

// TestWaitEndsWhereRedisRefuses: a foreign value at the key is no outage.
func TestWaitEndsWhereRedisRefuses(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	limiter := testkit.NewLimiter(t, rdb, ginlimit.WithFailure(ginlimit.FailClosed))
	require.NoError(t, rdb.Set(t.Context(), testkit.RedisKey("k", ginlimit.PerHour(1)), "theirs", 0).Err())
	require.ErrorIs(t, limiter.Wait(t.Context(), "k", ginlimit.PerHour(1)), ginlimit.ErrUnavailable)
}

// TestWaitAcrossAPeriodsEnd keeps the order of arrival, and takes of the period that begins when it does.
func TestWaitAcrossAPeriodsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// at midnight
		p, start := testkit.NewPolicy(t, testkit.NewLocal(t), ginlimit.PerCalendar(1, ginlimit.CalendarDay(nil))), time.Now()
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
		limiter := testkit.NewLimiter(t, b.Redis, ginlimit.WithFailure(ginlimit.FailClosed),
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

// TestQueuedCallsAreAllServed at the rate.
func TestQueuedCallsAreAllServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := testkit.NewPolicy(t, testkit.NewLocal(t), ginlimit.PerSecond(10))
		var all sync.WaitGroup
		start := time.Now()
		for i := range 50 {
			all.Go(func() { assert.NoError(t, p.WaitN(t.Context(), "k", 1+i%3)) })
		}
		all.Wait()
		taken := 17 + 17*2 + 16*3 // of which 10 were there
		require.Equal(t, time.Duration(taken-10)*100*time.Millisecond, time.Since(start))
	})
}

func TestWaitTakesTheNextToken(t *testing.T) {
	next := func(t *testing.T, e testkit.Engine) {
		limit := ginlimit.PerHour(1)
		require.NoError(t, e.Limiter.Wait(t.Context(), "k", limit))
		e.Advance(time.Hour - 50*time.Millisecond)
		require.NoError(t, e.Limiter.Wait(t.Context(), "k", limit))
		e.Denied(t, 1, time.Hour, limit)
	}
	testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
		if !e.Frozen { // or the clock would not go on while Wait waits
			next(t, e)
		}
	})
	for _, a := range append(testkit.WindowAlgorithms, ginlimit.TokenBucket) {
		t.Run("in a bubble, "+a.String(), func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				next(t, testkit.Engine{Limiter: testkit.NewLimiter(t, b.Redis, ginlimit.WithAlgorithm(a)),
					Algorithm: a, Advance: time.Sleep})
			})
		})
	}
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

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
		limiter := testkit.NewLimiter(t, b.Redis, ginlimit.WithDenyCache(0))
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
		require.ErrorIs(t, limiter.WaitN(t.Context(), "k", 4, limit), ginlimit.ErrInvalidArgument)
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
	for name, row := range map[string]func(t *testing.T, l *testkit.Limiter) (drain, behind,
		free func(context.Context) error){
		"a key that looks like a key and a limit": func(_ *testing.T, l *testkit.Limiter) (drain,
			behind, free func(context.Context) error) {
			drain = func(ctx context.Context) error { return l.WaitN(ctx, "k", 10, ten) }
			behind = func(ctx context.Context) error { return l.Wait(ctx, "k", one, ten) }
			return drain, behind, func(ctx context.Context) error { return l.Wait(ctx, "k 1/m", ten) }
		},
		"another algorithm": func(_ *testing.T, l *testkit.Limiter) (drain, behind, free func(context.Context) error) {
			fixed, sliding := ten.WithAlgorithm(ginlimit.FixedWindow), ten.WithAlgorithm(ginlimit.SlidingWindow)
			drain = func(ctx context.Context) error { return l.WaitN(ctx, "k", 10, fixed) }
			behind = func(ctx context.Context) error { return l.Wait(ctx, "k", fixed) }
			return drain, behind, func(ctx context.Context) error { return l.Wait(ctx, "k", sliding) }
		},
		"a larger burst": func(t *testing.T, l *testkit.Limiter) (drain, behind, free func(context.Context) error) {
			drain = func(ctx context.Context) error { return l.WaitN(ctx, "k", 10, ten) }
			behind = func(ctx context.Context) error { return l.Wait(ctx, "k", ten) }
			return drain, behind, func(ctx context.Context) error { return l.Wait(ctx, "k", ten.WithBurst(20)) }
		},
		"no floor": func(t *testing.T, l *testkit.Limiter) (drain, behind, free func(context.Context) error) {
			people := testkit.NewPolicy(t, l, "p", ten)
			batch := testkit.Derive(t, people, ginlimit.WithFloor(5))
			drain = func(ctx context.Context) error { return batch.WaitN(ctx, "k", 5) }
			behind = func(ctx context.Context) error { return batch.Wait(ctx, "k") }
			return drain, behind, func(ctx context.Context) error { return people.Wait(ctx, "k") }
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

// TestQueuedCallsAreAllServed at the rate.
func TestQueuedCallsAreAllServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := testkit.NewPolicy(t, testkit.NewLocal(t), "10/s", ginlimit.PerSecond(10))
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
				next(t, testkit.Engine{Limiter: testkit.NewLimiter(t, b.Redis, testkit.WithAlgorithm(a)),
					Algorithm: a, Advance: time.Sleep})
			})
		})
	}
}

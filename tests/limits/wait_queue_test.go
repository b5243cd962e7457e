package limits_test

import (
	"slices"
	"sync"
	"testing"
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

package limits_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestPlanStats(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		s := testkit.NewSource()
		here, elsewhere := testkit.PlansOfProcess(t, b, s.Ask), testkit.PlansOfProcess(t, b, s.Ask)
		has(t, here, "three", 3) // asks the source
		has(t, here, "three", 3) // is known
		time.Sleep(time.Second)
		has(t, here, "three", 3) // is in Redis
		require.ErrorIs(t, testkit.Err(testkit.LimitOf(here, t.Context(), "nobody")), ginlimit.ErrUnknownClient)
		require.ErrorIs(t, testkit.Err(testkit.LimitOf(here, t.Context(), "nobody")), ginlimit.ErrUnknownClient)
		require.ErrorIs(t, testkit.Err(testkit.LimitOf(here, t.Context(), "")), ginlimit.ErrNoKey)
		require.Equal(t, ginlimit.PlanStats{Hits: 3, Misses: 2}, here.Stats())

		time.Sleep(time.Hour)
		s.Set("three", ginlimit.PerMinute(3), errors.New("down"))
		has(t, here, "three", 3)
		has(t, here, "three", 3) // it is kept for a second
		require.ErrorIs(t, testkit.Err(testkit.LimitOf(here, t.Context(), "stranger")), ginlimit.ErrUnavailable)
		require.Equal(t, ginlimit.PlanStats{Hits: 3, Misses: 2, Stale: 2, Errors: 1}, here.Stats())

		time.Sleep(time.Second)
		s.Set("three", ginlimit.PerMinute(3), nil)
		s.Held = make(chan struct{})
		var all sync.WaitGroup
		for range 10 { // which share a question
			all.Go(func() { has(t, elsewhere, "three", 3) })
		}
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			assert.ErrorIs(t, testkit.Err(testkit.LimitOf(elsewhere, ctx, "three")), context.DeadlineExceeded)
		})
		all.Go(func() { has(t, here, "three", 3) }) // it does not wait for a slow source
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, ginlimit.PlanStats{Hits: 3, Misses: 2, Stale: 3, Errors: 1}, here.Stats())
		close(s.Held)
		all.Wait()
		require.Equal(t, ginlimit.PlanStats{Misses: 10}, elsewhere.Stats())
	})
}

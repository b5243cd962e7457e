package limits_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// How old plans become. The tests run in a bubble whose time is simulated, with a Redis in it.

// has requires that a process has a plan of so many a minute.
func has(t *testing.T, plans *ginlimit.Plans, client string, rate int) {
	t.Helper()
	limit := testkit.Must(testkit.LimitOf(plans, t.Context(), client))
	require.Equal(t, ginlimit.PerMinute(rate), limit)
}

func TestPlanStats(t *testing.T) {
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

// TestSlowQuestionPutsNoOldPlanBack has a plan invalidated twice, and what Redis keeps of that expires in between.
func TestSlowQuestionPutsNoOldPlanBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ first, asked, second, answered time.Duration }{
		{0, 6 * time.Second, 10500 * time.Millisecond, 10900 * time.Millisecond},
		{0, 9 * time.Second, 10 * time.Second, 13 * time.Second},
		{0, time.Second, 30 * time.Second, 60 * time.Second}, // the source does not heed its context
		{0, 15 * time.Second, 16 * time.Second, 19 * time.Second},
	} {
		testkit.RunInBubble(t, fmt.Sprint(c.asked, c.second, c.answered), func(t *testing.T, b *testkit.Bubble) {
			begin, plan := time.Now(), atomic.Int64{}
			plan.Store(3)
			until := func(d time.Duration) { time.Sleep(time.Until(begin.Add(d))) }
			slow := func(context.Context, string) (ginlimit.Limit, error) {
				limit := ginlimit.PerMinute(int(plan.Load()))
				until(c.answered)
				return limit, nil
			}
			here, elsewhere := testkit.PlansOfProcess(t, b, slow), testkit.PlansOfProcess(t, b, slow)
			until(c.first)
			require.NoError(t, elsewhere.Invalidate(t.Context(), "c"))
			until(c.asked)
			go func() { _, _ = testkit.LimitOf(here, t.Context(), "c") }()
			until(c.second)
			plan.Store(4)
			require.NoError(t, elsewhere.Invalidate(t.Context(), "c"))
			until(c.answered + 2*time.Second)
			for _, plans := range []*ginlimit.Plans{testkit.PlansOfProcess(t, b, slow), here, elsewhere} {
				has(t, plans, "c", 4)
			}
		})
	}
}

// TestPlansOfAnOutageAreChecked has the plan of a late Redis checked once Redis answers.
func TestPlansOfAnOutageAreChecked(t *testing.T) {
	t.Parallel()
	for name, invalidate := range map[string]bool{"invalidated": true, "another plan in Redis": false} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			s := testkit.NewSource()
			here, elsewhere := testkit.PlansOfProcess(t, b, s.Ask), testkit.PlansOfProcess(t, b, s.Ask)
			b.Late.Store(true)
			has(t, here, "three", 3)
			b.Late.Store(false)
			s.Set("three", ginlimit.PerMinute(4), nil)
			if invalidate {
				require.NoError(t, elsewhere.Invalidate(t.Context(), "three"))
			} else {
				has(t, elsewhere, "three", 4)
			}
			time.Sleep(time.Second)
			has(t, here, "three", 4)
			require.EqualValues(t, 2, s.Asked.Load())
		})
	}
}

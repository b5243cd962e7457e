package limits_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// How many questions the source is asked, and who waits for an answer, whatever clients somebody invents.

// TestInventedClientsStarveNobody in a bubble, where a trip to Redis takes 1 ms and the source 20 ms.
func TestInventedClientsStarveNobody(t *testing.T) {
	t.Parallel()
	for invented, rounds := range map[int]int{300: 2, 3000: 1} {
		t.Run(fmt.Sprint(invented), func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				var asked, legitimate, now atomic.Int64
				source := func(_ context.Context, client string) (ginlimit.Limit, error) {
					asked.Add(1)
					assert.LessOrEqual(t, now.Add(1), int64(256), "questions at a time are bounded")
					defer now.Add(-1)
					time.Sleep(20 * time.Millisecond)
					if strings.HasPrefix(client, "legitimate") {
						legitimate.Add(1)
						return ginlimit.PerMinute(3), nil
					}
					return ginlimit.Limit{}, ginlimit.ErrUnknownClient
				}
				distant := b.Connect(t)
				distant.AddHook(testkit.EveryCall(func(send func() error) error { time.Sleep(time.Millisecond); return send() }))
				plans, err := testkit.NewLimiter(t, distant, ginlimit.WithTimeout(ginlimit.DefaultTimeout)).NewPlans("plans", time.Hour, testkit.SingleLimit(source))
				require.NoError(t, err)
				for round := range rounds {
					var all sync.WaitGroup
					for i := range invented {
						all.Go(func() {
							_, err := testkit.LimitOf(plans, t.Context(), fmt.Sprint("invented ", round, " ", i))
							assert.ErrorIs(t, err, ginlimit.ErrUnknownClient)
						})
					}
					time.Sleep(time.Millisecond)
					has(t, plans, fmt.Sprint("legitimate ", round), 3)
					all.Wait()
				}
				require.EqualValues(t, rounds*(invented+1), asked.Load())
				require.EqualValues(t, rounds, legitimate.Load())
				require.Len(t, b.Mini.Keys(), rounds*(invented+1), "Redis was found to be there all the time")
			})
		})
	}
}

// TestAnswerOlderThanAnInvalidationServesNobodyElse has another process invalidate a client while the source is asked.
func TestAnswerOlderThanAnInvalidationServesNobodyElse(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var rate atomic.Int64
		rate.Store(3)
		here := testkit.PlansOfProcess(t, b, func(context.Context, string) (ginlimit.Limit, error) {
			limit := ginlimit.PerMinute(int(rate.Load()))
			time.Sleep(500 * time.Millisecond)
			return limit, nil
		})
		there := testkit.PlansOfProcess(t, b, testkit.NewSource().Ask)
		go func() { _, _ = testkit.LimitOf(here, t.Context(), "c") }()
		time.Sleep(100 * time.Millisecond)
		rate.Store(30)
		require.NoError(t, there.Invalidate(t.Context(), "c"))
		time.Sleep(401 * time.Millisecond)
		has(t, here, "c", 30) // it waits for the new answer
	})
}

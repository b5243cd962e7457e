package plans_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
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

// How many questions the source is asked, and who waits for an answer, whatever clients somebody invents.

// TestInventedClientsAreKeptForALife where the source has a limit for strangers.
func TestInventedClientsAreKeptForALife(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		strangers := func(context.Context, string) (ginlimit.Limit, error) { return ginlimit.PerMinute(3), nil }
		plans := testkit.PlansOfProcess(t, b, strangers)
		ask := func() {
			for i := range 100 {
				has(t, plans, fmt.Sprint("client ", i), 3)
			}
		}
		ask()
		require.Len(t, b.Mini.Keys(), 100)
		time.Sleep(time.Hour)
		require.Empty(t, b.Mini.Keys())

		has(t, testkit.PlansOfProcess(t, b, strangers), "client 0", 3) // it does not know that the client was there
		time.Sleep(time.Hour)
		require.Empty(t, b.Mini.Keys())

		ask() // again, after their life
		time.Sleep(25*time.Hour - time.Second)
		require.Len(t, b.Mini.Keys(), 100)
		time.Sleep(time.Second)
		require.Empty(t, b.Mini.Keys())
	})
}

// TestClientsOfRedisNeedNoPlaceOfTheSource has invented clients take all places for good, on a way to Redis of 1 ms.
func TestClientsOfRedisNeedNoPlaceOfTheSource(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var held atomic.Bool
		source := func(ctx context.Context, _ string) (ginlimit.Limit, error) {
			if held.Load() {
				<-ctx.Done()
			}
			return ginlimit.PerMinute(3), ctx.Err()
		}
		const clients = 500
		first := testkit.PlansOfProcess(t, b, source)
		for i := range clients {
			has(t, first, fmt.Sprint("client ", i), 3)
		}
		held.Store(true)
		distant := b.Connect(t)
		distant.AddHook(testkit.EveryCall(func(send func() error) error { time.Sleep(time.Millisecond); return send() }))
		plans, err := testkit.NewLimiter(t, distant, ginlimit.WithTimeout(ginlimit.DefaultTimeout),
			ginlimit.WithLogger(slog.New(slog.DiscardHandler))).NewPlans("plans", time.Hour, testkit.SingleLimit(source))
		require.NoError(t, err)
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() { _, _ = testkit.LimitOf(plans, t.Context(), fmt.Sprint("invented ", i)) })
			all.Go(func() {
				_, err := testkit.LimitOf(plans, t.Context(), fmt.Sprint("client ", i))
				assert.NoError(t, err)
			})
		}
		all.Wait()
	})
}

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

// TestClientsOfRedisAreServedBesideAnyNumberOfOthers has more invented clients than may wait for
// the source, which hangs; with the race detector, more than it is asked for at a time.
func TestClientsOfRedisAreServedBesideAnyNumberOfOthers(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		has(t, testkit.PlansOfProcess(t, b, testkit.NewSource().Ask), "three", 3) // and Redis has the plan
		hanging := testkit.NewSource()
		hanging.Held = make(chan struct{})
		plans := testkit.PlansOfProcess(t, b, hanging.Ask)
		for i := range testkit.Steps(10_000) {
			go func() { _, _ = testkit.LimitOf(plans, t.Context(), fmt.Sprint("client ", i)) }()
		}
		time.Sleep(time.Second)
		has(t, plans, "three", 3)
		close(hanging.Held)
	})
}

// TestHangingSourceDeniesItsClientForATime: a source that never returns takes up one of the questions, not the client.
func TestHangingSourceDeniesItsClientForATime(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var hangs atomic.Bool
		end := make(chan struct{})
		defer close(end)
		hangs.Store(true)
		plans := testkit.PlansOfProcess(t, b, func(context.Context, string) (ginlimit.Limit, error) {
			if hangs.Swap(false) {
				<-end // whatever its context says
			}
			return ginlimit.PerMinute(3), nil
		})
		_, err := testkit.LimitOf(plans, t.Context(), "c")
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
		time.Sleep(5 * time.Second)
		has(t, plans, "c", 3)
	})
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

// TestQuestionThatWaitedHasItsTime though all places were taken for long, and no place is no answer to remember.
func TestQuestionThatWaitedHasItsTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ taken, takes, comes time.Duration }{
		{4 * time.Second, 3 * time.Second, 5500 * time.Millisecond},
		{5200 * time.Millisecond, 0, 5500 * time.Millisecond},
	} {
		t.Run(c.taken.String(), func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				plans := testkit.PlansOfProcess(t, b, func(_ context.Context, client string) (ginlimit.Limit, error) {
					if client == "new" {
						time.Sleep(c.takes)
					} else {
						time.Sleep(c.taken)
					}
					return ginlimit.PerMinute(3), nil
				})
				for i := range 256 {
					go func() { _, _ = testkit.LimitOf(plans, t.Context(), fmt.Sprint("client ", i)) }()
				}
				synctest.Wait()
				begin := time.Now()
				_, err := testkit.LimitOf(plans, t.Context(), "new")
				require.ErrorIs(t, err, ginlimit.ErrUnavailable)
				require.Equal(t, 5*time.Second, time.Since(begin))
				time.Sleep(time.Until(begin.Add(c.comes)))
				has(t, plans, "new", 3)
			})
		})
	}
}

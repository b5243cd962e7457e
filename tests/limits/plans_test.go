package limits_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Plans, from a source that the tests change.

// TestPlanChangeTakesEffectAfterInvalidation wants the next request to go by the new plan, in
// proportion to what is missing.
func TestPlanChangeTakesEffectAfterInvalidation(t *testing.T) {
	t.Parallel()
	rdb, advance := testkit.NewMiniredis(t)
	s := testkit.NewSource()
	plans := testkit.NewPlans(t, rdb, s)
	r := testkit.Serve(testkit.NewLimiter(t, rdb).Handler("plan",
		ginlimit.WithKey(ginlimit.ByHeader("X-Client-Id")),
		ginlimit.WithLimitFunc(plans.Limits)))
	client := testkit.With("X-Client-Id", "three")
	for _, want := range []string{"2", "1", "0"} {
		assert.Equal(t, want, testkit.Remaining(testkit.Get(r, "/", client)))
	}
	s.Set("three", ginlimit.PerMinute(30), nil)
	advance(20 * time.Second)
	assert.Equal(t, "0", testkit.Remaining(testkit.Get(r, "/", client)), "still the old plan")
	require.NoError(t, plans.Invalidate(t.Context(), "three"))
	rec := testkit.Get(r, "/", client)
	assert.Equal(t, "30", rec.Header().Get("X-RateLimit-Limit"))
	assert.Equal(t, http.StatusTooManyRequests, rec.Code, "a minute is missing from the bucket, as before")
	advance(20 * time.Second)
	assert.Equal(t, "9", testkit.Remaining(testkit.Get(r, "/", client)))
	assert.Equal(t, http.StatusForbidden, testkit.Get(r, "/", testkit.With("X-Client-Id", "nobody")).Code)
	s.Set("nobody", ginlimit.PerMinute(5), nil)
	require.NoError(t, plans.Invalidate(t.Context(), "nobody"))
	assert.Equal(t, "4", testkit.Remaining(testkit.Get(r, "/", testkit.With("X-Client-Id", "nobody"))))
	s.Set("zero", ginlimit.Limit{}, nil)
	assert.Equal(t, http.StatusServiceUnavailable, testkit.Get(r, "/", testkit.With("X-Client-Id", "zero")).Code)
	s.Set("three", ginlimit.Limit{}, nil)
	require.NoError(t, plans.Invalidate(t.Context(), "three"))
	assert.Equal(t, "30", testkit.Get(r, "/", client).Header().Get("X-RateLimit-Limit"),
		"the old plan, where the new one cannot be used")
}

func TestAllFaultsOfPlansAtOnce(t *testing.T) {
	t.Parallel()
	_, err := testkit.NewLocal(t).NewPlans("", 0, nil)
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
	for _, fault := range []string{"the name is empty", "a life of 0s", "source is nil"} {
		assert.ErrorContains(t, err, fault)
	}
	limiter, source := testkit.NewLocal(t), testkit.SingleLimit(testkit.NewSource().Ask)
	for _, name := range []string{"plans", "others"} {
		_, err = limiter.NewPlans(name, time.Minute, source)
		require.NoError(t, err)
	}
	_, err = limiter.NewPlans("plans", time.Hour, source)
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
	require.ErrorContains(t, err, `plans named "plans"`)
	_, err = new(ginlimit.Limiter).NewPlans("plans", time.Minute, testkit.SingleLimit(testkit.NewSource().Ask))
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
}

// TestPlansHaveSeveralLimits: from the source, by way of Redis, in another process, and after Invalidate.
func TestPlansHaveSeveralLimits(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	var mu sync.Mutex
	asked := 0
	plan := []ginlimit.Limit{ginlimit.PerMinute(5).WithBurst(2), ginlimit.PerHour(3), ginlimit.PerDay(-1)}
	source := func(_ context.Context, client string) ([]ginlimit.Limit, error) {
		mu.Lock()
		defer mu.Unlock()
		asked++
		if client != "c" {
			return nil, ginlimit.ErrUnknownClient
		}
		return plan, nil
	}
	process := func() (*ginlimit.Plans, *gin.Engine) {
		plans := testkit.Must(testkit.NewLimiter(t, rdb).NewPlans("plans", time.Hour, source))
		return plans,
			testkit.Serve(testkit.NewLimiter(t, rdb).Handler("plan", testkit.ByUser(), ginlimit.WithLimitFunc(plans.Limits)))
	}
	plans, r := process()
	others, other := process()
	for _, p := range []*ginlimit.Plans{plans, others, plans} {
		require.Equal(t, plan, testkit.Must(p.Limits(t.Context(), "c")), "in the order of the source")
	}
	require.Equal(t, 1, asked, "the second process has it from Redis")
	require.Equal(t, http.StatusOK, testkit.Get(r, "/", testkit.User("c")).Code)
	require.Equal(t, http.StatusOK, testkit.Get(other, "/", testkit.User("c")).Code)
	require.Equal(t, http.StatusTooManyRequests, testkit.Get(r, "/", testkit.User("c")).Code, "by the burst")
	require.Equal(t, http.StatusForbidden, testkit.Get(r, "/", testkit.User("nobody")).Code)

	mu.Lock()
	plan = []ginlimit.Limit{ginlimit.PerHour(4)}
	mu.Unlock()
	require.NoError(t, plans.Invalidate(t.Context(), "c"))
	limits := testkit.Must(plans.Limits(t.Context(), "c"))
	require.Equal(t, plan, limits)
	third, _ := process()
	require.Equal(t, plan, testkit.Must(third.Limits(t.Context(), "c")), "from Redis")
}

// TestPlansWithoutLimitsAreFailures: the source is to return a limit at least, and such as can be counted.
func TestPlansWithoutLimitsAreFailures(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string][]ginlimit.Limit{
		"nil": nil, "none": {}, "zero": {{}}, "two of one period": {ginlimit.PerHour(1), ginlimit.PerHour(2)},
		"one that is invalid": {ginlimit.PerHour(1), ginlimit.PerDay(1).WithBurst(-1)},
	} {
		testkit.Run(t, name, func(t *testing.T) {
			rdb, _ := testkit.NewMiniredis(t)
			var log testkit.Buffer
			limiter := testkit.NewLimiter(t, rdb, ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			plans := testkit.Must(limiter.NewPlans("plans", time.Hour,
				func(context.Context, string) ([]ginlimit.Limit, error) { return answer, nil }))
			limits, err := plans.Limits(t.Context(), "c")
			require.ErrorIs(t, err, ginlimit.ErrUnavailable)
			require.Empty(t, limits)
			require.Contains(t, log.String(), "level=WARN")
			for _, key := range rdb.Keys(t.Context(), "*").Val() {
				require.NotContains(t, rdb.Get(t.Context(), key).Val(), "/", "such a plan is not kept")
			}
		})
	}
}

// How many questions the source is asked, and who waits for an answer, whatever clients somebody invents.

// TestSlowSourcesHoldNobodyUp who has an old plan, and nobody for longer than the source may take.
func TestSlowSourcesHoldNobodyUp(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		s := testkit.NewSource()
		plans := testkit.PlansOfProcess(t, b, s.Ask)
		has(t, plans, "three", 3)
		time.Sleep(time.Hour)
		s.Held = make(chan struct{}) // for good
		for range 10 {
			begin := time.Now()
			has(t, plans, "three", 3)
			require.LessOrEqual(t, time.Since(begin), 50*time.Millisecond)
		}
		begin := time.Now()
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				assert.ErrorIs(t, testkit.Err(testkit.LimitOf(plans, t.Context(), fmt.Sprint("new ", i))), ginlimit.ErrUnavailable)
				assert.LessOrEqual(t, time.Since(begin), 5*time.Second)
			})
		}
		time.Sleep(4 * time.Second)
		require.LessOrEqual(t, s.Asked.Load(), int64(257), "questions at a time are bounded")
		all.Wait()
	})
}

// TestAnswerOlderThanAnInvalidationServesNobodyElse has another process invalidate a client while the source is asked.
func TestAnswerOlderThanAnInvalidationServesNobodyElse(t *testing.T) {
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

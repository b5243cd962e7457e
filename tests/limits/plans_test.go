package limits_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
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

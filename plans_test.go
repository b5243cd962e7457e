package ginlimit_test

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
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Plans, from a source that the tests change.

// source is what a database would be.
type source struct {
	mu    sync.Mutex
	plans map[string]ginlimit.Limit
	err   error
	asked atomic.Int64
	held  chan struct{} // a question waits for it, if it is not nil
}

func (s *source) ask(ctx context.Context, client string) (ginlimit.Limit, error) {
	s.asked.Add(1)
	s.mu.Lock()
	limit, ok := s.plans[client]
	err, held := s.err, s.held
	s.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return ginlimit.Limit{}, ctx.Err()
		}
	}
	switch {
	case err != nil:
		return ginlimit.Limit{}, err
	case !ok:
		return ginlimit.Limit{}, ginlimit.ErrUnknownClient
	}
	return limit, nil
}

func (s *source) set(client string, limit ginlimit.Limit, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plans[client], s.err = limit, err
}

func newSource() *source {
	return &source{plans: map[string]ginlimit.Limit{"three": ginlimit.PerMinute(3), "unlimited": ginlimit.PerMinute(-1), "prohibited": ginlimit.PerMinute(0)}}
}

func newPlans(t *testing.T, rdb redis.UniversalClient, s *source, opts ...ginlimit.Option) *ginlimit.Plans {
	t.Helper()
	plans, err := ginlimit.NewPlans(rdb, time.Hour, single(s.ask), append([]ginlimit.Option{testkit.Patient(), ginlimit.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	require.NoError(t, err)
	return plans
}

// TestPlanChangeTakesEffectAfterInvalidation wants the next request to go by the new plan, in proportion to what is missing.
func TestPlanChangeTakesEffectAfterInvalidation(t *testing.T) {
	t.Parallel()
	rdb, advance := newMiniredis(t)
	s := newSource()
	plans := newPlans(t, rdb, s)
	r := serve(middleware(rdb, ginlimit.PerMinute(1), ginlimit.WithName("plan"), ginlimit.WithKey(ginlimit.ByHeader("X-Client-Id")),
		ginlimit.WithLimitFunc(plans.Limits)))
	client := with("X-Client-Id", "three")
	for _, want := range []string{"2", "1", "0"} {
		assert.Equal(t, want, remaining(get(r, "/", client)))
	}
	s.set("three", ginlimit.PerMinute(30), nil)
	advance(20 * time.Second)
	assert.Equal(t, "0", remaining(get(r, "/", client)), "still the old plan")
	require.NoError(t, plans.Invalidate(t.Context(), "three"))
	rec := get(r, "/", client)
	assert.Equal(t, "30", rec.Header().Get("X-RateLimit-Limit"))
	assert.Equal(t, http.StatusTooManyRequests, rec.Code, "a minute is missing from the bucket, as before")
	advance(20 * time.Second)
	assert.Equal(t, "9", remaining(get(r, "/", client)))
	assert.Equal(t, http.StatusForbidden, get(r, "/", with("X-Client-Id", "nobody")).Code)
	s.set("nobody", ginlimit.PerMinute(5), nil)
	require.NoError(t, plans.Invalidate(t.Context(), "nobody"))
	assert.Equal(t, "4", remaining(get(r, "/", with("X-Client-Id", "nobody"))))
	s.set("zero", ginlimit.Limit{}, nil)
	assert.Equal(t, http.StatusServiceUnavailable, get(r, "/", with("X-Client-Id", "zero")).Code)
	s.set("three", ginlimit.Limit{}, nil)
	require.NoError(t, plans.Invalidate(t.Context(), "three"))
	assert.Equal(t, "30", get(r, "/", client).Header().Get("X-RateLimit-Limit"), "the old plan, where the new one cannot be used")
}

// TestSlowSourcesHoldNobodyUp who has an old plan, and nobody for longer than the source may take.
func TestSlowSourcesHoldNobodyUp(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		s := newSource()
		plans := process(t, b, s.ask)
		has(t, plans, "three", 3)
		time.Sleep(time.Hour)
		s.held = make(chan struct{}) // for good
		for range 10 {
			begin := time.Now()
			has(t, plans, "three", 3)
			require.LessOrEqual(t, time.Since(begin), 50*time.Millisecond)
		}
		begin := time.Now()
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				_, err := limitOf(plans, t.Context(), fmt.Sprint("new ", i))
				assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
				assert.LessOrEqual(t, time.Since(begin), 5*time.Second)
			})
		}
		time.Sleep(4 * time.Second)
		require.LessOrEqual(t, s.asked.Load(), int64(257), "questions at a time are bounded")
		all.Wait()
	})
}

func TestAllFaultsOfPlansAtOnce(t *testing.T) {
	t.Parallel()
	_, err := ginlimit.NewPlans(nil, 0, nil, ginlimit.WithPrefix("{"), nil)
	for _, fault := range []string{"client is nil", "a life of 0s", "source is nil", "WithPrefix", "option 2 is nil"} {
		assert.ErrorContains(t, err, fault)
	}
}

// single is a source of one limit for each client.
func single(source func(context.Context, string) (ginlimit.Limit, error)) func(context.Context, string) ([]ginlimit.Limit, error) {
	return func(ctx context.Context, client string) ([]ginlimit.Limit, error) {
		l, err := source(ctx, client)
		return []ginlimit.Limit{l}, err
	}
}

// limitOf returns the one limit of a client.
func limitOf(p *ginlimit.Plans, ctx context.Context, client string) (ginlimit.Limit, error) {
	limits, err := p.Limits(ctx, client)
	if err != nil {
		return ginlimit.Limit{}, err
	}
	return limits[0], nil
}

// TestPlansHaveSeveralLimits: from the source, by way of Redis, in another process, and after Invalidate.
func TestPlansHaveSeveralLimits(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
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
		plans, err := ginlimit.NewPlans(rdb, time.Hour, source, testkit.Patient())
		require.NoError(t, err)
		return plans, serve(testkit.NewLimiter(t, rdb).Handler(ginlimit.PerMinute(0), ginlimit.WithName("plan"), byUser(), ginlimit.WithLimitFunc(plans.Limits)))
	}
	plans, r := process()
	others, other := process()
	for _, p := range []*ginlimit.Plans{plans, others, plans} {
		limits, err := p.Limits(t.Context(), "c")
		require.NoError(t, err)
		require.Equal(t, plan, limits, "in the order of the source")
	}
	require.Equal(t, 1, asked, "the second process has it from Redis")
	require.Equal(t, http.StatusOK, get(r, "/", user("c")).Code)
	require.Equal(t, http.StatusOK, get(other, "/", user("c")).Code)
	require.Equal(t, http.StatusTooManyRequests, get(r, "/", user("c")).Code, "by the burst")
	require.Equal(t, http.StatusForbidden, get(r, "/", user("nobody")).Code)

	mu.Lock()
	plan = []ginlimit.Limit{ginlimit.PerHour(4)}
	mu.Unlock()
	require.NoError(t, plans.Invalidate(t.Context(), "c"))
	limits, err := plans.Limits(t.Context(), "c")
	require.NoError(t, err)
	require.Equal(t, plan, limits)
	require.Equal(t, http.StatusOK, get(r, "/", user("c")).Code)
	require.Equal(t, http.StatusTooManyRequests, get(r, "/", user("c")).Code, "the hour's bucket was kept: of it 40 minutes are missing")
	third, _ := process()
	limits, err = third.Limits(t.Context(), "c")
	require.NoError(t, err)
	require.Equal(t, plan, limits, "from Redis")
}

// TestPlansWithoutLimitsAreFailures: the source is to return a limit at least, and such as can be counted.
func TestPlansWithoutLimitsAreFailures(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string][]ginlimit.Limit{
		"nil": nil, "none": {}, "zero": {{}}, "two of one period": {ginlimit.PerHour(1), ginlimit.PerHour(2)},
		"one that is invalid": {ginlimit.PerHour(1), ginlimit.PerDay(1).WithBurst(-1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, _ := newMiniredis(t)
			var log testkit.Buffer
			plans, err := ginlimit.NewPlans(rdb, time.Hour, func(context.Context, string) ([]ginlimit.Limit, error) { return answer, nil }, testkit.Patient(),
				ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			require.NoError(t, err)
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

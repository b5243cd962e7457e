package ginlimit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
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
	plans, err := ginlimit.NewPlans(rdb, time.Hour, s.ask, append([]ginlimit.Option{patient(), ginlimit.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	require.NoError(t, err)
	return plans
}

// aging shortens what keys have left to live, as time does.
func aging(t *testing.T, rdb *redis.Client, d time.Duration) {
	t.Helper()
	for _, key := range rdb.Keys(t.Context(), "*").Val() {
		require.NoError(t, rdb.PExpire(t.Context(), key, rdb.PTTL(t.Context(), key).Val()-d).Err())
	}
}

func TestPlansAskOncePerClientAndLife(t *testing.T) { // systems.md C: the quota is cached in Redis
	t.Parallel()
	rdb, s := connect(t, startRedis(t)), newSource()
	for range 3 { // processes
		plans := newPlans(t, rdb, s)
		for range 100 {
			for client, want := range s.plans {
				limit, err := plans.Get(t.Context(), client)
				require.NoError(t, err)
				require.Equal(t, want, limit)
			}
			_, err := plans.Get(t.Context(), "nobody")
			require.ErrorIs(t, err, ginlimit.ErrUnknownClient)
		}
	}
	require.EqualValues(t, 4, s.asked.Load())
	require.ElementsMatch(t, []string{"ginlimit:plan:{three}", "ginlimit:plan:{unlimited}", "ginlimit:plan:{prohibited}",
		"ginlimit:plan:{nobody}"}, rdb.Keys(t.Context(), "*").Val())

	aging(t, rdb, time.Hour)
	limit, err := newPlans(t, rdb, s).Get(t.Context(), "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(3), limit)
	require.EqualValues(t, 5, s.asked.Load(), "its life is over")
}

func TestManyMissesAreOneQuestion(t *testing.T) {
	t.Parallel()
	s := newSource()
	s.held = make(chan struct{})
	plans := newPlans(t, connect(t, startRedis(t)), s)
	var all sync.WaitGroup
	for range 1000 {
		all.Go(func() {
			limit, err := plans.Get(t.Context(), "three")
			assert.NoError(t, err)
			assert.Equal(t, ginlimit.PerMinute(3), limit)
		})
	}
	require.True(t, becomesTrue(t.Context().Done(), func() bool { return s.asked.Load() == 1 }))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := plans.Get(ctx, "three")
	require.ErrorIs(t, err, context.Canceled, "who leaves does not take the others with him")
	close(s.held)
	all.Wait()
	require.EqualValues(t, 1, s.asked.Load())
}

// TestOldPlansServeWhileTheSourceFails stops the source, then Redis, then both.
func TestOldPlansServeWhileTheSourceFails(t *testing.T) {
	t.Parallel()
	addr, process := startRedisProcess(t)
	rdb, s := connect(t, addr), newSource()
	var log lockedBuffer
	plans := newPlans(t, rdb, s, ginlimit.WithTimeout(100*time.Millisecond), ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	get := func(p *ginlimit.Plans, client string) (ginlimit.Limit, error) { return p.Get(t.Context(), client) }
	require.True(t, becomesTrue(t.Context().Done(), func() bool { // until it is in Redis too
		_, err := get(newPlans(t, rdb, s), "three")
		require.NoError(t, err)
		return rdb.Exists(t.Context(), "ginlimit:plan:{three}").Val() == 1
	}))
	_, err := get(plans, "three")
	require.NoError(t, err)
	aging(t, rdb, time.Hour) // it is old in Redis
	broken := errors.New("the database is away")
	s.set("three", ginlimit.PerMinute(4), broken)
	ginlimit.ForgetGlance(plans) // a second later
	for range 10 {
		limit, err := get(plans, "three")
		require.NoError(t, err)
		require.Equal(t, ginlimit.PerMinute(3), limit)
		_, err = get(plans, "unlimited")
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
		require.ErrorIs(t, err, broken)
	}
	asked := s.asked.Load()
	require.LessOrEqual(t, asked, int64(10), "a failure is remembered for a second")
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.NotContains(t, log.String(), "three")
	another := newPlans(t, rdb, s)
	limit, err := get(another, "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(3), limit, "the old one in Redis")

	require.NoError(t, process.Signal(syscall.SIGSTOP))
	require.ErrorIs(t, plans.Invalidate(canceled(t), "three"), context.Canceled)
	limit, err = get(plans, "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(3), limit)
	s.set("three", ginlimit.PerMinute(4), nil)
	require.True(t, becomesTrue(t.Context().Done(), func() bool { // each process for itself
		_ = plans.Invalidate(canceled(t), "three")
		limit, err := get(plans, "three")
		require.NoError(t, err)
		return limit == ginlimit.PerMinute(4) && strings.Contains(log.String(), "answers again")
	}))
	require.NoError(t, process.Signal(syscall.SIGCONT))
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// TestPlanChangeTakesEffectAfterInvalidation wants the next request to go by the new plan, in proportion to what is missing.
func TestPlanChangeTakesEffectAfterInvalidation(t *testing.T) {
	t.Parallel()
	rdb, advance := newMiniredis(t)
	s := newSource()
	plans := newPlans(t, rdb, s)
	r := serve(middleware(rdb, ginlimit.PerMinute(1), ginlimit.WithName("plan"), ginlimit.WithKey(ginlimit.ByHeader("X-Client-Id")),
		ginlimit.WithLimitFunc(plans.Limit)))
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
	rdb, s := connect(t, startRedis(t)), newSource()
	plans := newPlans(t, rdb, s, ginlimit.WithTimeout(50*time.Millisecond))
	require.True(t, becomesTrue(t.Context().Done(), func() bool {
		_, err := plans.Get(t.Context(), "three")
		return err == nil
	}))
	aging(t, rdb, time.Hour)
	ginlimit.ForgetGlance(plans)
	s.mu.Lock()
	s.held = make(chan struct{}) // for good
	s.mu.Unlock()
	for range 10 {
		limit, err := plans.Get(t.Context(), "three")
		require.NoError(t, err)
		require.Equal(t, ginlimit.PerMinute(3), limit)
	}
	var all sync.WaitGroup
	for i := range 1000 {
		all.Go(func() {
			_, err := plans.Get(t.Context(), fmt.Sprint("new ", i))
			assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
		})
	}
	all.Wait()
	require.LessOrEqual(t, s.asked.Load(), int64(300), "questions at a time are bounded")
}

// TestLostRedisIsNoStampede wants a life between two questions though Redis keeps nothing.
func TestLostRedisIsNoStampede(t *testing.T) {
	t.Parallel()
	s := newSource()
	plans := newPlans(t, nowhere(t), s, ginlimit.WithTimeout(time.Millisecond))
	for range 10 {
		_, err := plans.Get(t.Context(), "three")
		require.NoError(t, err)
		pause(150 * time.Millisecond)
	}
	require.EqualValues(t, 1, s.asked.Load())
}

// TestInventedClientsLeaveRedis keeps none of them for longer than a life, and a long one as its hash.
func TestInventedClientsLeaveRedis(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	plans := newPlans(t, rdb, newSource(), ginlimit.WithName("users"))
	for _, client := range []string{"nobody", strings.Repeat("long ", 1000), "{}", "three"} {
		_, _ = plans.Get(t.Context(), client)
	}
	for _, key := range rdb.Keys(t.Context(), "*").Val() {
		require.LessOrEqual(t, len(key), 100)
		require.True(t, strings.HasPrefix(key, "ginlimit:plan:{users|") || strings.HasPrefix(key, "ginlimit:plan:{#"), key)
		if !strings.Contains(key, "three") {
			require.LessOrEqual(t, rdb.PTTL(t.Context(), key).Val(), time.Hour)
		}
	}
	_, err := newPlans(t, rdb, &source{}, ginlimit.WithName("tenants")).Get(t.Context(), "three")
	require.ErrorIs(t, err, ginlimit.ErrUnknownClient, "other names are other plans")
}

// TestInvalidationElsewhereOvertakesAQuestion has another process change the plan while the old one is on its way.
func TestInvalidationElsewhereOvertakesAQuestion(t *testing.T) {
	t.Parallel()
	rdb, s := connect(t, startRedis(t)), newSource()
	s.held = make(chan struct{})
	here, elsewhere := newPlans(t, rdb, s), newPlans(t, rdb, s)
	var all sync.WaitGroup
	all.Go(func() { _, _ = here.Get(t.Context(), "three") })
	require.True(t, becomesTrue(t.Context().Done(), func() bool { return s.asked.Load() == 1 }))
	s.mu.Lock()
	old := s.held
	s.plans["three"], s.held = ginlimit.PerMinute(4), nil
	s.mu.Unlock()
	require.NoError(t, elsewhere.Invalidate(t.Context(), "three"))
	close(old)
	all.Wait()
	for _, plans := range []*ginlimit.Plans{here, elsewhere, newPlans(t, rdb, s)} {
		ginlimit.ForgetGlance(plans)
		limit, err := plans.Get(t.Context(), "three")
		require.NoError(t, err)
		require.Equal(t, ginlimit.PerMinute(4), limit)
	}
}

// TestFailedInvalidationHoldsHere has Redis keep the old plan.
func TestFailedInvalidationHoldsHere(t *testing.T) {
	t.Parallel()
	rdb, s := connect(t, startRedis(t)), newSource()
	plans := newPlans(t, rdb, s)
	_, err := plans.Get(t.Context(), "three")
	require.NoError(t, err)
	s.set("three", ginlimit.PerMinute(4), nil)
	require.ErrorIs(t, plans.Invalidate(canceled(t), "three"), context.Canceled)
	require.NoError(t, rdb.Set(t.Context(), "ginlimit:plan:{three}", "3/m", 48*time.Hour).Err())
	limit, err := plans.Get(t.Context(), "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(4), limit)
}

// TestInvalidationOvertakesAQuestion changes a plan while the old one is on its way.
func TestInvalidationOvertakesAQuestion(t *testing.T) {
	t.Parallel()
	rdb, s := connect(t, startRedis(t)), newSource()
	s.held = make(chan struct{})
	plans := newPlans(t, rdb, s)
	var all sync.WaitGroup
	all.Go(func() {
		limit, err := plans.Get(t.Context(), "three")
		assert.NoError(t, err)
		assert.Equal(t, ginlimit.PerMinute(3), limit)
	})
	require.True(t, becomesTrue(t.Context().Done(), func() bool { return s.asked.Load() == 1 }))
	s.mu.Lock()
	old := s.held
	s.plans["three"], s.held = ginlimit.PerMinute(4), nil
	s.mu.Unlock()
	require.NoError(t, plans.Invalidate(t.Context(), "three"))
	for range 2 {
		limit, err := plans.Get(t.Context(), "three")
		require.NoError(t, err)
		require.Equal(t, ginlimit.PerMinute(4), limit)
	}
	close(old)
	all.Wait()
	limit, err := plans.Get(t.Context(), "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(4), limit)
	limit, err = newPlans(t, rdb, s).Get(t.Context(), "three")
	require.NoError(t, err)
	require.Equal(t, ginlimit.PerMinute(4), limit, "in other processes too")
}

// TestPlansSurvive a source that panics, a foreign value in Redis, and more clients than are kept.
func TestPlansSurvive(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	panics, err := ginlimit.NewPlans(rdb, time.Hour, func(context.Context, string) (ginlimit.Limit, error) { panic("fault") }, patient())
	require.NoError(t, err)
	for range 2 {
		_, err = panics.Get(t.Context(), "k")
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	}
	s := newSource()
	require.NoError(t, rdb.RPush(t.Context(), "ginlimit:plan:{three}", "x").Err())
	require.NoError(t, rdb.Set(t.Context(), "ginlimit:plan:{unlimited}", "hello", 0).Err())
	plans := newPlans(t, rdb, s)
	for _, client := range []string{"three", "unlimited"} {
		limit, err := plans.Get(t.Context(), client)
		require.NoError(t, err)
		require.Equal(t, s.plans[client], limit)
	}
	away := newPlans(t, nowhere(t), s, ginlimit.WithTimeout(time.Millisecond))
	for i := range 70_000 {
		_, err := away.Get(t.Context(), fmt.Sprint("client ", i))
		require.ErrorIs(t, err, ginlimit.ErrUnknownClient)
	}
	require.LessOrEqual(t, ginlimit.PlansKept(away), 1<<16)
}

func TestAllFaultsOfPlansAtOnce(t *testing.T) {
	t.Parallel()
	_, err := ginlimit.NewPlans(nil, 0, nil, ginlimit.WithPrefix("{"), nil)
	for _, fault := range []string{"client is nil", "a life of 0s", "source is nil", "WithPrefix", "option 2 is nil"} {
		assert.ErrorContains(t, err, fault)
	}
}

package faults_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What becomes of decisions that Redis does not make. Its faults under load are in integration/faults_test.go.

func TestReplicasShareTheLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit    ginlimit.Limit
		replicas int
		admitted int // at once
		next     time.Duration
	}{
		{ginlimit.PerDay(100), 1, 100, 864 * time.Second},
		{ginlimit.PerDay(100), 4, 25, 3456 * time.Second},
		{ginlimit.PerDay(100), 3, 33, 2618182 * time.Millisecond}, // 33 a day
		{ginlimit.PerDay(100).WithBurst(8), 4, 2, 3456 * time.Second},
		{ginlimit.PerDay(100).WithBurst(3), 4, 1, 3456 * time.Second}, // at least one
		{ginlimit.PerHour(5), 100, 1, time.Hour},                      // at least one an hour
		{ginlimit.PerHour(5), math.MaxInt, 1, time.Hour},
	} {
		t.Run(fmt.Sprintf("%s among %d", c.limit, c.replicas), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limiter := testkit.WithoutRedis(t, ginlimit.WithReplicas(c.replicas))
				for want := c.admitted - 1; want >= 0; want-- {
					r := testkit.Must(limiter.Allow(t.Context(), "k", c.limit))
					require.True(t, r.Allowed)
					require.Equal(t, 1, r.Granted)
					require.Equal(t, want, r.Remaining)
					require.Equal(t, c.limit, r.Limit, "told as it was given")
					require.Equal(t, ginlimit.FromLocal, r.Source)
				}
				r := testkit.Must(limiter.Allow(t.Context(), "k", c.limit))
				require.False(t, r.Allowed)
				require.Equal(t, c.next, r.RetryAfter)
			})
		})
	}
}

func TestCancelledAndClosedAreNotDecidedLocally(t *testing.T) {
	t.Parallel()
	limiter, limit := testkit.WithoutRedis(t), ginlimit.PerHour(10)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, testkit.Err(limiter.Allow(ctx, "k", limit)), context.Canceled)
	r := testkit.Must(limiter.Allow(t.Context(), "k", limit))
	require.Equal(t, 9, r.Remaining, "the cancelled one counts for nothing")
	require.NoError(t, limiter.Close())
	require.ErrorIs(t, testkit.Err(limiter.Allow(t.Context(), "k", limit)), ginlimit.ErrUnavailable)
}

func TestAnswersWithoutRedis(t *testing.T) {
	t.Parallel()
	degraded := http.Header{
		"Content-Type":          {"text/plain; charset=utf-8"},
		"X-Ratelimit-Limit":     {"8"},
		"X-Ratelimit-Remaining": {"1"},
		"X-Ratelimit-Reset":     {"10800"},
		"X-Ratelimit-Status":    {"degraded"},
	}
	for _, c := range []struct {
		failure ginlimit.FailureMode
		codes   []int
		first   map[string]string
	}{
		{ginlimit.FailLocal, []int{200, 200, 429},
			map[string]string{"X-Ratelimit-Remaining": "1", "X-Ratelimit-Reset": "1800"}},
		{ginlimit.FailOpen, []int{200, 200, 200},
			map[string]string{"X-Ratelimit-Remaining": "7", "X-Ratelimit-Reset": "450"}},
		{ginlimit.FailClosed, []int{503, 503, 503}, nil},
	} {
		t.Run(c.failure.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limiter := testkit.WithoutRedis(t, ginlimit.WithReplicas(4))
				r := testkit.Serve(limiter.Handler("8/h", ginlimit.PerHour(8), ginlimit.WithFailureMode(c.failure)))
				for i, code := range c.codes {
					rec := testkit.Get(r, "/")
					require.Equal(t, code, rec.Code)
					if i == 0 && c.first != nil {
						want := degraded.Clone()
						for name, value := range c.first {
							want.Set(name, value)
						}
						assert.Equal(t, want, rec.Header())
					}
					if code == http.StatusTooManyRequests {
						assert.Equal(t, "degraded", rec.Header().Get("X-RateLimit-Status"))
						assert.Equal(t, "1800", rec.Header().Get("Retry-After"))
					}
				}
			})
		})
	}
	t.Run("a local limiter has lost nothing", func(t *testing.T) {
		t.Parallel()
		rec := testkit.Get(testkit.Serve(testkit.NewLocal(t).Handler("8/h", ginlimit.PerHour(8),
			ginlimit.WithFailureMode(ginlimit.FailClosed))), "/")
		assert.Equal(t, http.StatusOK, rec.Code)
		assert.Equal(t, "7", rec.Header().Get("X-RateLimit-Remaining"))
		assert.NotContains(t, rec.Header(), "X-Ratelimit-Status")
	})
}

func TestFailureIsNamed(t *testing.T) {
	t.Parallel()
	for failure, name := range map[ginlimit.FailureMode]string{
		ginlimit.FailLocal: "local", ginlimit.FailOpen: "open", ginlimit.FailClosed: "closed", 9: "unknown",
	} {
		assert.Equal(t, name, failure.String())
	}
	var zero ginlimit.FailureMode
	assert.Equal(t, ginlimit.FailLocal, zero)
}

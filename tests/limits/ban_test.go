package limits_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// banned is a step of a client: it asks after a time, and is admitted, or denied for as long as it says.
type banned struct {
	after time.Duration
	wait  time.Duration
}

func TestBansGrow(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for name, steps := range map[string][]banned{
		"a denial bans": {{}, {}, {wait: 10 * s}, {after: 4 * s, wait: 6 * s}},
		"a ban ends to the millisecond": {{}, {}, {wait: 10 * s},
			{after: 10*s - time.Millisecond, wait: time.Millisecond}, {after: time.Millisecond}},
		"what is denied in it prolongs none": {{}, {}, {wait: 10 * s}, {wait: 10 * s},
			{after: 9 * s, wait: 1 * s}, {after: 1 * s}},
		"on probation twice as long": {{}, {}, {wait: 10 * s}, {after: 10 * s},
			{}, {wait: 20 * s}, {after: 20 * s}, {}, {wait: 40 * s}},
		"the last moment of probation":   {{}, {}, {wait: 10 * s}, {after: 20*s - time.Millisecond}, {}, {wait: 20 * s}},
		"a probation survived clears it": {{}, {}, {wait: 10 * s}, {after: 20 * s}, {}, {wait: 10 * s}},
		"up to the longest": {
			{}, {}, {wait: 10 * s}, {after: 10 * s}, {}, {wait: 20 * s}, {after: 20 * s}, {}, {wait: 40 * s},
			{after: 40 * s}, {}, {wait: 50 * s}, {after: 50 * s}, {}, {wait: 50 * s},
		},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
				if !e.Frozen && e.Rdb != nil {
					return // its clock goes on: TestLoginsThatFailAreBanned
				}
				p := testkit.Must(e.Limiter.Policy("api", ginlimit.PerSecond(2).WithAlgorithm(e.Algorithm),
					ginlimit.WithBan(10*s, 50*s)))
				for i, step := range steps {
					e.Advance(step.after)
					res := testkit.Must(p.Allow(t.Context(), "alice"))
					require.Equal(t, step.wait, res.RetryAfter, "step %d: %+v", i, res)
					require.Equal(t, step.wait == 0, res.Allowed, "step %d", i)
					if step.wait > 0 {
						require.Zero(t, res.Remaining)
						require.GreaterOrEqual(t, res.ResetAfter, step.wait)
						peek := testkit.Must(p.Peek(t.Context(), "alice"))
						require.False(t, peek.Allowed)
						require.Equal(t, step.wait, peek.RetryAfter)
					}
				}
			})
		})
	}
}

func TestWhatBansNobody(t *testing.T) {
	testkit.OnEveryEngine(t, func(t *testing.T, e testkit.Engine) {
		p := testkit.Must(e.Limiter.Policy("api", ginlimit.PerHour(2),
			ginlimit.WithBan(24*time.Hour, 48*time.Hour)))
		res := testkit.Must(p.AllowN(t.Context(), "alice", 3))
		require.Equal(t, ginlimit.Never, res.RetryAfter, "more than the burst")
		res = testkit.Must(p.AllowUpTo(t.Context(), "alice", 3))
		require.Equal(t, 2, res.Granted)
		testkit.Must(p.AllowUpTo(t.Context(), "alice", 3))
		testkit.Must(p.Peek(t.Context(), "alice"))
		require.NoError(t, p.Refund(t.Context(), "alice", 1))
		res = testkit.Must(p.Allow(t.Context(), "alice"))
		require.True(t, res.Allowed)

		res = testkit.Must(p.Allow(t.Context(), "alice"))
		require.InDelta(t, 24*time.Hour, res.RetryAfter, float64(time.Minute))
		require.NoError(t, p.Refund(t.Context(), "alice", 1))
		res = testkit.Must(p.Allow(t.Context(), "alice"))
		require.False(t, res.Allowed, "a refund ends no ban")
		require.NoError(t, p.Reset(t.Context(), "alice"))
		res = testkit.Must(p.Allow(t.Context(), "alice"))
		require.True(t, res.Allowed)
		require.Equal(t, 1, res.Remaining)
	})
}

// TestBannedClientWithoutALimit has a client's limits become unlimited while it is banned.
func TestBannedClientWithoutALimit(t *testing.T) {
	testkit.OnEveryEngine(t, func(t *testing.T, e testkit.Engine) {
		limit := ginlimit.PerHour(1)
		p := testkit.NewPolicy(t, e.Limiter, "api",
			ginlimit.WithBan(2*time.Hour, 2*time.Hour), ginlimit.WithHeaders(ginlimit.RateLimitDraft),
			ginlimit.WithKey(func(*gin.Context) (string, error) { return "alice", nil }),
			ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
				return []ginlimit.Limit{limit}, nil
			}))
		router := testkit.Serve(p.Handler())
		get := func() *httptest.ResponseRecorder { return testkit.Get(router, "/") }
		require.Equal(t, http.StatusOK, get().Code)
		require.Equal(t, http.StatusTooManyRequests, get().Code)
		limit = ginlimit.Unlimited()
		w := get()
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		require.Contains(t, w.Body.String(), `"violated-policies":[]`)
		require.Contains(t, w.Header().Get("Retry-After"), "7")
		require.Zero(t, testkit.Must(p.Allow(t.Context(), "alice")).Remaining)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, p.Wait(ctx, "alice"), context.DeadlineExceeded, "a ban holds for all")
		require.NoError(t, p.Reset(t.Context(), "alice"))
		require.Equal(t, http.StatusOK, get().Code)
	})
}

// TestADenialWithoutRedisTakesOneTimeout, also if a policy that queues would ban.
func TestADenialWithoutRedisTakesOneTimeout(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		limiter, err := ginlimit.NewLimiter(b.Redis, ginlimit.WithTimeout(100*time.Millisecond), ginlimit.WithReplicas(1))
		require.NoError(t, err)
		defer limiter.Close()
		first, err := limiter.Policy("first", ginlimit.PerHour(1))
		require.NoError(t, err)
		second, err := limiter.Policy("second", ginlimit.PerHour(1), ginlimit.WithQueue(1, time.Millisecond),
			ginlimit.WithBan(time.Hour, 2*time.Hour))
		require.NoError(t, err)
		b.Late.Store(true)
		for range 2 {
			start := time.Now()
			testkit.Must(ginlimit.ReserveAll(t.Context(), ginlimit.Charge{Policy: first, Client: "k", N: 1},
				ginlimit.Charge{Policy: second, Client: "k", N: 1}))
			require.LessOrEqual(t, time.Since(start), 120*time.Millisecond)
		}
	})
}

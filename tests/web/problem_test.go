package web_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// The bodies of 4xx and 5xx.

// TestDenialsThatNeverEndSaySo: a cost above the burst, and a limit of none. Retrying helps neither.
func TestDenialsThatNeverEndSaySo(t *testing.T) {
	t.Parallel()
	costs := func(n, most int) string {
		return fmt.Sprintf("This request costs %d and the limit never allows more than %d at once, so "+
			"retrying will not help.", n, most)
	}
	const prohibited = "Requests are not allowed at all, so retrying will not help."
	month := func(n int) ginlimit.Limit { return ginlimit.PerCalendar(n, ginlimit.CalendarMonth(nil, 1)) }
	type options = []ginlimit.PolicyOption
	for name, row := range map[string]struct {
		cost     int
		options  options
		detail   string
		violated string
		left     [3]string // X-RateLimit-Limit, -Remaining and -Reset
	}{
		"a cost above the burst": {12, options{ginlimit.PerMinute(10)}, costs(12, 10), `"search"`, [3]string{"10", "9", "6"}},
		"above one of several limits": {7, options{ginlimit.PerMinute(100), ginlimit.PerHour(6)},
			costs(7, 6), `"search-h"`, [3]string{"6", "5", "600"}},
		"above the later one, while the first is short of tokens": {20,
			options{ginlimit.PerHour(3).WithBurst(20), ginlimit.PerSecond(19)},
			costs(20, 19), `"search-h","search-s"`, [3]string{"19", "18", "1"}},
		"above both": {12, options{ginlimit.PerMinute(10), ginlimit.PerHour(6)},
			costs(12, 6), `"search-m","search-h"`, [3]string{"6", "5", "600"}},
		"a window": {12, options{ginlimit.PerMinute(10).WithAlgorithm(ginlimit.SlidingWindow)},
			costs(12, 10), `"search"`, [3]string{"10", "9", "60"}},
		"a window beside a bucket": {12,
			options{ginlimit.PerHour(100), ginlimit.PerMinute(10).WithAlgorithm(ginlimit.SlidingWindow)},
			costs(12, 10), `"search-m"`, [3]string{"10", "9", "60"}},
		"a month": {12, options{month(10)}, costs(12, 10), `"search"`, [3]string{"10", "9", "2678400"}},
		"a month and a day": {12, options{month(10), ginlimit.PerCalendar(7, ginlimit.CalendarDay(nil))},
			costs(12, 7), `"search-month","search-calendar-day"`, [3]string{"7", "6", "86400"}},
		"prohibited": {1, options{ginlimit.PerMinute(0)}, prohibited, `"search"`, [3]string{"0", "0", "0"}},
	} {
		for kind, limiter := range map[string]func(*testing.T, *testkit.Bubble) *testkit.Limiter{
			"Redis": func(t *testing.T, b *testkit.Bubble) *testkit.Limiter {
				return testkit.NewLimiter(t, b.Redis, ginlimit.WithDenyCache(0))
			},
			"process": func(t *testing.T, _ *testkit.Bubble) *testkit.Limiter { return testkit.NewLocal(t) },
			"without Redis": func(t *testing.T, _ *testkit.Bubble) *testkit.Limiter {
				return testkit.WithoutRedis(t, ginlimit.WithReplicas(2))
			},
		} {
			testkit.RunInBubble(t, name+", "+kind, func(t *testing.T, b *testkit.Bubble) {
				l := limiter(t, b)
				cost := 1
				r := testkit.Serve(l.Handler("search", append(row.options,
					ginlimit.WithCost(func(*gin.Context) int { return cost }))...))
				testkit.Get(r, "/") // so that something is missing
				cost = row.cost
				body := `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
					`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,` +
					`"detail":"` + row.detail + `","violated-policies":[` + row.violated + `]}`
				rec := testkit.Get(r, "/", testkit.With("Accept", "text/plain"))
				assert.Equal(t, http.StatusTooManyRequests, rec.Code)
				assert.Equal(t, body, rec.Body.String())
				headers := http.Header{
					"X-Ratelimit-Limit": {row.left[0]}, "X-Ratelimit-Remaining": {row.left[1]}, "X-Ratelimit-Reset": {row.left[2]},
					"Content-Type":   {"application/problem+json"},
					"Content-Length": {strconv.Itoa(len(body))}, "Cache-Control": {"no-store"},
				}
				if kind == "without Redis" { // the figures are those of this process' share
					if row.detail != prohibited {
						headers["X-Ratelimit-Status"] = []string{"degraded"}
					}
					for _, name := range []string{"X-Ratelimit-Remaining", "X-Ratelimit-Reset"} {
						headers[name] = rec.Header()[name]
					}
				}
				assert.Equal(t, headers, rec.Header())
			})
		}
	}
}

// TestErrorStatusIsWhatTheDefaultAnswers for each error, and without an error nothing is wrong.
func TestErrorStatusIsWhatTheDefaultAnswers(t *testing.T) {
	t.Parallel()
	require.Equal(t, http.StatusOK, ginlimit.ErrorStatus(nil))
	c, _ := gin.CreateTestContext(httptest.NewRecorder())
	c.Request = httptest.NewRequest(http.MethodGet, "/", nil)
	_, missing := ginlimit.ByHeader("X-User")(c)
	require.Error(t, missing)
	for _, row := range []struct {
		err  error
		want int
	}{
		{missing, 400},
		{ginlimit.ErrBadRequest, 400},
		{fmt.Errorf("%w: %w", ginlimit.ErrNoKey, ginlimit.ErrBadRequest), 400},
		{ginlimit.ErrUnknownClient, 403},
		{ginlimit.ErrUnavailable, 503},
		{fmt.Errorf("%w: %w", ginlimit.ErrUnavailable, context.Canceled), 503},
		{context.Canceled, 503},
		{context.DeadlineExceeded, 503},
		{ginlimit.ErrNoKey, 500},
		{ginlimit.ErrInvalidArgument, 500},
		{errors.New("broken"), 500},
	} {
		fails := ginlimit.WithKey(func(*gin.Context) (string, error) { return "", fmt.Errorf("wrapped: %w", row.err) })
		limiter := testkit.NewLocal(t, ginlimit.WithLogger(slog.New(slog.DiscardHandler)))
		rec := testkit.Get(testkit.Serve(limiter.Handler("test", ginlimit.PerHour(1), fails)), "/")
		require.Equal(t, row.want, rec.Code, row.err)
		require.Equal(t, row.want, ginlimit.ErrorStatus(fmt.Errorf("wrapped: %w", row.err)), row.err)
	}
}

// TestResultAsJSON, to the byte.
func TestResultAsJSON(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]ginlimit.Result{
		`{"allowed":true,"granted":2,"limit":"5/h burst 9","name":"api","remaining":7,"retry_after":0,` +
			`"reset_after":1440,"source":"redis"}`: {
			Allowed: true, Granted: 2, Limit: ginlimit.PerHour(5).WithBurst(9), Name: "api", Remaining: 7,
			ResetAfter: 24 * time.Minute,
		},
		`{"allowed":false,"granted":0,"limit":"2 in flight","name":"api-c","remaining":0,"retry_after":1.5,` +
			`"reset_after":0.012,"source":"policy","cause":"queue_full"}`: {
			Limit: ginlimit.InFlight(2), Name: "api-c", RetryAfter: 1500 * time.Millisecond,
			ResetAfter: 12 * time.Millisecond, Source: ginlimit.FromPolicy, Cause: ginlimit.CauseQueueFull,
		},
		`{"allowed":true,"granted":0,"limit":"unlimited","name":"a\"b","remaining":null,"retry_after":0,` +
			`"reset_after":0,"source":"policy"}`: {
			Allowed: true, Limit: ginlimit.Unlimited(), Name: `a"b`, Remaining: math.MaxInt, Source: ginlimit.FromPolicy,
		},
		`{"allowed":false,"granted":0,"limit":"","name":"api","remaining":0,"retry_after":null,` +
			`"reset_after":0,"source":"policy","cause":"list"}`: {
			Name: "api", RetryAfter: ginlimit.Never, Source: ginlimit.FromPolicy, Cause: ginlimit.CauseList,
		},
	} {
		text := testkit.Must(json.Marshal(r))
		require.Equal(t, want, string(text))
		text = testkit.Must(json.Marshal([]*ginlimit.Result{&r}))
		require.Equal(t, "["+want+"]", string(text))
	}
}

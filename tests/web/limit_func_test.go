package web_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Limits per client.

// TestErrorsOfALimitFuncAreEvents of the methods that take tokens, as of requests.
func TestErrorsOfALimitFuncAreEvents(t *testing.T) {
	t.Parallel()
	var seen events
	p := testkit.NewPolicy(t, testkit.NewLocal(t, ginlimit.WithObserver(seen.observe)), "plan", testkit.ByUser(),
		ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
			return nil, ginlimit.ErrUnknownClient
		}))
	ctx, n := t.Context(), 2
	for name, method := range methodsOf(p, &ctx, &n) {
		require.ErrorIs(t, method("k"), ginlimit.ErrUnknownClient, name)
		require.ErrorIs(t, method(""), ginlimit.ErrNoKey, name)
		cost, takes := map[string]int{"Allow": 1, "AllowN": 2, "AllowUpTo": 2, "Wait": 1, "WaitN": 2}[name]
		if !takes {
			require.Empty(t, seen.take(t), name)
			continue
		}
		require.Equal(t,
			[]ginlimit.Event{{Name: "plan", Outcome: ginlimit.OutcomeFailed, Source: ginlimit.FromPolicy,
				Reason: "unknown_client", Cost: cost}}, seen.take(t), name)
	}
	require.Equal(t, http.StatusForbidden, testkit.Get(testkit.Serve(p.Handler()), "/", testkit.User("k")).Code)
	require.Equal(t,
		[]ginlimit.Event{{Name: "plan", Outcome: ginlimit.OutcomeFailed, Source: ginlimit.FromPolicy,
			Reason: "unknown_client", Cost: 1}}, seen.take(t))
}

// TestLimitFuncReturnsAllLimits: the policy has none of its own.
func TestLimitFuncReturnsAllLimits(t *testing.T) {
	t.Parallel()
	type key struct{}
	rdb, advance := testkit.NewMiniredis(t)
	var mu sync.Mutex
	plans := map[string][]ginlimit.Limit{
		"both": {ginlimit.PerHour(3), ginlimit.PerMinute(2)},
		"one":  {ginlimit.PerMinute(1)},
		"many": {ginlimit.PerSecond(50), ginlimit.PerMinute(40), ginlimit.PerHour(30),
			ginlimit.PerDay(2), {Rate: 10, Period: time.Hour * 48}, {Rate: 9, Period: time.Hour * 49}},
		"unlimited":  {ginlimit.PerHour(-1)},
		"half":       {ginlimit.PerHour(-1), ginlimit.PerDay(1)},
		"prohibited": {ginlimit.PerHour(5), ginlimit.PerDay(0)},
		"none":       {},
		"zero":       {{}},
		"one or two": {ginlimit.PerMinute(1), {}},
		"twice":      {ginlimit.PerHour(5), ginlimit.PerHour(6)},
	}
	var asked []string
	limitFunc := func(ctx context.Context, client string) ([]ginlimit.Limit, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, fmt.Sprint(client, " ", ctx.Value(key{})))
		switch client {
		case "unknown":
			return nil, fmt.Errorf("the database: %w", ginlimit.ErrUnknownClient)
		case "broken":
			return plans["one"], errors.New("out of order")
		case "late":
			return nil, fmt.Errorf("the database: %w", ginlimit.ErrUnavailable)
		}
		return plans[client], nil
	}
	limiter := testkit.NewLimiter(t, rdb)
	r := testkit.Serve(func(c *gin.Context) {
		c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), key{}, "of the request"))
	}, limiter.Handler("plan", testkit.ByUser(), ginlimit.WithLimitFunc(limitFunc),
		ginlimit.WithHeaders(ginlimit.RateLimitDraft|ginlimit.XRateLimit), ginlimit.WithSkip(func(
			c *gin.Context) bool {
			return c.GetHeader("X-Skip") != ""
		})))
	codes := func(client string, want ...int) {
		t.Helper()
		for i, code := range want {
			require.Equal(t, code, testkit.Get(r, "/", testkit.User(client)).Code, "%s, request %d", client, i)
		}
	}
	codes("both", 200, 200, 429)
	advance(time.Minute)
	codes("both", 200, 429, 429)
	advance(time.Minute)
	codes("both", 429) // by the hour
	codes("one", 200, 429)
	codes("many", 200, 200, 429)
	codes("unlimited", 200, 200, 200, 200)
	codes("half", 200, 429)
	codes("prohibited", 429)
	codes("none", 500)
	codes("zero", 500)
	codes("one or two", 500)
	codes("twice", 500)
	codes("unknown", 403)
	codes("broken", 500)
	codes("late", 503)
	rec := testkit.Get(r, "/", testkit.User("both"))
	require.Equal(t, `"plan-h";q=3;w=3600, "plan-m";q=2;w=60`, rec.Header().Get("RateLimit-Policy"), "it lists all")

	// What is changed takes effect at once, on the same buckets.
	advance(time.Minute)
	plans["one"][0] = ginlimit.PerMinute(5)
	codes("one", 200, 200, 200, 200, 200, 429)
	advance(12 * time.Second)
	plans["one"] = []ginlimit.Limit{ginlimit.PerMinute(10)} // of which eight are missing
	codes("one", 200, 200, 429)

	mu.Lock()
	defer mu.Unlock()
	require.Contains(t, asked, "both of the request")
	asked = nil
	mu.Unlock()
	require.Equal(t, http.StatusOK, testkit.Get(r, "/", testkit.User("unknown"), testkit.With("X-Skip", "1")).Code)
	mu.Lock()
	require.Empty(t, asked, "nobody is asked about who is not counted")
}

// TestSettledThoughNothingIsCounted: the function of WithSettle is called for each request that is
// allowed, also if no limit counts.
func TestSettledThoughNothingIsCounted(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	calls, l := 0, testkit.NewLimiter(t, rdb)
	settles := ginlimit.WithSettle(func(*gin.Context) int { calls++; return 7 })
	one, other := l.Must("one", ginlimit.Unlimited(), settles), l.Must("other", ginlimit.Unlimited(), settles)
	require.Equal(t, http.StatusOK, testkit.Get(testkit.Serve(one.Handler()), "/").Code)
	require.Equal(t, 1, calls)
	require.Equal(t, http.StatusOK, testkit.Get(testkit.Serve(ginlimit.AllOf(one, other)), "/").Code)
	require.Equal(t, 3, calls)
}

// TestFieldsOfLaterPeriodsAreKept: what header fields say of a calendar's limits is made once for
// each period.
func TestFieldsOfLaterPeriodsAreKept(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		p := testkit.Must(testkit.NewLocal(t).Policy("a", ginlimit.PerCalendar(1000, ginlimit.CalendarDay(nil)),
			ginlimit.PerSecond(1000), ginlimit.WithHeaders(ginlimit.RateLimitDraft)))
		router := testkit.Serve(p.Handler())
		allocations := func() float64 { // the least of some, as a pool may be emptied meanwhile
			least := math.Inf(1)
			for range 10 {
				least = min(least, testing.AllocsPerRun(50, func() { testkit.Get(router, "/") }))
			}
			return least
		}
		first := allocations()
		time.Sleep(48 * time.Hour)
		testkit.Get(router, "/")
		require.Less(t, allocations(), first+1.5) // one of a pool; fields made anew are two more
	})
}

package web_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
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

	require.Contains(t, asked, "both of the request")
	asked = nil
	require.Equal(t, http.StatusOK, testkit.Get(r, "/", testkit.User("unknown"), testkit.With("X-Skip", "1")).Code)
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
	synctest.Test(t, func(t *testing.T) {
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

// Who shares a bucket.

// TestNamesDecideWhoShares of two processes.
func TestNamesDecideWhoShares(t *testing.T) {
	t.Parallel()
	type limits = []ginlimit.Limit
	minute, hour := ginlimit.PerMinute(5), ginlimit.PerHour(50)
	for _, c := range []struct {
		name, second string // of the policy a, and of this one
		limits       [2]limits
		share        bool
	}{
		{"another text", "a", [2]limits{{minute}, {minute.WithBurst(5)}}, true},
		{"limits in another order", "a", [2]limits{{hour, minute}, {minute, hour}}, true},
		{"one of several limits", "a", [2]limits{{minute}, {hour, minute}}, true},
		{"one algorithm in common", "a", [2]limits{{minute},
			{ginlimit.PerMinute(9).WithAlgorithm(ginlimit.FixedWindow), minute}}, true},
		{"different names", "b", [2]limits{{minute}, {minute}}, false},
		{"another rate", "a", [2]limits{{minute}, {ginlimit.PerMinute(6)}}, true},
		{"two periods", "a", [2]limits{{minute}, {ginlimit.PerHour(5)}}, false},
		{"two algorithms", "a", [2]limits{{minute}, {minute.WithAlgorithm(ginlimit.SlidingWindow)}}, false},
	} {
		testkit.Run(t, c.name, func(t *testing.T) {
			rdb, _ := testkit.NewMiniredis(t)
			var log bytes.Buffer
			logger := ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
			first := testkit.NewLimiter(t, rdb, logger).Handler("a", ginlimit.WithLimits(c.limits[0]...))
			second := testkit.NewLimiter(t, rdb, logger).Handler(c.second, ginlimit.WithLimits(c.limits[1]...))
			r := gin.New()
			_ = r.SetTrustedProxies(nil)
			done := func(c *gin.Context) {}
			r.GET("/first", first, done)
			r.GET("/second", second, done)
			r.GET("/both", first, second, done)

			testkit.Get(r, "/first")
			remaining := testkit.Must(strconv.Atoi(testkit.Get(r, "/second").Header().Get("X-RateLimit-Remaining")))
			limit := testkit.Must(strconv.Atoi(testkit.Get(r, "/second").Header().Get("X-RateLimit-Limit")))
			assert.Equal(t, c.share, remaining < limit-1)

			const warning = "two handlers charge one bucket"
			require.NotContains(t, log.String(), warning)
			testkit.Get(r, "/both")
			testkit.Get(r, "/both")
			warnings := strings.Count(log.String(), warning)
			if c.share {
				assert.Equal(t, 1, warnings, log.String())
				assert.NotContains(t, log.String(), "192.0.2.1", "no client's key")
			} else {
				assert.Zero(t, warnings, log.String())
			}
		})
	}
}

// TestClientsOfOneServerShareBuckets: they are warned of as two handlers of one client are, also in two limiters.
func TestClientsOfOneServerShareBuckets(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	addr := rdb.Options().Addr
	own := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	for name, row := range map[string]struct {
		options redis.Options
		warns   bool
		opts    []ginlimit.LimiterOption
	}{
		"of one address":      {redis.Options{Addr: addr}, true, nil},
		"of other options":    {redis.Options{Addr: addr, PoolSize: 3, ReadTimeout: time.Second}, true, nil},
		"of another database": {redis.Options{Addr: addr, DB: 1}, false, nil},
		"of another prefix":   {redis.Options{Addr: addr}, false, []ginlimit.LimiterOption{ginlimit.WithPrefix("other")}},
		// A Dialer of the application may lead anywhere.
		"of an own Dialer": {redis.Options{Addr: addr, Dialer: own}, false, nil},
	} {
		testkit.Run(t, name, func(t *testing.T) {
			other := redis.NewClient(&row.options)
			t.Cleanup(func() { _ = other.Close() })
			var log bytes.Buffer
			logger := ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
			testkit.Get(testkit.Serve(testkit.NewLimiter(t, rdb, logger).Handler("p", ginlimit.PerMinute(100)),
				testkit.NewLimiter(t, other, append(row.opts, logger)...).Handler("p", ginlimit.PerMinute(100)),
				testkit.NewLocal(t, logger).Handler("p", ginlimit.PerMinute(100))), "/")
			require.Equal(t, row.warns, strings.Contains(log.String(), "two handlers charge one bucket"), log.String())
		})
	}
}

// TestAPolicyInTheCallbackOfAnother decides before that one, and the denial of either is answered.
func TestAPolicyInTheCallbackOfAnother(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		inner, outer ginlimit.Limit
		denies       string
	}{
		"the outer one denies": {ginlimit.PerHour(100), ginlimit.PerHour(1), "outer"},
		"the inner one denies": {ginlimit.PerHour(1), ginlimit.PerHour(100), "inner"},
	} {
		l := testkit.NewLocal(t)
		inner := l.Handler("inner", row.inner)
		outer := l.Handler("outer", row.outer, ginlimit.WithCost(func(c *gin.Context) int {
			inner(c)
			return 1
		}))
		var last ginlimit.Result
		r := testkit.Serve(func(c *gin.Context) {
			c.Next()
			last, _ = ginlimit.FromContext(c)
		}, outer)
		require.Equal(t, http.StatusOK, testkit.Get(r, "/").Code, name)
		require.Equal(t, 0, last.Remaining, name)
		require.Equal(t, row.denies, last.Name, name)
		denied := testkit.Get(r, "/")
		require.Equal(t, http.StatusTooManyRequests, denied.Code, name)
		require.Contains(t, denied.Body.String(), `"violated-policies":["`+row.denies+`"]`, name)
		require.False(t, last.Allowed, name)
	}
}

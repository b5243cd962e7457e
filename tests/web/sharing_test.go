package web_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Who shares a bucket.

func TestNamesDecideWhoShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		first  func(l *testkit.Limiter) gin.HandlerFunc
		second func(l *testkit.Limiter) gin.HandlerFunc
		share  bool
	}{
		{"one name, another text",
			func(l *testkit.Limiter) gin.HandlerFunc { return l.Handler("a", ginlimit.PerMinute(5)) },
			func(l *testkit.Limiter) gin.HandlerFunc { return l.Handler("a", ginlimit.PerMinute(5).WithBurst(5)) }, true},
		{"one name, limits in another order",
			func(l *testkit.Limiter) gin.HandlerFunc {
				return l.Handler("a", ginlimit.PerHour(50), ginlimit.PerMinute(5))
			},
			func(l *testkit.Limiter) gin.HandlerFunc {
				return l.Handler("a", ginlimit.PerMinute(5), ginlimit.PerHour(50))
			}, true},
		{"one name, one of several limits",
			func(l *testkit.Limiter) gin.HandlerFunc { return l.Handler("a", ginlimit.PerMinute(5)) },
			func(l *testkit.Limiter) gin.HandlerFunc {
				return l.Handler("a", ginlimit.PerHour(50), ginlimit.PerMinute(5))
			}, true},
		{"one name, one algorithm in common",
			func(l *testkit.Limiter) gin.HandlerFunc { return l.Handler("a", ginlimit.PerMinute(5)) },
			func(l *testkit.Limiter) gin.HandlerFunc {
				return l.Handler("a", ginlimit.PerMinute(9).WithAlgorithm(ginlimit.FixedWindow), ginlimit.PerMinute(5))
			}, true},
		{"different names",
			func(l *testkit.Limiter) gin.HandlerFunc {
				return l.Handler("a", ginlimit.PerMinute(5))
			},
			func(l *testkit.Limiter) gin.HandlerFunc {
				return l.Handler("b", ginlimit.PerMinute(5))
			}, false},
		{"one name",
			func(l *testkit.Limiter) gin.HandlerFunc {
				return l.Handler("a", ginlimit.PerMinute(5))
			},
			func(l *testkit.Limiter) gin.HandlerFunc {
				return l.Handler("a", ginlimit.PerMinute(6))
			}, true},
		{"one name, two periods",
			func(l *testkit.Limiter) gin.HandlerFunc {
				return l.Handler("a", ginlimit.PerMinute(5))
			},
			func(l *testkit.Limiter) gin.HandlerFunc {
				return l.Handler("a", ginlimit.PerHour(5))
			}, false},
		{"one name, two algorithms",
			func(l *testkit.Limiter) gin.HandlerFunc {
				return l.Handler("a", ginlimit.PerMinute(5))
			},
			func(l *testkit.Limiter) gin.HandlerFunc {
				return l.Handler("a", ginlimit.PerMinute(5).WithAlgorithm(ginlimit.SlidingWindow))
			}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rdb, _ := testkit.NewMiniredis(t)
			var log bytes.Buffer
			l := testkit.NewLimiter(t, rdb, ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			r := gin.New()
			_ = r.SetTrustedProxies(nil)
			done := func(c *gin.Context) {}
			r.GET("/first", c.first(l), done)
			r.GET("/second", c.second(l), done)
			r.GET("/both", c.first(l), c.second(l), done)

			testkit.Get(r, "/first")
			remaining, err := strconv.Atoi(testkit.Get(r, "/second").Header().Get("X-RateLimit-Remaining"))
			require.NoError(t, err)
			limit, err := strconv.Atoi(testkit.Get(r, "/second").Header().Get("X-RateLimit-Limit"))
			require.NoError(t, err)
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

func TestOtherLimitersAreOtherBuckets(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	var log bytes.Buffer
	logger := ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
	local, err := ginlimit.NewLocal(logger)
	require.NoError(t, err)
	r := testkit.Serve(
		testkit.Middleware(rdb, ginlimit.PerMinute(5), logger),
		testkit.Middleware(rdb, ginlimit.PerMinute(5), logger, ginlimit.WithPrefix("other")),
		local.Handler("5/m", ginlimit.PerMinute(5)))
	assert.Equal(t, "4", testkit.Get(r, "/").Header().Get("X-RateLimit-Remaining"))
	assert.Empty(t, log.String())

	r = testkit.Serve(testkit.Middleware(rdb, ginlimit.PerMinute(5), logger),
		testkit.Middleware(rdb, ginlimit.PerMinute(5), logger))
	testkit.Get(r, "/")
	assert.Contains(t, log.String(), "two handlers charge one bucket", "two limiters, one bucket")
}

// TestOneNameWithSeveralAlgorithmsIsWarnedOf, once: its policies share no buckets, as their name suggests.
func TestOneNameWithSeveralAlgorithmsIsWarnedOf(t *testing.T) {
	t.Parallel()
	type options = []ginlimit.PolicyOption
	minute, month := ginlimit.PerMinute(5), ginlimit.PerCalendar(5, ginlimit.CalendarMonth(nil, 1))
	windowed := func(l ginlimit.Limit) ginlimit.Limit { return l.WithAlgorithm(ginlimit.FixedWindow) }
	window, sliding := windowed(minute), minute.WithAlgorithm(ginlimit.SlidingWindow)
	for title, row := range map[string]struct {
		first  options
		name   string // of the second
		second options
		warns  bool
	}{
		"another algorithm": {options{minute}, "api", options{window}, true},
		"two windows":       {options{sliding}, "api", options{window}, true},
		"another rate":      {options{minute}, "api", options{windowed(ginlimit.PerMinute(6))}, true},
		"a further limit":   {options{minute}, "api", options{ginlimit.PerHour(6), window}, true},
		"one algorithm":     {options{window}, "api", options{window}, false},
		"another name":      {options{minute}, "b", options{window}, false},
		"another period":    {options{minute}, "api", options{windowed(ginlimit.PerHour(5))}, false},
		"a calendar":        {options{month}, "api", options{window}, false},
		"limits of a plan": {options{testkit.LimitsFrom(minute)},
			"api", options{testkit.LimitsFrom(window)}, false},
		"both algorithms in one policy": {options{minute, window}, "api", options{minute, window}, false},
		"one of both algorithms":        {options{minute, window}, "api", options{window}, false},
		"neither of both":               {options{minute, sliding}, "api", options{window}, true},
		"slots":                         {options{ginlimit.InFlight(1)}, "api", options{minute, ginlimit.InFlight(2)}, false},
		"a limit never counted":         {options{ginlimit.PerMinute(-1)}, "api", options{window}, false},
		"a configuration in error":      {options{minute, ginlimit.WithKey(nil)}, "api", options{window}, false},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			l := testkit.NewLocal(t, ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			for range 3 {
				_, _ = l.Policy("api", row.first...)
				_, err := l.Policy(row.name, row.second...)
				require.NoError(t, err)
			}
			if !row.warns {
				require.Empty(t, log.String())
				return
			}
			require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
			require.Contains(t, log.String(), "level=WARN")
			require.Contains(t, log.String(), "name=api period=m ")
			require.Contains(t, log.String(), "other=fixed-window")
		})
	}
}

// TestNamesThatAreComparedAreBounded: of many policies, the first are compared with later ones.
func TestNamesThatAreComparedAreBounded(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	l := testkit.NewLocal(t, ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	const names = 3000
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow} {
		for i := range names {
			testkit.NewPolicy(t, l, strconv.Itoa(i), ginlimit.PerMinute(5).WithAlgorithm(a))
		}
	}
	require.Equal(t, 1024, strings.Count(log.String(), "\n"))
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
	}{
		"of one address":      {redis.Options{Addr: addr}, true},
		"of other options":    {redis.Options{Addr: addr, PoolSize: 3, ReadTimeout: time.Second}, true},
		"of another database": {redis.Options{Addr: addr, DB: 1}, false},
		// A Dialer of the application may lead anywhere.
		"of an own Dialer": {redis.Options{Addr: addr, Dialer: own}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			other := redis.NewClient(&row.options)
			t.Cleanup(func() { _ = other.Close() })
			var log bytes.Buffer
			logger := ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
			testkit.Get(testkit.Serve(testkit.Middleware(rdb, ginlimit.PerMinute(100), logger),
				testkit.Middleware(other, ginlimit.PerMinute(100), logger)), "/")
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

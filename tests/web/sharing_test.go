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

// TestNamesDecideWhoShares of two processes.
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
			logger := ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
			first := c.first(testkit.NewLimiter(t, rdb, logger))
			second := c.second(testkit.NewLimiter(t, rdb, logger))
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

func TestOtherLimitersAreOtherBuckets(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	var log bytes.Buffer
	logger := ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
	local := testkit.Must(ginlimit.NewLocal(logger))
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

package ginlimit_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/harness"
)

// Who shares a bucket.

func TestNamesDecideWhoShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		first  func(l *ginlimit.Limiter) gin.HandlerFunc
		second func(l *ginlimit.Limiter) gin.HandlerFunc
		share  bool
	}{
		{"equal limits",
			func(l *ginlimit.Limiter) gin.HandlerFunc { return l.Handler(ginlimit.PerMinute(5)) },
			func(l *ginlimit.Limiter) gin.HandlerFunc { return l.Handler(ginlimit.PerMinute(5).WithBurst(5)) }, true},
		{"different rates",
			func(l *ginlimit.Limiter) gin.HandlerFunc { return l.Handler(ginlimit.PerMinute(5)) },
			func(l *ginlimit.Limiter) gin.HandlerFunc { return l.Handler(ginlimit.PerMinute(6)) }, false},
		{"the same limits in another order",
			func(l *ginlimit.Limiter) gin.HandlerFunc {
				return l.Handler(ginlimit.PerHour(50), ginlimit.WithLimits(ginlimit.PerMinute(5)))
			},
			func(l *ginlimit.Limiter) gin.HandlerFunc {
				return l.Handler(ginlimit.PerMinute(5), ginlimit.WithLimits(ginlimit.PerHour(50)))
			}, true},
		{"one of several limits",
			func(l *ginlimit.Limiter) gin.HandlerFunc { return l.Handler(ginlimit.PerMinute(5)) },
			func(l *ginlimit.Limiter) gin.HandlerFunc {
				return l.Handler(ginlimit.PerMinute(5), ginlimit.WithLimits(ginlimit.PerHour(50)))
			}, false},
		{"different names",
			func(l *ginlimit.Limiter) gin.HandlerFunc {
				return l.Handler(ginlimit.PerMinute(5), ginlimit.WithName("a"))
			},
			func(l *ginlimit.Limiter) gin.HandlerFunc {
				return l.Handler(ginlimit.PerMinute(5), ginlimit.WithName("b"))
			}, false},
		{"one name",
			func(l *ginlimit.Limiter) gin.HandlerFunc {
				return l.Handler(ginlimit.PerMinute(5), ginlimit.WithName("a"))
			},
			func(l *ginlimit.Limiter) gin.HandlerFunc {
				return l.Handler(ginlimit.PerMinute(6), ginlimit.WithName("a"))
			}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rdb, _ := newMiniredis(t)
			var log bytes.Buffer
			l := harness.NewLimiter(t, rdb, ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			r := gin.New()
			_ = r.SetTrustedProxies(nil)
			done := func(c *gin.Context) {}
			r.GET("/first", c.first(l), done)
			r.GET("/second", c.second(l), done)
			r.GET("/both", c.first(l), c.second(l), done)

			get(r, "/first")
			remaining, err := strconv.Atoi(get(r, "/second").Header().Get("X-RateLimit-Remaining"))
			require.NoError(t, err)
			limit, err := strconv.Atoi(get(r, "/second").Header().Get("X-RateLimit-Limit"))
			require.NoError(t, err)
			assert.Equal(t, c.share, remaining < limit-1)

			require.Empty(t, log.String())
			get(r, "/both")
			get(r, "/both")
			warnings := strings.Count(log.String(), "level=WARN")
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
	rdb, _ := newMiniredis(t)
	var log bytes.Buffer
	logger := ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
	local, err := ginlimit.NewLocal(logger)
	require.NoError(t, err)
	r := serve(
		middleware(rdb, ginlimit.PerMinute(5), logger),
		middleware(rdb, ginlimit.PerMinute(5), logger, ginlimit.WithPrefix("other")),
		local.Handler(ginlimit.PerMinute(5)))
	assert.Equal(t, "4", get(r, "/").Header().Get("X-RateLimit-Remaining"))
	assert.Empty(t, log.String())

	r = serve(middleware(rdb, ginlimit.PerMinute(5), logger), middleware(rdb, ginlimit.PerMinute(5), logger))
	get(r, "/")
	assert.Contains(t, log.String(), "WithName", "two limiters, one bucket")
}

// TestKeysWithoutANameAreNoAddresses has a client send another one's address as its key.
func TestKeysWithoutANameAreNoAddresses(t *testing.T) {
	t.Parallel()
	local, err := ginlimit.NewLocal()
	require.NoError(t, err)
	r := gin.New()
	require.NoError(t, r.SetTrustedProxies(nil))
	ok := func(c *gin.Context) { c.Status(http.StatusOK) }
	r.GET("/page", local.Handler(ginlimit.PerMinute(1)), ok)
	r.GET("/api", local.Handler(ginlimit.PerMinute(1), ginlimit.WithKey(ginlimit.ByHeader("X-Api-Key"))), ok)
	forged := func(r *http.Request) { r.Header["X-Api-Key"] = []string{"192.0.2.9"} }
	require.Equal(t, http.StatusOK, get(r, "/api", from("198.51.100.6:1"), forged).Code)
	require.Equal(t, http.StatusTooManyRequests, get(r, "/api", from("198.51.100.6:1"), forged).Code)
	require.Equal(t, http.StatusOK, get(r, "/page", from("192.0.2.9:1")).Code)
}

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
		{"one name, two periods",
			func(l *ginlimit.Limiter) gin.HandlerFunc {
				return l.Handler(ginlimit.PerMinute(5), ginlimit.WithName("a"))
			},
			func(l *ginlimit.Limiter) gin.HandlerFunc {
				return l.Handler(ginlimit.PerHour(5), ginlimit.WithName("a"))
			}, false},
		{"one name, two algorithms",
			func(l *ginlimit.Limiter) gin.HandlerFunc {
				return l.Handler(ginlimit.PerMinute(5), ginlimit.WithName("a"))
			},
			func(l *ginlimit.Limiter) gin.HandlerFunc {
				return l.Handler(ginlimit.PerMinute(5), ginlimit.WithName("a"), ginlimit.WithAlgorithm(ginlimit.SlidingWindow))
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
		local.Handler(ginlimit.PerMinute(5)))
	assert.Equal(t, "4", testkit.Get(r, "/").Header().Get("X-RateLimit-Remaining"))
	assert.Empty(t, log.String())

	r = testkit.Serve(testkit.Middleware(rdb, ginlimit.PerMinute(5), logger),
		testkit.Middleware(rdb, ginlimit.PerMinute(5), logger))
	testkit.Get(r, "/")
	assert.Contains(t, log.String(), "WithName", "two limiters, one bucket")
}

// TestOneNameWithSeveralAlgorithmsIsWarnedOf, once: its policies share no buckets, as their name suggests.
func TestOneNameWithSeveralAlgorithmsIsWarnedOf(t *testing.T) {
	t.Parallel()
	type options = []ginlimit.Option
	name, window := ginlimit.WithName("api"), ginlimit.WithAlgorithm(ginlimit.FixedWindow)
	sliding := ginlimit.WithAlgorithm(ginlimit.SlidingWindow)
	minute, month := ginlimit.PerMinute(5), ginlimit.PerCalendar(5, ginlimit.CalendarMonth(nil, 1))
	byPlan := ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) { return nil, nil })
	identity := ginlimit.WithIdentity("api", ginlimit.ByClientIP, minute)
	for title, row := range map[string]struct {
		limits [2]ginlimit.Limit
		first  options
		second options
		warns  bool
	}{
		"another algorithm": {[2]ginlimit.Limit{minute, minute}, options{name}, options{name, window}, true},
		"two windows":       {[2]ginlimit.Limit{minute, minute}, options{name, sliding}, options{name, window}, true},
		"another rate": {[2]ginlimit.Limit{minute, ginlimit.PerMinute(6)},
			options{name}, options{name, window}, true},
		"a further limit": {[2]ginlimit.Limit{minute, ginlimit.PerHour(6)},
			options{name}, options{name, window, ginlimit.WithLimits(minute)}, true},
		"an identity": {[2]ginlimit.Limit{minute, minute}, options{name},
			options{ginlimit.WithName("b"), identity, window}, true},
		"one algorithm": {[2]ginlimit.Limit{minute, minute}, options{name, window}, options{name, window}, false},
		"another name": {[2]ginlimit.Limit{minute, minute}, options{name},
			options{ginlimit.WithName("b"), window}, false},
		"no name": {[2]ginlimit.Limit{minute, minute}, nil, options{window}, false},
		"another period": {[2]ginlimit.Limit{minute, ginlimit.PerHour(5)},
			options{name}, options{name, window}, false},
		"a calendar": {[2]ginlimit.Limit{month, month}, options{name}, options{name, window}, false},
		"limits of a plan": {[2]ginlimit.Limit{minute, minute}, options{name, byPlan},
			options{name, byPlan, window}, false},
		"what is never counted": {[2]ginlimit.Limit{ginlimit.PerMinute(-1), minute},
			options{name}, options{name, window}, false},
		"a configuration in error": {[2]ginlimit.Limit{minute, minute},
			options{name, ginlimit.WithKey(nil)}, options{name, window}, false},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			l := testkit.NewLocal(t, ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			for range 3 {
				_, _ = l.Policy(row.limits[0], row.first...)
				_, err := l.Policy(row.limits[1], row.second...)
				require.NoError(t, err)
			}
			if !row.warns {
				require.Empty(t, log.String())
				return
			}
			require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
			require.Contains(t, log.String(), "level=WARN")
			require.Contains(t, log.String(), "name=api period=m ")
			require.Contains(t, log.String(), `"fixed window"`)
		})
	}
}

// TestAlgorithmOfADefaultIdentity is that of the policy whose identity it is, though the limiter has another one.
func TestAlgorithmOfADefaultIdentity(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	l := testkit.NewLocal(t, ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
		ginlimit.WithIdentity("user", ginlimit.ByHeader("X-User"), ginlimit.PerMinute(5)))
	testkit.NewPolicy(t, l, ginlimit.PerMinute(5), ginlimit.WithAlgorithm(ginlimit.FixedWindow))
	require.Empty(t, log.String())
	testkit.NewPolicy(t, l, ginlimit.PerMinute(5))
	require.Contains(t, log.String(), "name=user")
}

// TestNamesThatAreComparedAreBounded: of many policies, the first are compared with later ones.
func TestNamesThatAreComparedAreBounded(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	l := testkit.NewLocal(t, ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	const names = 3000
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow} {
		for i := range names {
			testkit.NewPolicy(t, l, ginlimit.PerMinute(5), ginlimit.WithName(strconv.Itoa(i)), ginlimit.WithAlgorithm(a))
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
			require.Equal(t, row.warns, strings.Contains(log.String(), "WithName"), log.String())
		})
	}
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
	require.Equal(t, http.StatusOK, testkit.Get(r, "/api", testkit.From("198.51.100.6:1"), forged).Code)
	require.Equal(t, http.StatusTooManyRequests, testkit.Get(r, "/api", testkit.From("198.51.100.6:1"), forged).Code)
	require.Equal(t, http.StatusOK, testkit.Get(r, "/page", testkit.From("192.0.2.9:1")).Code)
}

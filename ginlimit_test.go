package ginlimit_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// The Gin side. The clock of miniredis is set, so that every header is exact.

func newMiniredis(t testing.TB) (*redis.Client, func(time.Duration)) {
	t.Helper()
	mini := miniredis.RunT(t)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	mini.SetTime(now)
	mini.ClockTTL(true)
	return connect(t, mini.Addr()), func(d time.Duration) {
		now = now.Add(d)
		mini.SetTime(now)
	}
}

// serve returns an engine with the middleware in front of GET / and its group's /deep.
func serve(handlers ...gin.HandlerFunc) *gin.Engine {
	r := gin.New()
	_ = r.SetTrustedProxies(nil)
	r.Use(handlers...)
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "served") })
	return r
}

// middleware is [ginlimit.New] with the patience of a busy machine, and no decision that Redis has not made.
func middleware(rdb redis.UniversalClient, limit ginlimit.Limit, opts ...ginlimit.Option) gin.HandlerFunc {
	return ginlimit.New(rdb, limit, append([]ginlimit.Option{patient(), ginlimit.WithFailure(ginlimit.FailClosed)}, opts...)...)
}

func get(h http.Handler, path string, edit ...func(*http.Request)) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodGet, path, nil)
	for _, f := range edit {
		f(req)
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, req)
	return rec
}

func from(address string) func(*http.Request) {
	return func(r *http.Request) { r.RemoteAddr = address }
}

func TestAllowedAndRefusedAnswers(t *testing.T) {
	t.Parallel()
	rdb, advance := newMiniredis(t)
	r := serve(middleware(rdb, ginlimit.PerMinute(2)))

	rec := get(r, "/")
	assert.Equal(t, http.StatusOK, rec.Code)
	assert.Equal(t, "served", rec.Body.String())
	assert.Equal(t, http.Header{
		"Content-Type":          {"text/plain; charset=utf-8"},
		"X-Ratelimit-Limit":     {"2"},
		"X-Ratelimit-Remaining": {"1"},
		"X-Ratelimit-Reset":     {"30"},
	}, rec.Header())
	advance(time.Millisecond) // then everything is rounded up
	assert.Equal(t, "0", get(r, "/").Header().Get("X-RateLimit-Remaining"))

	advance(time.Millisecond)
	rec = get(r, "/")
	assert.Equal(t, http.StatusTooManyRequests, rec.Code)
	assert.JSONEq(t, `{
		"type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
		"title": "Request cannot be satisfied as assigned quota has been exceeded",
		"status": 429,
		"violated-policies": ["limit-2/m"]
	}`, rec.Body.String())
	assert.Equal(t, http.Header{
		"Cache-Control":         {"no-store"},
		"Content-Length":        {"194"},
		"Content-Type":          {"application/problem+json"},
		"Retry-After":           {"30"},
		"X-Ratelimit-Limit":     {"2"},
		"X-Ratelimit-Remaining": {"0"},
		"X-Ratelimit-Reset":     {"60"},
	}, rec.Header())

	advance(29998 * time.Millisecond)
	rec = get(r, "/")
	assert.Equal(t, http.StatusOK, rec.Code)
	assert.Equal(t, "0", rec.Header().Get("X-RateLimit-Remaining"))
}

func TestRetryAfterIsAtLeastASecond(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	r := serve(middleware(rdb, ginlimit.PerSecond(1000).WithBurst(1)))
	get(r, "/")
	assert.Equal(t, "1", get(r, "/").Header().Get("Retry-After"))
}

func TestEveryClientHasABucket(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	r := serve(middleware(rdb, ginlimit.PerMinute(1)))
	for _, address := range []string{"192.0.2.1:1", "192.0.2.2:1", "[2001:db8::1]:1", "[2001:db8:0:1::1]:1", "[fe80::1%eth0]:1"} {
		assert.Equal(t, http.StatusOK, get(r, "/", from(address)).Code, address)
	}
	for _, address := range []string{"192.0.2.1:2", "[::ffff:192.0.2.1]:1", "[2001:db8::ffff]:1", "[2001:db8:0:1:2::]:1", "[fe80::2%eth1]:1"} {
		assert.Equal(t, http.StatusTooManyRequests, get(r, "/", from(address)).Code, address)
	}
}

// Guarantee 8: with no proxy trusted, nobody chooses a bucket by a header.
func TestForgedHeadersChooseNoBucket(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	r := serve(middleware(rdb, ginlimit.PerMinute(1)))
	get(r, "/")
	for _, header := range []string{"X-Forwarded-For", "X-Real-Ip", "Forwarded", "Cf-Connecting-Ip"} {
		rec := get(r, "/", func(req *http.Request) { req.Header.Set(header, "203.0.113.9") })
		assert.Equal(t, http.StatusTooManyRequests, rec.Code, header)
	}
}

func TestUnreadableAddressIsAnErrorNotABucket(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	r := serve(middleware(rdb, ginlimit.PerMinute(100)))
	for _, address := range []string{"", "@", "unix", "300.1.1.1:1", "[::g]:1"} {
		rec := get(r, "/", from(address))
		assert.Equal(t, http.StatusInternalServerError, rec.Code, address)
		assert.NotContains(t, rec.Body.String(), "address")
	}
	require.Zero(t, rdb.DBSize(t.Context()).Val())
}

func TestErrorsGoToTheErrorHandler(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	broken := errors.New("broken")
	const internal = `{"type": "about:blank", "title": "Internal Server Error", "status": 500}`
	for _, c := range []struct {
		name   string
		key    ginlimit.KeyFunc
		rdb    redis.UniversalClient
		want   error
		status int
		body   string
		header http.Header // besides
	}{
		{"no key", func(*gin.Context) (string, error) { return "", nil }, rdb, ginlimit.ErrNoKey, 500, internal, nil},
		{"a key function's own error", func(*gin.Context) (string, error) { return "k", broken }, rdb, broken, 500, internal, nil},
		{"no Redis", ginlimit.ByClientIP, redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1}), ginlimit.ErrUnavailable, 503, `{
			"type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
			"title": "Request cannot be satisfied due to temporary server capacity constraints",
			"status": 503
		}`, http.Header{"Retry-After": {"1"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var got error
			r := serve(middleware(c.rdb, ginlimit.PerMinute(1), ginlimit.WithKey(c.key),
				ginlimit.WithErrorHandler(func(_ *gin.Context, err error) { got = err })))
			rec := get(r, "/")
			assert.ErrorIs(t, got, c.want)
			assert.Equal(t, "served", rec.Body.String(), "neither aborted nor answered: it goes on")

			r = serve(func(c *gin.Context) { c.Next(); got = c.Errors.Last() },
				middleware(c.rdb, ginlimit.PerMinute(1), ginlimit.WithKey(c.key)))
			rec = get(r, "/")
			assert.Equal(t, c.status, rec.Code)
			assert.ErrorIs(t, got, c.want, "for the application's log")
			assert.JSONEq(t, c.body, rec.Body.String())
			want := http.Header{
				"Cache-Control":  {"no-store"},
				"Content-Length": {strconv.Itoa(rec.Body.Len())},
				"Content-Type":   {"application/problem+json"},
			}
			maps.Copy(want, c.header)
			assert.Equal(t, want, rec.Header())

			r = serve(middleware(c.rdb, ginlimit.PerMinute(1), ginlimit.WithKey(c.key),
				ginlimit.WithErrorHandler(func(c *gin.Context, _ error) { c.String(http.StatusTeapot, "no") })))
			rec = get(r, "/")
			assert.Equal(t, http.StatusTeapot, rec.Code)
			assert.Equal(t, "no", rec.Body.String(), "answered: it does not go on")

			r = serve(middleware(c.rdb, ginlimit.PerMinute(1), ginlimit.WithKey(c.key),
				ginlimit.WithErrorHandler(func(c *gin.Context, _ error) { c.Status(http.StatusTeapot) })))
			rec = get(r, "/")
			assert.Equal(t, http.StatusTeapot, rec.Code)
			assert.Empty(t, rec.Body.String(), "another status: it does not go on")
		})
	}
}

func TestDeniedHandlerAnswersAndTheRequestIsAborted(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	r := serve(middleware(rdb, ginlimit.PerHour(1), ginlimit.WithDeniedHandler(func(c *gin.Context, r ginlimit.Result) {
		assert.False(t, r.Allowed)
		assert.Equal(t, time.Hour, r.RetryAfter)
	})))
	get(r, "/")
	rec := get(r, "/")
	assert.Equal(t, http.StatusTooManyRequests, rec.Code)
	assert.Empty(t, rec.Body.String())
	assert.Equal(t, "3600", rec.Header().Get("Retry-After"))
}

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
			l := newLimiter(t, rdb, ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
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

func TestHeadersTellOfTheClosestToExhaustion(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	l := newLimiter(t, rdb)
	var told ginlimit.Result
	r := serve(func(c *gin.Context) {
		_, ok := ginlimit.FromContext(c)
		assert.False(t, ok, "nothing decided yet")
		c.Next()
		told, ok = ginlimit.FromContext(c)
		assert.True(t, ok)
	}, l.Handler(ginlimit.PerMinute(3)), l.Handler(ginlimit.PerHour(10)))

	rec := get(r, "/")
	assert.Equal(t, "3", rec.Header().Get("X-RateLimit-Limit"))
	assert.Equal(t, "2", rec.Header().Get("X-RateLimit-Remaining"))
	assert.Equal(t, ginlimit.Result{Allowed: true, Granted: 1, Limit: ginlimit.PerMinute(3), Remaining: 2,
		ResetAfter: 20 * time.Second}, told)

	r.GET("/deep", l.Handler(ginlimit.PerDay(1)))
	assert.Equal(t, "1", get(r, "/deep").Header().Get("X-RateLimit-Limit"))
	rec = get(r, "/deep")
	assert.Equal(t, http.StatusTooManyRequests, rec.Code)
	assert.Equal(t, "1", rec.Header().Get("X-RateLimit-Limit"))
	assert.Equal(t, "86400", rec.Header().Get("Retry-After"))
	assert.False(t, told.Allowed)
}

func TestSeveralLimitsInOneHandler(t *testing.T) {
	t.Parallel()
	rdb, advance := newMiniredis(t)
	r := serve(middleware(rdb, ginlimit.PerMinute(2), ginlimit.WithLimits(ginlimit.PerHour(3))))
	for range 2 {
		require.Equal(t, http.StatusOK, get(r, "/").Code)
	}
	require.Equal(t, "30", get(r, "/").Header().Get("Retry-After"))
	advance(time.Minute)
	require.Equal(t, http.StatusOK, get(r, "/").Code)
	require.Equal(t, "3", get(r, "/").Header().Get("X-RateLimit-Limit"))
}

func TestUnlimitedAndProhibitedAnswers(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	rec := get(serve(middleware(rdb, ginlimit.PerMinute(-1))), "/")
	assert.Equal(t, http.StatusOK, rec.Code)
	assert.Equal(t, http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, rec.Header(), "no limit to tell of")

	rec = get(serve(middleware(rdb, ginlimit.PerMinute(0))), "/")
	assert.Equal(t, http.StatusTooManyRequests, rec.Code)
	assert.Equal(t, http.Header{
		"Cache-Control":         {"no-store"},
		"Content-Length":        {"194"},
		"Content-Type":          {"application/problem+json"},
		"X-Ratelimit-Limit":     {"0"},
		"X-Ratelimit-Remaining": {"0"},
		"X-Ratelimit-Reset":     {"0"},
	}, rec.Header(), "no Retry-After: no waiting helps")
}

func TestKeyReachesTheHandlersBucket(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	l := newLimiter(t, rdb)
	limit := ginlimit.PerHour(3)
	r := serve(l.Handler(limit, ginlimit.WithName("login")))
	get(r, "/", from("192.0.2.7:1"))
	key := ginlimit.Key("login", "192.0.2.7")
	p, err := l.Peek(t.Context(), key, limit)
	require.NoError(t, err)
	require.Equal(t, 2, p.Remaining)
	require.NoError(t, l.Block(t.Context(), key, time.Minute, limit))
	require.Equal(t, "60", get(r, "/", from("192.0.2.7:1")).Header().Get("Retry-After"))
}

func TestKeyReachesTheBucketOfAnyClient(t *testing.T) {
	t.Parallel()
	for _, client := range []string{"a|b", `a\b`, `|\`, "{a}", "é", strings.Repeat("long", 40), "#"} {
		l, err := ginlimit.NewLocal(ginlimit.WithKey(func(*gin.Context) (string, error) { return client, nil }))
		require.NoError(t, err)
		limit := ginlimit.PerHour(3)
		get(serve(l.Handler(limit, ginlimit.WithName(`a|\name`))), "/")
		p, err := l.Peek(t.Context(), ginlimit.Key(`a|\name`, client), limit)
		require.NoError(t, err)
		require.Equal(t, 2, p.Remaining, client)
	}
}

// TestOptionsHoldWhatTheyWereGiven uses options again, and changes what they were made of.
func TestOptionsHoldWhatTheyWereGiven(t *testing.T) {
	t.Parallel()
	for _, bad := range []ginlimit.Option{ginlimit.WithTimeout(0), ginlimit.WithReplicas(0), ginlimit.WithAlgorithm(9)} {
		_, first := ginlimit.NewLocal(bad)
		require.Error(t, first)
		_, again := ginlimit.NewLocal(bad)
		require.Equal(t, first, again)
	}

	prefixes := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	limits := []ginlimit.Limit{ginlimit.PerHour(1)}
	everybody := func(*gin.Context) (string, error) { return "all", nil }
	opts := []ginlimit.Option{ginlimit.WithLimits(limits...), ginlimit.WithIdentity("all", everybody, limits...)}
	allow, deny := ginlimit.WithAllowList(prefixes...), ginlimit.WithDenyList(prefixes...)
	prefixes[0], limits[0] = netip.MustParsePrefix("198.51.100.0/24"), ginlimit.Limit{}
	local, err := ginlimit.NewLocal(opts...)
	require.NoError(t, err)
	for _, list := range []ginlimit.Option{allow, deny} {
		r := serve(local.Handler(ginlimit.PerMinute(0), list))
		assert.Equal(t, http.StatusTooManyRequests, get(r, "/", from("198.51.100.1:1")).Code)
		assert.NotEqual(t, http.StatusTooManyRequests, get(r, "/", from("192.0.2.1:1")).Code)
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
	require.Equal(t, http.StatusOK, get(r, "/api", from("198.51.100.6:1"), forged).Code)
	require.Equal(t, http.StatusTooManyRequests, get(r, "/api", from("198.51.100.6:1"), forged).Code)
	require.Equal(t, http.StatusOK, get(r, "/page", from("192.0.2.9:1")).Code)
}

func TestBadConfigurationNamesEveryFault(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	var nilClient *redis.Client
	bad := []ginlimit.Option{nil, ginlimit.WithName(""), ginlimit.WithKey(nil), ginlimit.WithDeniedHandler(nil),
		ginlimit.WithErrorHandler(nil), ginlimit.WithLogger(nil), ginlimit.WithPrefix("{a}"),
		ginlimit.WithLimits(ginlimit.Limit{Rate: 5, Period: time.Minute, Burst: -1})}
	faults := []string{"option 1 is nil", "WithName", "WithKey", "WithDeniedHandler", "WithErrorHandler",
		"WithLogger", "WithPrefix", "burst is negative"}

	l, err := ginlimit.NewLimiter(nilClient, bad...)
	require.Nil(t, l)
	for _, fault := range append(faults, "client is nil") {
		assert.ErrorContains(t, err, fault)
	}
	_, err = ginlimit.NewLimiter(nil)
	require.ErrorContains(t, err, "client is nil")
	_, err = ginlimit.NewLocal(bad...)
	for _, fault := range faults {
		assert.ErrorContains(t, err, fault)
	}

	text := panicText(t, func() { ginlimit.New(nil, ginlimit.Limit{}, bad...) })
	for _, fault := range append(faults, "client is nil", "zero Limit") {
		assert.Contains(t, text, fault)
	}
	for line := range strings.Lines(text) {
		assert.True(t, strings.HasPrefix(line, "ginlimit: "), line)
	}

	good := newLimiter(t, rdb)
	text = panicText(t, func() {
		good.Handler(ginlimit.PerMinute(5), ginlimit.WithLimits(ginlimit.PerMinute(6)), ginlimit.WithPrefix("x"),
			ginlimit.WithLogger(slog.Default()), ginlimit.WithName(""))
	})
	for _, fault := range []string{"same period", "WithPrefix is an option of the limiter",
		"WithLogger is an option of the limiter", "WithName"} {
		assert.Contains(t, text, fault)
	}
}

func panicText(t *testing.T, f func()) (text string) {
	t.Helper()
	defer func() {
		err, ok := recover().(error)
		require.True(t, ok, "panics with an error")
		text = err.Error()
	}()
	f()
	return ""
}

func TestOptionsOfTheLimiterAreDefaultsOfItsHandlers(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	l := newLimiter(t, rdb, ginlimit.WithKey(func(c *gin.Context) (string, error) { return c.Query("user"), nil }),
		ginlimit.WithName("default"))
	r := gin.New()
	r.GET("/a", l.Handler(ginlimit.PerHour(1)))
	r.GET("/b", l.Handler(ginlimit.PerHour(1), ginlimit.WithName("other")))
	assert.Equal(t, http.StatusOK, get(r, "/a?user=1").Code)
	assert.Equal(t, http.StatusOK, get(r, "/a?user=2").Code)
	assert.Equal(t, http.StatusTooManyRequests, get(r, "/a?user=1").Code)
	assert.Equal(t, http.StatusOK, get(r, "/b?user=1").Code)
}

func TestClosedLimiterMakesNoDecision(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	l, err := ginlimit.NewLimiter(rdb, patient())
	require.NoError(t, err)
	limit := ginlimit.PerHour(1)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	_, err = l.Allow(t.Context(), "k", limit)
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.NoError(t, rdb.Ping(t.Context()).Err(), "the client is the caller's")
}

func TestCloseEndsAWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := ginlimit.NewLocal()
		require.NoError(t, err)
		limit := ginlimit.PerHour(1)
		require.NoError(t, l.Wait(t.Context(), "k", limit))
		waited := make(chan error)
		go func() { waited <- l.Wait(t.Context(), "k", limit) }()
		synctest.Wait()
		start := time.Now()
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-waited, ginlimit.ErrUnavailable)
		require.Zero(t, time.Since(start), "at once")
	})
}

func TestZeroLimiterMakesNoDecision(t *testing.T) {
	t.Parallel()
	var l ginlimit.Limiter
	_, err := l.Allow(t.Context(), "k", ginlimit.PerHour(1))
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.ErrorIs(t, l.Reset(t.Context(), "k", ginlimit.PerHour(1)), ginlimit.ErrUnavailable)
	_, err = l.Allow(t.Context(), "k", ginlimit.PerHour(-1))
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.Contains(t, panicText(t, func() { l.Handler(ginlimit.PerHour(1)) }), "not made by NewLimiter")
	require.NoError(t, l.Close())
}

// TestCopiedContextIsSafe has an access log look at a copy while a further handler decides.
func TestCopiedContextIsSafe(t *testing.T) {
	t.Parallel()
	l, err := ginlimit.NewLocal()
	require.NoError(t, err)
	logged := make(chan ginlimit.Result, 1)
	r := serve(l.Handler(ginlimit.PerHour(5)), func(c *gin.Context) {
		copied := c.Copy()
		go func() {
			result, _ := ginlimit.FromContext(copied)
			logged <- result
		}()
	}, l.Handler(ginlimit.PerMinute(3)))
	get(r, "/")
	assert.Equal(t, ginlimit.PerHour(5), (<-logged).Limit, "what was decided when it was copied")
}

func TestRequestDeadlineIsAnswered503(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{late, gone} {
		rec := get(serve(middleware(rdb, ginlimit.PerHour(1))), "/", func(r *http.Request) { *r = *r.WithContext(ctx) })
		assert.Equal(t, http.StatusServiceUnavailable, rec.Code)
	}
}

func TestSourceNames(t *testing.T) {
	t.Parallel()
	for source, want := range map[ginlimit.Source]string{ginlimit.FromRedis: "redis", ginlimit.FromMemory: "memory",
		ginlimit.FromLocal: "local", ginlimit.FromPolicy: "policy", 200: "unknown"} {
		assert.Equal(t, want, source.String())
	}
}

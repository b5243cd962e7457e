package bench

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"time"

	ratelimit "github.com/JGLTechnologies/gin-rate-limit"
	"github.com/gin-gonic/gin"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/ulule/limiter/v3"
	ululegin "github.com/ulule/limiter/v3/drivers/middleware/gin"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/ginlimit/ginlimit"
)

// A library makes middleware that allows each client so many requests an hour, and a burst of so many; where
// it knows no burst, that many an hour. It takes the client from a header.
type library struct {
	name string
	make func(tb testing.TB, rdb *redis.Client, perHour, burst int) gin.HandlerFunc
}

const clientHeader = "X-Client"

func clientOf(c *gin.Context) string {
	if v := c.Request.Header[clientHeader]; len(v) > 0 {
		return v[0]
	}
	return ""
}

var libraries = []library{
	{"ginlimit", func(tb testing.TB, rdb *redis.Client, perHour, burst int) gin.HandlerFunc {
		l, err := ginlimit.NewLimiter(rdb, ginlimit.WithKey(func(c *gin.Context) (string, error) { return clientOf(c), nil }))
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = l.Close() })
		return l.Handler(ginlimit.PerHour(perHour).WithBurst(burst), ginlimit.WithName("api"))
	}},
	{"redis_rate", func(_ testing.TB, rdb *redis.Client, perHour, burst int) gin.HandlerFunc {
		l, limit := redis_rate.NewLimiter(rdb), redis_rate.Limit{Rate: perHour, Burst: burst, Period: time.Hour}
		return func(c *gin.Context) {
			r, err := l.Allow(c.Request.Context(), clientOf(c), limit)
			if err != nil {
				c.AbortWithStatus(http.StatusServiceUnavailable)
				return
			}
			c.Header("X-RateLimit-Limit", strconv.Itoa(limit.Burst))
			c.Header("X-RateLimit-Remaining", strconv.Itoa(r.Remaining))
			c.Header("X-RateLimit-Reset", strconv.Itoa(int(r.ResetAfter/time.Second)))
			if r.Allowed == 0 {
				c.Header("Retry-After", strconv.Itoa(int(r.RetryAfter/time.Second)))
				c.AbortWithStatus(http.StatusTooManyRequests)
			}
		}
	}},
	{"ulule", func(tb testing.TB, rdb *redis.Client, perHour, burst int) gin.HandlerFunc {
		store, err := ululeredis.NewStore(rdb)
		if err != nil {
			tb.Fatal(err)
		}
		return ululegin.NewMiddleware(limiter.New(store, limiter.Rate{Period: time.Hour, Limit: int64(burst)}),
			ululegin.WithKeyGetter(clientOf))
	}},
	{"JGL", func(_ testing.TB, rdb *redis.Client, perHour, burst int) gin.HandlerFunc {
		store := ratelimit.RedisStore(&ratelimit.RedisOptions{RedisClient: rdb, Rate: time.Hour, Limit: uint(burst)})
		return ratelimit.RateLimiter(store, &ratelimit.Options{KeyFunc: clientOf})
	}},
	{"throttled", func(tb testing.TB, rdb *redis.Client, perHour, burst int) gin.HandlerFunc {
		store, err := goredisstore.NewCtx(rdb, "throttled:")
		if err != nil {
			tb.Fatal(err)
		}
		l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerHour(perHour), MaxBurst: burst - 1})
		if err != nil {
			tb.Fatal(err)
		}
		return func(c *gin.Context) {
			limited, r, err := l.RateLimitCtx(c.Request.Context(), clientOf(c), 1)
			if err != nil {
				c.AbortWithStatus(http.StatusServiceUnavailable)
				return
			}
			c.Header("X-RateLimit-Limit", strconv.Itoa(r.Limit))
			c.Header("X-RateLimit-Remaining", strconv.Itoa(r.Remaining))
			c.Header("X-RateLimit-Reset", strconv.Itoa(int(r.ResetAfter/time.Second)))
			if limited {
				c.Header("Retry-After", strconv.Itoa(int(r.RetryAfter/time.Second)))
				c.AbortWithStatus(http.StatusTooManyRequests)
			}
		}
	}},
	{"nothing", func(testing.TB, *redis.Client, int, int) gin.HandlerFunc { return func(*gin.Context) {} }},
}

// engine returns a Gin engine with the middleware before GET /.
func engine(middleware gin.HandlerFunc) *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.GET("/", middleware, func(c *gin.Context) { c.Writer.WriteHeader(http.StatusOK) })
	return r
}

// caller sends requests to an engine, without a network and without allocating.
type caller struct {
	request *http.Request
	client  []string
	header  http.Header
	status  int
}

func newCaller(tb testing.TB) *caller {
	ctx, cancel := context.WithCancel(tb.Context()) // of its own, as each request of a server has
	tb.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	if err != nil {
		tb.Fatal(err)
	}
	c := &caller{request: request, client: make([]string, 1), header: http.Header{}}
	request.Header[clientHeader] = c.client
	return c
}

// Header, Write and WriteHeader implement [http.ResponseWriter].
func (c *caller) Header() http.Header         { return c.header }
func (c *caller) Write(p []byte) (int, error) { return len(p), nil }
func (c *caller) WriteHeader(status int)      { c.status = status }

// call makes one request for a client and returns the status.
func (c *caller) call(h http.Handler, client string) int {
	clear(c.header)
	c.client[0], c.status = client, http.StatusOK
	h.ServeHTTP(c, c.request)
	return c.status
}

// TestEveryLibraryLimits keeps the comparison fair: each library does what it is compared for.
func TestEveryLibraryLimits(t *testing.T) {
	for _, l := range libraries[:len(libraries)-1] {
		t.Run(l.name, func(t *testing.T) {
			h, c := engine(l.make(t, connect(t, startRedis(t)), 5, 5)), newCaller(t)
			for i := range 7 {
				want := http.StatusOK
				if i >= 5 {
					want = http.StatusTooManyRequests
				}
				if got := c.call(h, "client"); got != want {
					t.Fatalf("request %d: %d, want %d", i+1, got, want)
				}
			}
			if got := c.call(h, "another"); got != http.StatusOK {
				t.Fatalf("another client: %d", got)
			}
		})
	}
}

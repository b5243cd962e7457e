// Package peers has the libraries that are compared, as middleware for Gin that all take the client from one header.
package peers

import (
	"net/http"
	"strconv"
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

// Role is what a library is in the comparison.
type Role int

const (
	Peer    Role = iota // another library
	Ours                // ginlimit, as the quickstart has it
	Variant             // ginlimit with other options: it has rows of its own and is nobody's peer
	Bare                // Gin without a limiter
)

// Limit is what each client may have: so many requests in a period, and a burst. Libraries with windows have no
// burst; they allow Burst an hour.
type Limit struct {
	Rate   int
	Period time.Duration
	Burst  int
}

// Library makes middleware that limits each client.
type Library struct {
	Name string
	Role Role
	New  func(*redis.Client, Limit) (Limiter, error)
}

// Limiter is the middleware of a library, and how it is closed.
type Limiter struct {
	Handler gin.HandlerFunc
	Close   func()
}

// All returns the libraries. To compare ginlimit with other options, add a Variant.
func All() []Library {
	return []Library{
		{"ginlimit", Ours, NewGinlimit()},
		{"lease", Variant, NewGinlimit(ginlimit.WithLease(leaseLife))},
		{"redis_rate", Peer, newRedisRate},
		{"ulule", Peer, newUlule},
		{"JGL", Peer, newJGL},
		{"throttled", Peer, newThrottled},
		{"Gin alone", Bare, func(*redis.Client, Limit) (Limiter, error) { return limiterOf(func(*gin.Context) {}), nil }},
	}
}

// leaseLife is that of the variant with leases.
const leaseLife = 100 * time.Millisecond

// ClientHeader names the client of a request.
const ClientHeader = "X-Client"

func clientOf(c *gin.Context) string {
	if v := c.Request.Header[ClientHeader]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// Client is the client of a request, as the key of ginlimit.
func Client(c *gin.Context) (string, error) { return clientOf(c), nil }

func limiterOf(handler gin.HandlerFunc) Limiter { return Limiter{handler, func() {}} }

// NewGinlimit returns [Library.New] of ginlimit with options of the policy.
func NewGinlimit(options ...ginlimit.PolicyOption) func(*redis.Client, Limit) (Limiter, error) {
	key := ginlimit.WithKey(Client)
	return func(rdb *redis.Client, limit Limit) (Limiter, error) {
		l, err := ginlimit.NewLimiter(rdb)
		if err != nil {
			return Limiter{}, err
		}
		rate := ginlimit.Per(limit.Rate, limit.Period).WithBurst(limit.Burst)
		return Limiter{
			l.Handler("api", append([]ginlimit.PolicyOption{rate, key}, options...)...),
			func() { _ = l.Close() },
		}, nil
	}
}

func newRedisRate(rdb *redis.Client, of Limit) (Limiter, error) {
	l, limit := redis_rate.NewLimiter(rdb), redis_rate.Limit{Rate: of.Rate, Burst: of.Burst, Period: of.Period}
	return limiterOf(func(c *gin.Context) {
		r, err := l.Allow(c.Request.Context(), clientOf(c), limit)
		if err != nil {
			c.AbortWithStatus(http.StatusServiceUnavailable)
			return
		}
		writeResult(c, limit.Burst, r.Remaining, r.ResetAfter, r.RetryAfter, r.Allowed == 0)
	}), nil
}

func newUlule(rdb *redis.Client, of Limit) (Limiter, error) {
	store, err := ululeredis.NewStore(rdb)
	if err != nil {
		return Limiter{}, err
	}
	return limiterOf(ululegin.NewMiddleware(limiter.New(store, limiter.Rate{Period: time.Hour, Limit: int64(of.Burst)}),
		ululegin.WithKeyGetter(clientOf))), nil
}

func newJGL(rdb *redis.Client, of Limit) (Limiter, error) {
	store := ratelimit.RedisStore(&ratelimit.RedisOptions{RedisClient: rdb, Rate: time.Hour, Limit: uint(of.Burst)})
	return limiterOf(ratelimit.RateLimiter(store, &ratelimit.Options{KeyFunc: clientOf})), nil
}

func newThrottled(rdb *redis.Client, of Limit) (Limiter, error) {
	store, err := goredisstore.NewCtx(rdb, "throttled:")
	if err != nil {
		return Limiter{}, err
	}
	l, err := throttled.NewGCRARateLimiterCtx(store,
		throttled.RateQuota{MaxRate: throttled.PerDuration(of.Rate, of.Period), MaxBurst: of.Burst - 1})
	if err != nil {
		return Limiter{}, err
	}
	return limiterOf(func(c *gin.Context) {
		limited, r, err := l.RateLimitCtx(c.Request.Context(), clientOf(c), 1)
		if err != nil {
			c.AbortWithStatus(http.StatusServiceUnavailable)
			return
		}
		writeResult(c, r.Limit, r.Remaining, r.ResetAfter, r.RetryAfter, limited)
	}), nil
}

// writeResult answers for the libraries that have no middleware for Gin, with the headers that the others set.
func writeResult(c *gin.Context, limit, remaining int, resetAfter, retryAfter time.Duration, denied bool) {
	c.Header("X-RateLimit-Limit", strconv.Itoa(limit))
	c.Header("X-RateLimit-Remaining", strconv.Itoa(remaining))
	c.Header("X-RateLimit-Reset", strconv.Itoa(int(resetAfter/time.Second)))
	if denied {
		c.Header("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
		c.AbortWithStatus(http.StatusTooManyRequests)
	}
}

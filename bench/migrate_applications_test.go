package bench

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	ratelimit "github.com/JGLTechnologies/gin-rate-limit"
	"github.com/didip/tollbooth/v8"
	tollboothlimiter "github.com/didip/tollbooth/v8/limiter"
	"github.com/gin-gonic/gin"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	ulule "github.com/ulule/limiter/v3"
	ululegin "github.com/ulule/limiter/v3/drivers/middleware/gin"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/ginlimit/ginlimit"
)

// Applications before and after. These functions are what docs/migration.md shows.

func oneLimiter(rdb redis.UniversalClient) (*ginlimit.Limiter, error) {
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		return nil, err
	}
	return limiter, nil
}

func ululeBefore(router *gin.Engine, rdb *redis.Client) error {
	store, err := ululeredis.NewStoreWithOptions(rdb, ulule.StoreOptions{Prefix: "api"})
	if err != nil {
		return err
	}
	rate, err := ulule.NewRateFromFormatted("20-H")
	if err != nil {
		return err
	}
	router.Use(ululegin.NewMiddleware(ulule.New(store, rate)))
	return nil
}

func ululeAfter(router *gin.Engine, limiter *ginlimit.Limiter) error {
	limit, err := ginlimit.ParseLimit("20/h") // or ginlimit.PerHour(20)
	if err != nil {
		return err
	}
	router.Use(limiter.Handler("api", limit.WithAlgorithm(ginlimit.FixedWindow))) // or limit alone: a token bucket
	return nil
}

// fromUlule reads "100-M" as "100/m".
func fromUlule(text string) (ginlimit.Limit, error) {
	return ginlimit.ParseLimit(strings.ToLower(strings.Replace(text, "-", "/", 1)))
}

func ululeFields() ginlimit.Option {
	return ginlimit.WithHeaderFunc(func(h http.Header, limits []ginlimit.Result) {
		reset := time.Now().Add(limits[0].ResetAfter)
		h.Set("X-RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
	})
}

func redisRateBefore(router *gin.Engine, rdb *redis.Client) error {
	limiter := redis_rate.NewLimiter(rdb)
	router.Use(func(c *gin.Context) {
		r, err := limiter.Allow(c.Request.Context(), "api:"+c.ClientIP(), redis_rate.PerHour(20))
		if err != nil {
			c.AbortWithStatus(http.StatusInternalServerError)
			return
		}
		c.Header("X-RateLimit-Remaining", strconv.Itoa(r.Remaining))
		if r.Allowed == 0 {
			c.Header("Retry-After", strconv.Itoa(int(r.RetryAfter/time.Second)))
			c.AbortWithStatus(http.StatusTooManyRequests)
		}
	})
	return nil
}

func redisRateAfter(router *gin.Engine, limiter *ginlimit.Limiter) error {
	router.Use(limiter.Handler("api", ginlimit.PerHour(20)))
	return nil
}

func redisRateCallBefore(ctx context.Context, limiter *redis_rate.Limiter) (bool, error) {
	r, err := limiter.Allow(ctx, "user:123", redis_rate.PerHour(20))
	if err != nil {
		return false, err
	}
	return r.Allowed > 0, nil
}

func redisRateCallAfter(ctx context.Context, limiter *ginlimit.Limiter) (bool, error) {
	users, err := limiter.Policy("users", ginlimit.PerHour(20)) // once
	if err != nil {
		return false, err
	}
	r, err := users.Allow(ctx, "user:123")
	if err != nil {
		return false, err
	}
	return r.Allowed, nil
}

func jglBefore(router *gin.Engine, rdb *redis.Client) error {
	store := ratelimit.RedisStore(&ratelimit.RedisOptions{
		RedisClient: rdb,
		Rate:        time.Hour,
		Limit:       20,
	})
	router.Use(ratelimit.RateLimiter(store, &ratelimit.Options{
		KeyFunc: func(c *gin.Context) string { return c.ClientIP() },
	}))
	return nil
}

func jglAfter(router *gin.Engine, limiter *ginlimit.Limiter) error {
	router.Use(limiter.Handler("api", ginlimit.PerHour(20)))
	return nil
}

func jglDefaultKeyAfter(router *gin.Engine, limiter *ginlimit.Limiter) {
	route := func(c *gin.Context) (string, error) { return "route " + c.FullPath(), nil } // never empty
	router.Use(limiter.Handler("api", ginlimit.PerHour(20),
		ginlimit.WithKey(ginlimit.ByAll(ginlimit.ByClientIP, route))))
}

func tollboothBefore(router *gin.Engine, _ *redis.Client) error {
	lmt := tollbooth.NewLimiter(20.0/3600, nil) // per second
	lmt.SetBurst(20).SetIgnoreURL(true)
	lmt.SetIPLookup(tollboothlimiter.IPLookup{Name: "RemoteAddr"})
	router.Use(func(c *gin.Context) {
		if refused := tollbooth.LimitByRequest(lmt, c.Writer, c.Request); refused != nil {
			c.Data(refused.StatusCode, lmt.GetMessageContentType(), []byte(refused.Message))
			c.Abort()
		}
	})
	return nil
}

func tollboothAfter(router *gin.Engine, limiter *ginlimit.Limiter) error {
	router.Use(limiter.Handler("api", ginlimit.PerHour(20)))
	return nil
}

func localLimiter() (*ginlimit.Limiter, error) {
	limiter, err := ginlimit.NewLocal()
	if err != nil {
		return nil, err
	}
	return limiter, nil
}

func sideBySide(router *gin.Engine, limiter *ginlimit.Limiter, old gin.HandlerFunc, logger *slog.Logger) {
	router.Use(func(c *gin.Context) {
		c.Next()
		denied := c.Writer.Status() == http.StatusTooManyRequests
		if r, decided := ginlimit.FromContext(c); decided && r.Allowed == denied {
			logger.Info("the limiters differ", "path", c.FullPath(), "denied by the old one", denied)
		}
	})
	router.Use(limiter.Handler("api", ginlimit.PerHour(20), ginlimit.WithDryRun()))
	router.Use(old)
}

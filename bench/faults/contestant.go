package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/httprate"
	httprateredis "github.com/go-chi/httprate-redis"
	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/limiter"
	fiberredis "github.com/gofiber/storage/redis/v3"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"

	"github.com/ginlimit/ginlimit/bench/internal/peers"
)

// requestsPerHour is what each client may send. It is the same for buckets and windows, as no round lasts long enough
// for a token to come back.
const requestsPerHour = 30

// contestant is a library as its documentation sets it up.
type contestant struct {
	name string
	new  func(redisAddr string) (app, error)
	key  func(client string) string // the pattern of a client's keys in Redis
}

// app is a web server whose GET / is limited for each client.
type app struct {
	serve func(net.Listener) error
	close func()
}

// contestants are the columns of the tables.
func contestants() []contestant {
	return []contestant{
		// The quickstart of this module.
		{"ginlimit", inGin("ginlimit"), named},
		// README of go-redis/redis_rate: NewLimiter and Allow. It has no middleware; peers answers 503 to an error.
		{"redis_rate", inGin("redis_rate"), named},
		// README of ulule/limiter, and gin/main.go of ulule/limiter-examples: gin.Default, and the driver for Gin.
		{"ulule", inGin("ulule"), named},
		// README of JGLTechnologies/gin-rate-limit, "Redis Example".
		{"gin-rate-limit", inGin("JGL"), named},
		// README of throttled/throttled, "Usage", and the example of its store goredisstore.v9.
		{"throttled", newThrottled, named},
		// README of go-chi/httprate-redis, "Example": it makes its own client.
		{"httprate", newHTTPRate, func(client string) string {
			window := time.Now().UTC().Truncate(time.Hour)
			return "httprate:" + strconv.FormatUint(httprate.LimitCounterKey(client+":", window), 10)
		}},
		// https://docs.gofiber.io/api/middleware/limiter and README of gofiber/storage/redis, "Examples".
		{"Fiber", newFiber, named},
	}
}

func named(client string) string { return "*" + client + "*" }

// serveHTTP returns an app of a handler. It ends what end says after its requests.
func serveHTTP(handler http.Handler, end func()) app {
	server := &http.Server{Handler: handler}
	return app{server.Serve, func() { _ = server.Close(); end() }}
}

// inGin returns what makes an app of a library for Gin, with the client of the quickstart. gin.Default recovers from
// panics; here it does not print them.
func inGin(library string) func(string) (app, error) {
	return func(addr string) (app, error) {
		all := peers.All()
		of := all[slices.IndexFunc(all, func(l peers.Library) bool { return l.Name == library })]
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		l, err := of.New(rdb, peers.Limit{Rate: requestsPerHour, Period: time.Hour, Burst: requestsPerHour})
		if err != nil {
			_ = rdb.Close()
			return app{}, err
		}
		gin.SetMode(gin.ReleaseMode)
		engine := gin.New()
		engine.Use(gin.CustomRecoveryWithWriter(io.Discard, func(c *gin.Context, _ any) {
			c.AbortWithStatus(http.StatusInternalServerError)
		}))
		engine.GET("/", l.Handler, func(c *gin.Context) { c.Status(http.StatusOK) })
		return serveHTTP(engine, func() { l.Close(); _ = rdb.Close() }), nil
	}
}

// done is the handler behind the limiters of net/http.
var done = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })

func newThrottled(addr string) (app, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	store, err := goredisstore.NewCtx(rdb, "throttled:")
	if err != nil {
		return app{}, err
	}
	l, err := throttled.NewGCRARateLimiterCtx(store,
		throttled.RateQuota{MaxRate: throttled.PerHour(requestsPerHour), MaxBurst: requestsPerHour - 1})
	if err != nil {
		return app{}, err
	}
	middleware := throttled.HTTPRateLimiterCtx{RateLimiter: l,
		VaryBy: &throttled.VaryBy{Headers: []string{peers.ClientHeader}}}
	return serveHTTP(middleware.RateLimit(done), func() { _ = rdb.Close() }), nil
}

func newHTTPRate(addr string) (app, error) {
	host, port, err := hostAndPort(addr)
	if err != nil {
		return app{}, err
	}
	counter := httprateredis.NewCounter(&httprateredis.Config{Host: host, Port: uint16(port)})
	middleware := httprate.LimitBy(requestsPerHour, time.Hour, func(r *http.Request) (string, error) {
		return r.Header.Get(peers.ClientHeader), nil
	}, httprate.WithLimitCounter(counter)) // as WithRedisLimitCounter does
	return serveHTTP(middleware(done), func() { _ = counter.Close() }), nil
}

func newFiber(addr string) (app, error) {
	host, port, err := hostAndPort(addr)
	if err != nil {
		return app{}, err
	}
	storage := fiberredis.New(fiberredis.Config{Host: host, Port: port})
	server := fiber.New()
	server.Use(limiter.New(limiter.Config{Max: requestsPerHour, Expiration: time.Hour, Storage: storage,
		KeyGenerator: func(c fiber.Ctx) string { return c.Get(peers.ClientHeader) }}))
	server.Get("/", func(c fiber.Ctx) error { return c.SendStatus(http.StatusOK) })
	return app{
		func(l net.Listener) error {
			return server.Listener(l, fiber.ListenConfig{DisableStartupMessage: true})
		},
		func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = server.ShutdownWithContext(ctx)
			_ = storage.Close()
		},
	}, nil
}

func hostAndPort(addr string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	if port, err = strconv.Atoi(text); err != nil {
		return "", 0, fmt.Errorf("port of %s: %w", addr, err)
	}
	return host, port, nil
}

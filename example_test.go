package ginlimit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

// exampleRedis returns a client of a Redis in this process. Production has a real one.
func exampleRedis() (*redis.Client, func()) {
	mini, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	return rdb, func() { _ = rdb.Close(); mini.Close() }
}

// request prints what a client at an address gets.
func request(router http.Handler, method, path, address string, header ...string) {
	req := httptest.NewRequest(method, path, nil)
	req.RemoteAddr = address + ":1234"
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	router.ServeHTTP(rec, req)
	fmt.Print(method, " ", path, " ", rec.Code)
	if remaining := rec.Header().Get("X-RateLimit-Remaining"); remaining != "" {
		fmt.Print(" remaining ", remaining)
	}
	fmt.Println()
}

func ok(c *gin.Context) { c.Status(http.StatusOK) }

func ExampleNew() {
	rdb, stop := exampleRedis()
	defer stop()

	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.Use(ginlimit.New(rdb, ginlimit.PerMinute(2)))
	router.GET("/", ok)

	for range 3 {
		request(router, "GET", "/", "203.0.113.7")
	}
	request(router, "GET", "/", "198.51.100.1")
	// Output:
	// GET / 200 remaining 1
	// GET / 200 remaining 0
	// GET / 429 remaining 0
	// GET / 200 remaining 1
}

func ExampleLimiter_Handler() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()

	router.Use(limiter.Handler(ginlimit.PerMinute(100))) // every route together
	router.GET("/search", limiter.Handler(
		ginlimit.PerSecond(10).WithBurst(20),
		ginlimit.WithLimits(ginlimit.PerHour(300)), // and both must allow
		ginlimit.WithName("search")), ok)
	router.POST("/login", limiter.Handler(
		ginlimit.Limit{Rate: 5, Period: 15 * time.Minute},
		ginlimit.WithName("login")), ok)

	request(router, "GET", "/search", "203.0.113.7")
	request(router, "POST", "/login", "203.0.113.7")
	// Output:
	// GET /search 200 remaining 19
	// POST /login 200 remaining 4
}

// A bucket of 10 that gains a token every 2 seconds, per user and outside HTTP (system D).
func ExampleLimiter_Allow() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	ctx := context.Background()

	limit := ginlimit.Limit{Rate: 1, Period: 2 * time.Second, Burst: 10}
	for range 11 {
		r, err := limiter.Allow(ctx, "user123", limit)
		if err != nil {
			panic(err) // no decision was made
		}
		if !r.Allowed {
			fmt.Println("refused: try again in", r.RetryAfter.Round(time.Second))
		}
	}
	// Output: refused: try again in 2s
}

func ExampleLimiter_Block() {
	limiter, err := ginlimit.NewLocal()
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	ctx, limit := context.Background(), ginlimit.PerMinute(100)

	key := ginlimit.Key("login", "203.0.113.7") // as a handler WithName("login") counts it
	if err := limiter.Block(ctx, key, time.Hour, limit); err != nil {
		panic(err)
	}
	r, err := limiter.Peek(ctx, key, limit)
	fmt.Println(r.Allowed, r.RetryAfter.Round(time.Minute), err)
	// Output: false 1h0m0s <nil>
}

func ExampleWithKey() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()

	byUser := func(c *gin.Context) (string, error) {
		return c.GetHeader("X-User-Id"), nil // set by the proxy that logs users in
	}
	router.Use(ginlimit.New(rdb, ginlimit.PerMinute(5), ginlimit.WithKey(byUser)))
	router.GET("/", ok)

	request(router, "GET", "/", "203.0.113.7", "X-User-Id", "ada")
	request(router, "GET", "/", "198.51.100.1", "X-User-Id", "ada")
	request(router, "GET", "/", "203.0.113.7", "X-User-Id", "grace")
	// Output:
	// GET / 200 remaining 4
	// GET / 200 remaining 3
	// GET / 200 remaining 4
}

// What Gin believes by default, anyone can forge: each request chooses its own bucket.
func ExampleByClientIP_forged() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New() // trusts every proxy
	router.Use(ginlimit.New(rdb, ginlimit.PerMinute(5)))
	router.GET("/", ok)

	request(router, "GET", "/", "203.0.113.7", "X-Forwarded-For", "192.0.2.1")
	request(router, "GET", "/", "203.0.113.7", "X-Forwarded-For", "192.0.2.2")

	_ = router.SetTrustedProxies([]string{"10.0.0.0/8"}) // the load balancers' network
	request(router, "GET", "/", "203.0.113.7", "X-Forwarded-For", "192.0.2.3")
	request(router, "GET", "/", "203.0.113.7", "X-Forwarded-For", "192.0.2.4")
	// Output:
	// GET / 200 remaining 4
	// GET / 200 remaining 4
	// GET / 200 remaining 4
	// GET / 200 remaining 3
}

func ExampleWithFailure() {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nobody listens
	defer rdb.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithReplicas(4), ginlimit.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		panic(err)
	}
	defer limiter.Close()

	router.GET("/", limiter.Handler(ginlimit.PerMinute(100)), ok) // without Redis 25 a minute, in each of 4 processes
	router.GET("/health", limiter.Handler(ginlimit.PerMinute(60), ginlimit.WithFailure(ginlimit.FailOpen)), ok)
	router.POST("/login", limiter.Handler(ginlimit.PerMinute(5), ginlimit.WithFailure(ginlimit.FailClosed)), ok)

	request(router, "GET", "/", "203.0.113.7")
	request(router, "GET", "/health", "203.0.113.7")
	request(router, "POST", "/login", "203.0.113.7")
	// Output:
	// GET / 200 remaining 24
	// GET /health 200 remaining 59
	// POST /login 503
}

func ExampleWithIdentity() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

	everybody := func(*gin.Context) (string, error) { return "all", nil }
	router.GET("/", limiter.Handler(ginlimit.PerMinute(10), ginlimit.WithName("address"), // all must allow, or none is charged
		ginlimit.WithIdentity("api key", ginlimit.ByHeader("X-Api-Key"), ginlimit.PerMinute(2)),
		ginlimit.WithIdentity("all", everybody, ginlimit.PerSecond(1000))), ok)

	request(router, "GET", "/", "203.0.113.7", "X-Api-Key", "a")
	request(router, "GET", "/", "198.51.100.1", "X-Api-Key", "a")
	request(router, "GET", "/", "192.0.2.1", "X-Api-Key", "a")
	request(router, "GET", "/", "192.0.2.1", "X-Api-Key", "b")
	request(router, "GET", "/", "192.0.2.1")
	// Output:
	// GET / 200 remaining 1
	// GET / 200 remaining 0
	// GET / 429 remaining 0
	// GET / 200 remaining 1
	// GET / 400
}

func ExampleWithRefund() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

	loggedIn := func(c *gin.Context) bool { return c.Writer.Status() == http.StatusOK }
	router.POST("/login", ginlimit.New(rdb, ginlimit.Limit{Rate: 2, Period: 15 * time.Minute},
		ginlimit.WithRefund(loggedIn)), // so that only failures count
		func(c *gin.Context) {
			if c.Query("password") != "right" {
				c.Status(http.StatusUnauthorized)
			}
		})

	request(router, "POST", "/login?password=right", "203.0.113.7")
	request(router, "POST", "/login?password=wrong", "203.0.113.7")
	request(router, "POST", "/login?password=right", "203.0.113.7")
	request(router, "POST", "/login?password=wrong", "203.0.113.7")
	request(router, "POST", "/login?password=right", "203.0.113.7")
	// Output:
	// POST /login?password=right 200 remaining 1
	// POST /login?password=wrong 401 remaining 1
	// POST /login?password=right 200 remaining 0
	// POST /login?password=wrong 401 remaining 0
	// POST /login?password=right 429 remaining 0
}

func ExampleNewPlans() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	database := map[string]int{"free": 2, "paying": 1000}

	plans, err := ginlimit.NewPlans(rdb, time.Minute, func(_ context.Context, client string) (ginlimit.Limit, error) {
		rate, known := database[client] // a query, in an application
		if !known {
			return ginlimit.Limit{}, ginlimit.ErrUnknownClient // 403; or return a limit for strangers
		}
		return ginlimit.PerMinute(rate), nil
	})
	if err != nil {
		panic(err)
	}
	router.GET("/", limiter.Handler(ginlimit.PerMinute(0), ginlimit.WithName("plan"), // the plan takes its place
		ginlimit.WithKey(ginlimit.ByHeader("X-Client-Id")), ginlimit.WithLimitFunc(plans.Limit)), ok)

	request(router, "GET", "/", "203.0.113.7", "X-Client-Id", "free")
	request(router, "GET", "/", "203.0.113.7", "X-Client-Id", "paying")
	request(router, "GET", "/", "203.0.113.7", "X-Client-Id", "nobody")
	database["free"] = 10
	if err := plans.Invalidate(context.Background(), "free"); err != nil {
		panic(err)
	}
	request(router, "GET", "/", "203.0.113.7", "X-Client-Id", "free")
	// Output:
	// GET / 200 remaining 1
	// GET / 200 remaining 999
	// GET / 403
	// GET / 200 remaining 4
}

func ExampleWithDryRun() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

	router.Use(limiter.Handler(ginlimit.PerMinute(100)),
		limiter.Handler(ginlimit.PerMinute(1), ginlimit.WithName("stricter"), ginlimit.WithDryRun()))
	router.GET("/", func(c *gin.Context) {
		if r, _ := ginlimit.FromContext(c); !r.Allowed {
			fmt.Println("would be refused by", r.Limit)
		}
	})

	request(router, "GET", "/", "203.0.113.7")
	request(router, "GET", "/", "203.0.113.7")
	// Output:
	// GET / 200 remaining 99
	// would be refused by 1/m
	// GET / 200 remaining 98
}

// A policy file: limits are text in JSON, and in whatever else knows encoding.TextUnmarshaler.
func ExampleLimit_UnmarshalText() {
	file := filepath.Join(os.TempDir(), fmt.Sprint("policy-", os.Getpid(), ".json"))
	defer os.Remove(file)
	if err := os.WriteFile(file, []byte(`{"search": "10/s burst 20", "login": "5/15m"}`), 0o600); err != nil {
		panic(err)
	}

	text, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	var policy struct{ Search, Login ginlimit.Limit }
	if err := json.Unmarshal(text, &policy); err != nil {
		panic(err)
	}
	fmt.Println(policy.Search.Burst, policy.Login.Period)

	err = json.Unmarshal([]byte(`{"search": "ten a second"}`), &policy)
	fmt.Println(err)
	// Output:
	// 20 15m0s
	// ginlimit: invalid limit: "ten a second": want "rate/period" or "rate/period burst n"
}

func ExampleParseLimit() {
	for _, text := range []string{"100/m", "5/15m", "10/s burst 20", "100"} {
		limit, err := ginlimit.ParseLimit(text)
		fmt.Println(limit.Rate, limit.Period, limit.Burst, err)
	}
	// Output:
	// 100 1m0s 0 <nil>
	// 5 15m0s 0 <nil>
	// 10 1s 20 <nil>
	// 0 0s 0 ginlimit: invalid limit: "100": want a "/" between rate and period
}

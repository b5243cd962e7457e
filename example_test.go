package ginlimit_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
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

	logIn := func(c *gin.Context) {
		if c.Query("password") != "right" {
			c.Status(http.StatusUnauthorized)
		}
	}

	loggedIn := func(c *gin.Context) bool { return c.Writer.Status() == http.StatusOK }
	router.POST("/login", ginlimit.New(rdb, ginlimit.Limit{Rate: 2, Period: 15 * time.Minute},
		ginlimit.WithRefund(loggedIn)), logIn) // so that only failures count

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

func ExampleWithAlgorithm() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

	router.GET("/", limiter.Handler(ginlimit.PerMinute(100)), ok) // a token bucket
	router.POST("/export", limiter.Handler(ginlimit.PerDay(1), ginlimit.WithName("export"),
		ginlimit.WithAlgorithm(ginlimit.FixedWindow)), ok)
	router.POST("/sms", limiter.Handler(ginlimit.PerHour(2), ginlimit.WithName("sms"),
		ginlimit.WithAlgorithm(ginlimit.SlidingWindow)), ok)

	for _, path := range []string{"/export", "/export", "/sms", "/sms", "/sms"} {
		request(router, "POST", path, "203.0.113.7")
	}
	// Output:
	// POST /export 200 remaining 0
	// POST /export 429 remaining 0
	// POST /sms 200 remaining 1
	// POST /sms 200 remaining 0
	// POST /sms 429 remaining 0
}

// answer prints the status and some header fields of what a client gets.
func answer(router http.Handler, header http.Header, fields ...string) {
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	req.Header = header
	rec := httptest.NewRecorder()
	router.ServeHTTP(rec, req)
	fmt.Println(rec.Code)
	for _, field := range fields {
		fmt.Printf("  %s: %s\n", field, cmp.Or(rec.Header().Get(field), "(none)"))
	}
}

func ExampleWithHeaders() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

	router.GET("/", limiter.Handler(ginlimit.PerMinute(2), ginlimit.WithName("search"),
		ginlimit.WithLimits(ginlimit.PerDay(1000)),
		ginlimit.WithHeaders(ginlimit.XRateLimit|ginlimit.RateLimitDraft)), ok)

	answer(router, nil, "X-RateLimit-Remaining", "RateLimit-Policy", "RateLimit")
	answer(router, nil)
	answer(router, nil, "Retry-After", "RateLimit")
	answer(router, http.Header{"Accept": {"text/plain"}}, "Content-Type")
	// Output:
	// 200
	//   X-RateLimit-Remaining: 1
	//   RateLimit-Policy: "search-m";q=2;w=60, "search-d";q=1000;w=86400
	//   RateLimit: "search-m";r=1;t=30, "search-d";r=999;t=87
	// 200
	// 429
	//   Retry-After: 30
	//   RateLimit: "search-m";r=0;t=30, "search-d";r=998
	// 429
	//   Content-Type: text/plain; charset=utf-8
}

// Header fields as one likes: the count, the state and when it expires (system B).
func ExampleWithHeaderFunc() {
	limiter, err := ginlimit.NewLocal(ginlimit.WithAlgorithm(ginlimit.SlidingWindow))
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

	state := map[bool]string{true: "Allow", false: "Deny"}
	router.GET("/", limiter.Handler(ginlimit.PerMinute(2),
		ginlimit.WithHeaders(ginlimit.NoHeaders),
		ginlimit.WithHeaderFunc(func(h http.Header, r ginlimit.Result) {
			h.Set("Rate-Limiting-Total-Requests", strconv.Itoa(r.Limit.Rate-r.Remaining))
			h.Set("Rate-Limiting-State", state[r.Allowed])
			h.Set("Rate-Limiting-Expires-At", time.Now().Add(r.ResetAfter).Format(time.RFC3339))
		})), ok)

	for range 3 {
		answer(router, nil, "Rate-Limiting-Total-Requests", "Rate-Limiting-State", "X-RateLimit-Remaining")
	}
	// Output:
	// 200
	//   Rate-Limiting-Total-Requests: 1
	//   Rate-Limiting-State: Allow
	//   X-RateLimit-Remaining: (none)
	// 200
	//   Rate-Limiting-Total-Requests: 2
	//   Rate-Limiting-State: Allow
	//   X-RateLimit-Remaining: (none)
	// 429
	//   Rate-Limiting-Total-Requests: 2
	//   Rate-Limiting-State: Deny
	//   X-RateLimit-Remaining: (none)
}

// The same of a plan, whose quota is -1 if it is unlimited and 0 if it is prohibited (system C).
func ExampleWithHeaderFunc_plan() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	quotas := map[string]int{"ordinary": 10, "unlimited": -1, "prohibited": 0}
	plan := func(_ *gin.Context, client string) (ginlimit.Limit, error) {
		return ginlimit.PerMinute(quotas[client]), nil
	}
	tell := func(h http.Header, r ginlimit.Result) {
		used := max(0, r.Limit.Rate-r.Remaining)
		h.Set("X-Rate-Limit-Policy", "per-minute")
		h.Set("X-Rate-Limit-Quota", strconv.Itoa(r.Limit.Rate))
		h.Set("X-Rate-Limit-Used", strconv.Itoa(used))
		h.Set("X-Rate-Limit-Reset", strconv.Itoa(int(math.Ceil(r.ResetAfter.Seconds()))))
	}
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", limiter.Handler(ginlimit.PerMinute(0), ginlimit.WithName("plan"),
		ginlimit.WithKey(ginlimit.ByHeader("X-Client-Id")), ginlimit.WithLimitFunc(plan),
		ginlimit.WithHeaders(ginlimit.NoHeaders), ginlimit.WithHeaderFunc(tell)), ok)

	for _, client := range []string{"ordinary", "unlimited", "prohibited"} {
		answer(router, http.Header{"X-Client-Id": {client}}, "X-Rate-Limit-Quota", "X-Rate-Limit-Used", "X-Rate-Limit-Reset")
	}
	// Output:
	// 200
	//   X-Rate-Limit-Quota: 10
	//   X-Rate-Limit-Used: 1
	//   X-Rate-Limit-Reset: 6
	// 200
	//   X-Rate-Limit-Quota: -1
	//   X-Rate-Limit-Used: 0
	//   X-Rate-Limit-Reset: 0
	// 429
	//   X-Rate-Limit-Quota: 0
	//   X-Rate-Limit-Used: 0
	//   X-Rate-Limit-Reset: 0
}

func ExampleWithObserver() {
	rdb, stop := exampleRedis()
	defer stop()

	var outcomes [ginlimit.OutcomeError + 1]atomic.Int64
	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithObserver(func(_ context.Context, e ginlimit.Event) {
		outcomes[e.Outcome].Add(1) // and e.Name, e.Limit, e.Cost, e.Duration
	}))
	if err != nil {
		panic(err)
	}

	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", limiter.Handler(ginlimit.PerHour(2)), ok)

	for range 3 {
		request(router, "GET", "/", "203.0.113.7")
	}
	fmt.Println(outcomes[ginlimit.OutcomeAllowed].Load(), outcomes[ginlimit.OutcomeRefused].Load(), limiter.Stats().LostServers)
	// Output:
	// GET / 200 remaining 1
	// GET / 200 remaining 0
	// GET / 429 remaining 0
	// 2 1 0
}

// In the process alone, for what needs no Redis: calls of another service, say.
func ExampleNewLocal() {
	limiter, err := ginlimit.NewLocal()
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	for range 3 {
		r, err := limiter.Allow(context.Background(), "api.example.com", ginlimit.PerHour(2))
		fmt.Println(r.Allowed, r.Remaining, r.Source, err)
	}
	// Output:
	// true 1 local <nil>
	// true 0 local <nil>
	// false 0 local <nil>
}

// As many rows as may be sent now.
func ExampleLimiter_AllowUpTo() {
	limiter, err := ginlimit.NewLocal()
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	for range 2 {
		r, err := limiter.AllowUpTo(context.Background(), "export", 700, ginlimit.PerDay(1000))
		fmt.Println(r.Granted, err)
	}
	// Output:
	// 700 <nil>
	// 300 <nil>
}

// A worker that goes no faster than it may. Where the next token comes after the deadline, it is told at once.
func ExampleLimiter_Wait() {
	limiter, err := ginlimit.NewLocal()
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fmt.Println(limiter.Wait(ctx, "mail", ginlimit.PerHour(1)))
	err = limiter.Wait(ctx, "mail", ginlimit.PerHour(1))
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output:
	// <nil>
	// true
}

// What was taken for work that was not done.
func ExampleLimiter_Refund() {
	limiter, err := ginlimit.NewLocal()
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	ctx, limit := context.Background(), ginlimit.PerDay(10)

	r, err := limiter.AllowN(ctx, "user123", 4, limit)
	fmt.Println(r.Remaining, err)
	fmt.Println(limiter.Refund(ctx, "user123", 4, limit))
	r, err = limiter.Peek(ctx, "user123", limit)
	fmt.Println(r.Remaining, err)
	// Output:
	// 6 <nil>
	// <nil>
	// 10 <nil>
}

// The API key where there is one, and else the address.
func ExampleByFirst() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", ginlimit.New(rdb, ginlimit.PerMinute(2),
		ginlimit.WithKey(ginlimit.ByFirst(ginlimit.ByHeader("X-Api-Key"), ginlimit.ByClientIP))), ok)

	request(router, "GET", "/", "203.0.113.7", "X-Api-Key", "a")
	request(router, "GET", "/", "198.51.100.1", "X-Api-Key", "a")
	request(router, "GET", "/", "203.0.113.7")
	// Output:
	// GET / 200 remaining 1
	// GET / 200 remaining 0
	// GET / 200 remaining 1
}

func ExampleWithCost() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/search", ginlimit.New(rdb, ginlimit.PerMinute(100), ginlimit.WithCost(func(c *gin.Context) int {
		if c.Query("deep") != "" {
			return 10
		}
		return 1
	})), ok)

	request(router, "GET", "/search", "203.0.113.7")
	request(router, "GET", "/search?deep=yes", "203.0.113.7")
	// Output:
	// GET /search 200 remaining 99
	// GET /search?deep=yes 200 remaining 89
}

func ExampleWithAllowList() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", ginlimit.New(rdb, ginlimit.PerMinute(1),
		ginlimit.WithAllowList(netip.MustParsePrefix("10.0.0.0/8")),
		ginlimit.WithDenyList(netip.MustParsePrefix("192.0.2.0/24"))), ok)

	for _, address := range []string{"10.1.2.3", "10.1.2.3", "192.0.2.1", "203.0.113.7", "203.0.113.7"} {
		request(router, "GET", "/", address)
	}
	// Output:
	// GET / 200
	// GET / 200
	// GET / 403
	// GET / 200 remaining 0
	// GET / 429 remaining 0
}

// An answer of one's own. The status 429 and the headers are set.
func ExampleWithDeniedHandler() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", ginlimit.New(rdb, ginlimit.PerMinute(1), ginlimit.WithDeniedHandler(func(c *gin.Context, r ginlimit.Result) {
		c.JSON(c.Writer.Status(), gin.H{"error": "slow down", "seconds": int(math.Ceil(r.RetryAfter.Seconds()))})
	})), func(c *gin.Context) { c.String(http.StatusOK, "served") })

	for range 2 {
		rec := httptest.NewRecorder()
		router.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Println(rec.Code, rec.Body)
	}
	// Output:
	// 200 served
	// 429 {"error":"slow down","seconds":60}
}

// Strangers get through, all other errors are as by default.
func ExampleWithErrorHandler() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", ginlimit.New(rdb, ginlimit.PerMinute(1), ginlimit.WithKey(ginlimit.ByHeader("X-Api-Key")),
		ginlimit.WithErrorHandler(func(c *gin.Context, err error) {
			if errors.Is(err, ginlimit.ErrNoKey) {
				return // unlimited
			}
			_ = c.AbortWithError(http.StatusServiceUnavailable, err)
		})), ok)

	request(router, "GET", "/", "203.0.113.7")
	request(router, "GET", "/", "203.0.113.7", "X-Api-Key", "a")
	// Output:
	// GET / 200
	// GET / 200 remaining 0
}

// For an access log.
func ExampleFromContext() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.Use(func(c *gin.Context) {
		c.Next()
		if r, ok := ginlimit.FromContext(c); ok {
			fmt.Println(c.Request.URL.Path, c.Writer.Status(), r.Allowed, r.Limit, r.Remaining, r.Source)
		}
	})
	router.GET("/", ginlimit.New(rdb, ginlimit.PerMinute(1)), ok)

	for range 2 {
		router.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	}
	// Output:
	// / 200 true 1/m 0 redis
	// / 429 false 1/m 0 redis
}

// A client and a limiter as one may want them in production.
func ExampleNewLimiter() {
	rdb := redis.NewClient(&redis.Options{
		Addr:                  "127.0.0.1:6379",
		ContextTimeoutEnabled: true,
		DisableIdentity:       true,
		DialTimeout:           time.Second,
		ReadTimeout:           time.Second,
	})
	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithTimeout(50*time.Millisecond), ginlimit.WithReplicas(4))

	if err != nil {
		panic(err)
	}
	defer rdb.Close()
	defer limiter.Close() // before the client
	fmt.Println("made, whether Redis is there or not")
	// Output: made, whether Redis is there or not
}

// To unblock whom a handler named login has refused.
func ExampleLimiter_Reset() {
	limiter, makeErr := ginlimit.NewLocal()
	if makeErr != nil {
		panic(makeErr)
	}
	defer limiter.Close()
	ctx, limit := context.Background(), ginlimit.Limit{Rate: 5, Period: 15 * time.Minute}

	err := limiter.Reset(ctx, ginlimit.Key("login", "203.0.113.7"), limit)

	fmt.Println(err)
	// Output: <nil>
}

// Ten in a minute and a hundred in a day: both must allow, or neither is charged.
func ExampleWithLimits() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", ginlimit.New(rdb, ginlimit.PerMinute(10), ginlimit.WithLimits(ginlimit.PerDay(2))), ok)

	for range 3 {
		request(router, "GET", "/", "203.0.113.7") // is told of the one closest to exhaustion
	}
	// Output:
	// GET / 200 remaining 1
	// GET / 200 remaining 0
	// GET / 429 remaining 0
}

// Each user of each tenant.
func ExampleByAll() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/:tenant", ginlimit.New(rdb, ginlimit.PerMinute(2),
		ginlimit.WithKey(ginlimit.ByAll(ginlimit.ByParam("tenant"), ginlimit.ByHeader("X-User")))), ok)

	request(router, "GET", "/a", "203.0.113.7", "X-User", "1")
	request(router, "GET", "/a", "203.0.113.7", "X-User", "2")
	request(router, "GET", "/b", "203.0.113.7", "X-User", "1")
	request(router, "GET", "/a", "203.0.113.7", "X-User", "1")
	// Output:
	// GET /a 200 remaining 1
	// GET /a 200 remaining 1
	// GET /b 200 remaining 1
	// GET /a 200 remaining 0
}

// Whole networks count as one client.
func ExampleByClientIPPrefix() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", ginlimit.New(rdb, ginlimit.PerMinute(2), ginlimit.WithKey(ginlimit.ByClientIPPrefix(24, 48))), ok)

	for _, address := range []string{"203.0.113.7", "203.0.113.8", "203.0.113.9", "198.51.100.1"} {
		request(router, "GET", "/", address)
	}
	// Output:
	// GET / 200 remaining 1
	// GET / 200 remaining 0
	// GET / 429 remaining 0
	// GET / 200 remaining 1
}

func ExampleWithSkip() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.Use(ginlimit.New(rdb, ginlimit.PerMinute(1),
		ginlimit.WithSkip(func(c *gin.Context) bool { return c.Request.URL.Path == "/health" })))
	router.GET("/", ok)
	router.GET("/health", ok)

	for _, path := range []string{"/", "/health", "/health", "/"} {
		request(router, "GET", path, "203.0.113.7")
	}
	// Output:
	// GET / 200 remaining 0
	// GET /health 200
	// GET /health 200
	// GET / 429 remaining 0
}

// The key under which a handler counts a client, and others that cannot be mistaken for it.
func ExampleKey() {
	fmt.Println(ginlimit.Key("login", "203.0.113.7"))
	fmt.Println(ginlimit.Key("api", "a|b", "c"))
	fmt.Println(ginlimit.Key("api", "a", "b|c"))
	// Output:
	// login|203.0.113.7
	// api|a\|b|c
	// api|a|b\|c
}

func ExampleLimiter_AllowN() {
	limiter, err := ginlimit.NewLocal()
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	for _, n := range []int{7, 4, 3, 11} {
		r, err := limiter.AllowN(context.Background(), "user123", n, ginlimit.PerDay(10))
		fmt.Println(n, r.Allowed, r.Remaining, r.RetryAfter < 0, err)
	}
	// Output:
	// 7 true 3 false <nil>
	// 4 false 3 false <nil>
	// 3 true 0 false <nil>
	// 11 false 0 true <nil>
}

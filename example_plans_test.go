package ginlimit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
)

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
	router.GET("/", limiter.Handler("search", ginlimit.PerMinute(2),
		ginlimit.WithLimits(ginlimit.PerDay(1000)),
		ginlimit.WithHeaders(ginlimit.XRateLimit|ginlimit.RateLimitDraft)), ok)
	answer(router, nil, "X-RateLimit-Remaining", "RateLimit-Policy", "RateLimit")
	answer(router, nil)
	answer(router, nil, "Retry-After", "RateLimit")
	// Output:
	// 200
	//   X-RateLimit-Remaining: 1
	//   RateLimit-Policy: "search-m";q=2;w=60, "search-d";q=1000;w=86400
	//   RateLimit: "search-m";r=1;t=30, "search-d";r=999;t=87
	// 200
	// 429
	//   Retry-After: 30
	//   RateLimit: "search-m";r=0;t=30, "search-d";r=998
}

// Header fields of your own: the count, the state and when it expires (system B).
func ExampleWithHeaderFunc() {
	limiter, err := ginlimit.NewLocal()
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	state := map[bool]string{true: "Allow", false: "Deny"}
	router.GET("/", limiter.Handler("all", ginlimit.PerMinute(2).WithAlgorithm(ginlimit.SlidingWindow),
		ginlimit.WithHeaders(ginlimit.NoHeaders),
		ginlimit.WithHeaderFunc(func(h http.Header, limits []ginlimit.Result) {
			r := limits[0]
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
	plan := func(_ context.Context, client string) ([]ginlimit.Limit, error) {
		return []ginlimit.Limit{ginlimit.PerMinute(quotas[client])}, nil
	}
	report := func(h http.Header, limits []ginlimit.Result) {
		r := limits[0]
		used := max(0, r.Limit.Rate-r.Remaining)
		h.Set("X-Rate-Limit-Policy", "per-minute")
		h.Set("X-Rate-Limit-Quota", strconv.Itoa(r.Limit.Rate))
		h.Set("X-Rate-Limit-Used", strconv.Itoa(used))
		h.Set("X-Rate-Limit-Reset", strconv.Itoa(int(math.Ceil(r.ResetAfter.Seconds()))))
	}
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", limiter.Handler("plan",
		ginlimit.WithKey(ginlimit.ByHeader("X-Client-Id")), ginlimit.WithLimitFunc(plan),
		ginlimit.WithHeaders(ginlimit.NoHeaders), ginlimit.WithHeaderFunc(report)), ok)
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

func ExampleWithKey() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	byUser := func(c *gin.Context) (string, error) {
		return c.GetHeader("X-User-Id"), nil // set by the proxy that logs users in
	}
	router.Use(ginlimit.New(rdb, "all", ginlimit.PerMinute(5), ginlimit.WithKey(byUser)))
	router.GET("/", ok)
	request(router, "GET", "/", "203.0.113.7", "X-User-Id", "ada")
	request(router, "GET", "/", "198.51.100.1", "X-User-Id", "ada")
	request(router, "GET", "/", "203.0.113.7", "X-User-Id", "grace")
	// Output:
	// GET / 200 remaining 4
	// GET / 200 remaining 3
	// GET / 200 remaining 4
}

// A malformed key is the client's fault: 400. Without a key, the address counts.
func ExampleKeyFunc() {
	limiter, err := ginlimit.NewLocal()
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	byToken := func(c *gin.Context) (string, error) {
		header := c.GetHeader("Authorization")
		if header == "" {
			return "", ginlimit.ErrNoKey
		}
		token, ok := strings.CutPrefix(header, "Bearer ")
		if !ok || len(token) != 8 {
			return "", fmt.Errorf("%w: a malformed token", ginlimit.ErrBadRequest) // the client does not see this text
		}
		return token, nil // a real one verifies it first
	}
	tokens, err := limiter.Policy("token", ginlimit.PerMinute(5), ginlimit.WithKey(byToken))
	if err != nil {
		panic(err)
	}
	addresses, err := limiter.Policy("address", ginlimit.PerMinute(2))
	if err != nil {
		panic(err)
	}
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", ginlimit.FirstOf(tokens, addresses), ok)
	request(router, "GET", "/", "203.0.113.7", "Authorization", "Bearer 12345678")
	request(router, "GET", "/", "203.0.113.7", "Authorization", "Bearer 1234")
	request(router, "GET", "/", "203.0.113.7")
	// Output:
	// GET / 200 remaining 4
	// GET / 400
	// GET / 200 remaining 1
}

// By default Gin trusts X-Forwarded-For from any client, so each request can choose its own bucket.
func ExampleByClientIP_forged() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New() // trusts every proxy
	router.Use(ginlimit.New(rdb, "all", ginlimit.PerMinute(5)))
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

func ExampleAllOf() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	policy := func(name string, opts ...ginlimit.PolicyOption) *ginlimit.Policy {
		p, err := limiter.Policy(name, opts...)
		if err != nil {
			panic(err)
		}
		return p
	}
	everybody := func(*gin.Context) (string, error) { return "all", nil }
	// all must allow, or none is charged
	router.GET("/", ginlimit.AllOf(policy("address", ginlimit.PerMinute(10)),
		policy("api key", ginlimit.PerMinute(2), ginlimit.WithKey(ginlimit.ByHeader("X-Api-Key"))),
		policy("all", ginlimit.PerSecond(1000), ginlimit.WithKey(everybody))), ok)
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

// Each user of each tenant.
func ExampleByAll() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/:tenant", ginlimit.New(rdb, "all", ginlimit.PerMinute(2),
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
	router.GET("/", ginlimit.New(rdb, "all", ginlimit.PerMinute(2),
		ginlimit.WithKey(ginlimit.ByClientIPPrefix(24, 48))), ok)

	for _, address := range []string{"203.0.113.7", "203.0.113.8", "203.0.113.9", "198.51.100.1"} {
		request(router, "GET", "/", address)
	}
	// Output:
	// GET / 200 remaining 1
	// GET / 200 remaining 0
	// GET / 429 remaining 0
	// GET / 200 remaining 1
}

func ExampleLimiter_NewPlans() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	database := map[string]int{"free": 2, "paying": 1000}

	plans, err := limiter.NewPlans("plans", time.Minute, func(_ context.Context, client string) ([]ginlimit.Limit, error) {
		rate, known := database[client] // a query, in an application
		if !known {
			return nil, ginlimit.ErrUnknownClient // 403; or return a limit for strangers
		}
		return []ginlimit.Limit{ginlimit.PerMinute(rate)}, nil
	})
	if err != nil {
		panic(err)
	}
	router.GET("/", limiter.Handler("plan",
		ginlimit.WithKey(ginlimit.ByHeader("X-Client-Id")), ginlimit.WithLimitFunc(plans.Limits)), ok)
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
	// ginlimit: invalid argument: "ten a second": want a "/" between rate and period
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
	// 0 0s 0 ginlimit: invalid argument: "100": want a "/" between rate and period
}

// Ten in a minute and a hundred in a day: both must allow, or neither is charged.
func ExampleLimiter_Handler_several() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", limiter.Handler("all", ginlimit.PerMinute(10), ginlimit.PerDay(2)), ok)

	for range 3 {
		request(router, "GET", "/", "203.0.113.7") // the headers report the limit closest to exhaustion
	}
	// Output:
	// GET / 200 remaining 1
	// GET / 200 remaining 0
	// GET / 429 remaining 0
}

// Ten at once, two a second, and a quota for each month of the customer's time zone: all must
// allow, or none is charged.
func ExamplePerCalendar() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		panic(err)
	}
	month := ginlimit.CalendarMonth(berlin, 1)
	router.GET("/", limiter.Handler("api", ginlimit.PerSecond(2).WithBurst(10),
		ginlimit.PerCalendar(3, month)), ok)

	for range 4 {
		request(router, "GET", "/", "203.0.113.7")
	}
	// Output:
	// GET / 200 remaining 2
	// GET / 200 remaining 1
	// GET / 200 remaining 0
	// GET / 429 remaining 0
}

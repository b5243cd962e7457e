package ginlimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What the Examples share: a Redis in the process, and requests whose answers are printed.
var (
	exampleRedis = testkit.ExampleRedis
	request      = testkit.PrintRequest
	answer       = testkit.PrintAnswer
	ok           = testkit.OK
)

func ExampleNew() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.Use(ginlimit.New(rdb, "all", ginlimit.PerMinute(2)))
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
	router.Use(limiter.Handler("100/m", ginlimit.PerMinute(100))) // every route together
	router.GET("/search", limiter.Handler(
		"search", ginlimit.PerSecond(10).WithBurst(20),
		ginlimit.WithLimits(ginlimit.PerHour(300))), ok)
	router.POST("/login", limiter.Handler(
		"login", ginlimit.Limit{Rate: 5, Period: 15 * time.Minute}), ok)
	request(router, "GET", "/search", "203.0.113.7")
	request(router, "POST", "/login", "203.0.113.7")
	// Output:
	// GET /search 200 remaining 19
	// POST /login 200 remaining 4
}

func ExampleWithRefund() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	logIn := func(c *gin.Context) {
		if c.Query("password") != "right" {
			c.Set("login failed", true)
		}
	}

	succeeded := func(c *gin.Context) bool { return !c.GetBool("login failed") } // whatever the status is
	router.POST("/login", ginlimit.New(rdb, "login", ginlimit.Limit{Rate: 2, Period: 15 * time.Minute},
		ginlimit.WithRefund(succeeded)), logIn) // so that only failures count
	request(router, "POST", "/login?password=right", "203.0.113.7")
	request(router, "POST", "/login?password=wrong", "203.0.113.7")
	request(router, "POST", "/login?password=right", "203.0.113.7")
	request(router, "POST", "/login?password=wrong", "203.0.113.7")
	request(router, "POST", "/login?password=right", "203.0.113.7")
	// Output:
	// POST /login?password=right 200 remaining 1
	// POST /login?password=wrong 200 remaining 1
	// POST /login?password=right 200 remaining 0
	// POST /login?password=wrong 200 remaining 0
	// POST /login?password=right 429 remaining 0
}

func ExampleFirstOf() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	plans, err := limiter.NewPlans("plans", time.Minute, func(_ context.Context, key string) ([]ginlimit.Limit, error) {
		if key != "paying" { // a query, in an application
			return nil, ginlimit.ErrUnknownClient
		}
		return []ginlimit.Limit{ginlimit.PerMinute(10), ginlimit.PerDay(1000)}, nil
	})
	if err != nil {
		panic(err)
	}

	keys, err1 := limiter.Policy("api key",
		ginlimit.WithKey(ginlimit.ByHeader("X-Api-Key")), ginlimit.WithLimitFunc(plans.Limits))
	addresses, err2 := limiter.Policy("address", ginlimit.PerHour(2))
	if err := errors.Join(err1, err2); err != nil {
		panic(err)
	}
	router.GET("/", ginlimit.FirstOf(keys, addresses), ok)
	request(router, "GET", "/", "203.0.113.7", "X-Api-Key", "paying")
	request(router, "GET", "/", "203.0.113.7", "X-Api-Key", "invented") // unknown: its address does not help
	request(router, "GET", "/", "203.0.113.7")
	request(router, "GET", "/", "203.0.113.7")
	request(router, "GET", "/", "203.0.113.7")
	request(router, "GET", "/", "203.0.113.7", "X-Api-Key", "paying")
	// Output:
	// GET / 200 remaining 9
	// GET / 403
	// GET / 200 remaining 1
	// GET / 200 remaining 0
	// GET / 429 remaining 0
	// GET / 200 remaining 8
}

func ExampleLimiter_Policy() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	logins, err := limiter.Policy("login", ginlimit.PerHour(5),
		ginlimit.WithKey(ginlimit.ByHeader("X-User")))
	if err != nil {
		panic(err)
	}
	router.POST("/login", logins.Handler(), ok)
	router.POST("/alert/:user", func(c *gin.Context) { // fraud
		if err := logins.Block(c.Request.Context(), c.Param("user"), time.Hour); err != nil {
			_ = c.AbortWithError(http.StatusServiceUnavailable, err)
		}
	})
	request(router, "POST", "/login", "203.0.113.7", "X-User", "anna")
	if err := logins.Refund(context.Background(), "anna", 1); err != nil { // as a support tool may
		panic(err)
	}
	request(router, "POST", "/login", "203.0.113.7", "X-User", "anna")
	request(router, "POST", "/alert/anna", "203.0.113.7")
	request(router, "POST", "/login", "203.0.113.7", "X-User", "anna")
	// Output:
	// POST /login 200 remaining 4
	// POST /login 200 remaining 4
	// POST /alert/anna 200
	// POST /login 429 remaining 0
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
	router.Use(limiter.Handler("100/m", ginlimit.PerMinute(100)),
		limiter.Handler("stricter", ginlimit.PerMinute(1), ginlimit.WithDryRun()))
	router.GET("/", func(c *gin.Context) {
		if r, _ := ginlimit.FromContext(c); !r.Allowed {
			fmt.Println("would be denied by", r.Limit)
		}
	})
	request(router, "GET", "/", "203.0.113.7")
	request(router, "GET", "/", "203.0.113.7")
	// Output:
	// GET / 200 remaining 99
	// would be denied by 1/m
	// GET / 200 remaining 98
}

func ExampleWithObserver() {
	rdb, stop := exampleRedis()
	defer stop()
	var outcomes [ginlimit.OutcomeFailed + 1]atomic.Int64
	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithObserver(func(_ context.Context, e ginlimit.Event) {
		outcomes[e.Outcome].Add(1) // and e.Name, e.Limit, e.Cost, e.Duration
	}))
	if err != nil {
		panic(err)
	}

	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", limiter.Handler("2/h", ginlimit.PerHour(2)), ok)

	for range 3 {
		request(router, "GET", "/", "203.0.113.7")
	}
	fmt.Println(outcomes[ginlimit.OutcomeAllowed].Load(), outcomes[ginlimit.OutcomeDenied].Load(),
		limiter.Stats().LostServers)
	// Output:
	// GET / 200 remaining 1
	// GET / 200 remaining 0
	// GET / 429 remaining 0
	// 2 1 0
}

func ExampleWithCost() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/search", ginlimit.New(rdb, "search", ginlimit.PerMinute(100), ginlimit.WithCost(func(c *gin.Context) int {
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
	router.GET("/", ginlimit.New(rdb, "all", ginlimit.PerMinute(1),
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

// An answer of your own. The status 429 and the headers are set.
func ExampleWithDeniedHandler() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", ginlimit.New(rdb, "all", ginlimit.PerMinute(1),
		ginlimit.WithDeniedHandler(func(c *gin.Context, r ginlimit.Result) {
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

// Strangers get through. All other errors have the default's status, and a body of the application's own.
func ExampleWithErrorHandler() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", ginlimit.New(rdb, "all", ginlimit.PerMinute(1), ginlimit.WithKey(ginlimit.ByHeader("X-Api-Key")),
		ginlimit.WithErrorHandler(func(c *gin.Context, err error) {
			if errors.Is(err, ginlimit.ErrNoKey) {
				c.Next() // unlimited
				return
			}
			_ = c.Error(err) // for the log
			c.AbortWithStatusJSON(ginlimit.ErrorStatus(err), gin.H{"error": "not now"})
		})), ok)
	request(router, "GET", "/", "203.0.113.7")
	request(router, "GET", "/", "203.0.113.7", "X-Api-Key", "a")
	// Output:
	// GET / 200
	// GET / 200 remaining 0
}

// A handler of your own answers as the default does, but for the body.
func ExampleErrorStatus() {
	limiter, err := ginlimit.NewLocal()
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", limiter.Handler("1/m by key", ginlimit.PerMinute(1), ginlimit.WithKey(ginlimit.ByHeader("X-Api-Key")),
		ginlimit.WithErrorHandler(func(c *gin.Context, err error) {
			c.AbortWithStatusJSON(ginlimit.ErrorStatus(err), gin.H{"error": "who are you?"})
		})), ok)

	rec := httptest.NewRecorder()
	router.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
	fmt.Println(rec.Code, rec.Body)
	// Output:
	// 400 {"error":"who are you?"}
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
	router.GET("/", ginlimit.New(rdb, "all", ginlimit.PerMinute(1)), ok)

	for range 2 {
		router.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	}
	// Output:
	// / 200 true 1/m 0 redis
	// / 429 false 1/m 0 redis
}

func ExampleWithSkip() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.Use(ginlimit.New(rdb, "all", ginlimit.PerMinute(1),
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

// The API key where there is one, and else the address.
func ExampleByAny() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", ginlimit.New(rdb, "all", ginlimit.PerMinute(2),
		ginlimit.WithKey(ginlimit.ByAny(ginlimit.ByHeader("X-Api-Key"), ginlimit.ByClientIP))), ok)
	request(router, "GET", "/", "203.0.113.7", "X-Api-Key", "a")
	request(router, "GET", "/", "198.51.100.1", "X-Api-Key", "a")
	request(router, "GET", "/", "203.0.113.7")
	// Output:
	// GET / 200 remaining 1
	// GET / 200 remaining 0
	// GET / 200 remaining 1
}

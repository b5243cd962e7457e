package ginlimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

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

// exampleServer returns a router that trusts no proxy, and a client of a Redis in the process.
func exampleServer() (router *gin.Engine, rdb *redis.Client, stop func()) {
	rdb, stop = exampleRedis()
	router = gin.New()
	_ = router.SetTrustedProxies(nil)
	return router, rdb, stop
}

// exampleLimiter is exampleServer with a limiter on its Redis.
func exampleLimiter() (router *gin.Engine, limiter *ginlimit.Limiter, stop func()) {
	router, rdb, stopRedis := exampleServer()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	return router, limiter, func() { _ = limiter.Close(); stopRedis() }
}

func ExampleNew() {
	router, rdb, stop := exampleServer()
	defer stop()
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
	router, rdb, stop := exampleServer()
	defer stop()
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

// An API key, or else the address, each with its own limit.
func ExampleFirstOf() {
	router, limiter, stop := exampleLimiter()
	defer stop()
	keys, err1 := limiter.Policy("api key", ginlimit.PerMinute(10), ginlimit.WithKey(ginlimit.ByHeader("X-Api-Key")))
	addresses, err2 := limiter.Policy("address", ginlimit.PerHour(2))
	if err := errors.Join(err1, err2); err != nil {
		panic(err)
	}
	router.GET("/", ginlimit.FirstOf(keys, addresses), ok)
	request(router, "GET", "/", "203.0.113.7", "X-Api-Key", "a")
	request(router, "GET", "/", "203.0.113.7")
	// Output:
	// GET / 200 remaining 9
	// GET / 200 remaining 1
}

func ExampleLimiter_Policy() {
	router, limiter, stop := exampleLimiter()
	defer stop()
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
	router, rdb, stop := exampleServer()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
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
	router, rdb, stop := exampleServer()
	defer stop()
	var allowed, denied atomic.Int64
	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithObserver(func(_ context.Context, e ginlimit.Event) {
		switch e.Outcome { // and e.Name, e.Limit, e.Cost, e.Duration
		case ginlimit.OutcomeAllowed:
			allowed.Add(1)
		case ginlimit.OutcomeDenied:
			denied.Add(1)
		}
	}))
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router.GET("/", limiter.Handler("2/h", ginlimit.PerHour(2)), ok)

	for range 3 {
		request(router, "GET", "/", "203.0.113.7")
	}
	fmt.Println(allowed.Load(), denied.Load(), limiter.Stats().LostServers)
	// Output:
	// GET / 200 remaining 1
	// GET / 200 remaining 0
	// GET / 429 remaining 0
	// 2 1 0
}

// Who is not limited: a network, and whoever looks at the health of the application. Another network is denied.
func ExampleWithSkip() {
	router, rdb, stop := exampleServer()
	defer stop()
	router.Use(ginlimit.New(rdb, "all", ginlimit.PerMinute(1),
		ginlimit.WithSkip(func(c *gin.Context) bool { return c.Request.URL.Path == "/health" }),
		ginlimit.WithAllowList(netip.MustParsePrefix("10.0.0.0/8")),
		ginlimit.WithDenyList(netip.MustParsePrefix("192.0.2.0/24"))))
	router.GET("/", ok)
	router.GET("/health", ok)

	for _, address := range []string{"10.1.2.3", "10.1.2.3", "192.0.2.1", "203.0.113.7", "203.0.113.7"} {
		request(router, "GET", "/", address)
	}
	request(router, "GET", "/health", "203.0.113.7")
	// Output:
	// GET / 200
	// GET / 200
	// GET / 403
	// GET / 200 remaining 0
	// GET / 429 remaining 0
	// GET /health 200
}

// An answer of your own. The status 429 and the headers are set.
func ExampleWithDeniedHandler() {
	router, rdb, stop := exampleServer()
	defer stop()
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
	router, rdb, stop := exampleServer()
	defer stop()
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

// For an access log.
func ExampleFromContext() {
	router, rdb, stop := exampleServer()
	defer stop()
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

// The user of a tenant where there is one, and else the network.
func ExampleByAny() {
	router, rdb, stop := exampleServer()
	defer stop()
	router.GET("/:tenant", ginlimit.New(rdb, "all", ginlimit.PerMinute(2), ginlimit.WithKey(ginlimit.ByAny(
		ginlimit.ByAll(ginlimit.ByParam("tenant"), ginlimit.ByHeader("X-User")), ginlimit.ByClientIPPrefix(24, 48)))), ok)
	request(router, "GET", "/a", "203.0.113.7", "X-User", "1")
	request(router, "GET", "/a", "198.51.100.1", "X-User", "1")
	request(router, "GET", "/b", "203.0.113.7", "X-User", "1")
	request(router, "GET", "/b", "203.0.113.7")
	request(router, "GET", "/b", "203.0.113.8")
	// Output:
	// GET /a 200 remaining 1
	// GET /a 200 remaining 0
	// GET /b 200 remaining 1
	// GET /b 200 remaining 1
	// GET /b 200 remaining 0
}

// examplePolicy returns a policy in this process, which needs no Redis.
func examplePolicy(name string, limit ginlimit.Limit) *ginlimit.Policy {
	limiter, err := ginlimit.NewLocal()
	if err != nil {
		panic(err)
	}
	policy, err := limiter.Policy(name, limit)
	if err != nil {
		panic(err)
	}
	return policy
}

// A bucket of 10 that gains a token every 2 seconds, per user and outside HTTP (system D).
func ExamplePolicy_Allow() {
	policy := examplePolicy("users", ginlimit.Per(1, 2*time.Second).WithBurst(10))
	for range 11 {
		r, err := policy.Allow(context.Background(), "user123")
		if err != nil {
			panic(err) // no decision was made
		}
		if !r.Allowed {
			fmt.Println("denied: try again in", r.RetryAfter.Round(time.Second))
		}
	}
	// Output: denied: try again in 2s
}

func ExampleWithFailureMode() {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nobody listens
	defer rdb.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithReplicas(4), ginlimit.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		panic(err)
	}
	defer limiter.Close()

	// Without Redis 25 a minute, in each of 4 processes.
	router.GET("/", limiter.Handler("all", ginlimit.PerMinute(100)), ok)
	router.GET("/health", limiter.Handler("health", ginlimit.PerMinute(60),
		ginlimit.WithFailureMode(ginlimit.FailOpen)), ok)
	router.POST("/login", limiter.Handler("login", ginlimit.PerMinute(5),
		ginlimit.WithFailureMode(ginlimit.FailClosed)), ok)

	request(router, "GET", "/", "203.0.113.7")
	request(router, "GET", "/health", "203.0.113.7")
	request(router, "POST", "/login", "203.0.113.7")
	// Output:
	// GET / 200 remaining 24
	// GET /health 200 remaining 59
	// POST /login 503
}

func ExampleLimit_WithAlgorithm() {
	router, limiter, stop := exampleLimiter()
	defer stop()

	router.GET("/", limiter.Handler("all", ginlimit.PerMinute(100)), ok) // a token bucket
	router.POST("/export", limiter.Handler("export", ginlimit.PerDay(1).WithAlgorithm(ginlimit.FixedWindow)), ok)
	router.POST("/sms", limiter.Handler("sms", ginlimit.PerHour(2).WithAlgorithm(ginlimit.SlidingWindow)), ok)

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

// In the process alone, for what needs no Redis: calls of another service, say.
func ExampleNewLocal() {
	limiter, err := ginlimit.NewLocal()
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	calls, err := limiter.Policy("calls", ginlimit.PerHour(2))
	if err != nil {
		panic(err)
	}
	for range 3 {
		r, err := calls.Allow(context.Background(), "api.example.com")
		fmt.Println(r.Allowed, r.Remaining, r.Source, err)
	}
	// Output:
	// true 1 local <nil>
	// true 0 local <nil>
	// false 0 local <nil>
}

// As many rows as may be sent now.
func ExamplePolicy_AllowUpTo() {
	rows := examplePolicy("rows", ginlimit.PerDay(1000))
	for range 2 {
		r, err := rows.AllowUpTo(context.Background(), "export", 700)
		fmt.Println(r.Granted, err)
	}
	// Output:
	// 700 <nil>
	// 300 <nil>
}

// A worker that goes no faster than it may. If the next token comes after the deadline, Wait returns
// at once.
func ExamplePolicy_Wait() {
	mail := examplePolicy("mail", ginlimit.PerHour(1))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fmt.Println(mail.Wait(ctx, "alice"))
	err := mail.Wait(ctx, "alice")
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output:
	// <nil>
	// true
}

// Reports are slow: each client has two at a time, in all processes, and a hundred an hour.
func ExampleInFlight() {
	router, limiter, stop := exampleLimiter()
	defer stop()

	report := func(c *gin.Context) { // asks for another one while it is served
		request(router, "GET", "/report?depth="+c.Query("depth")+"1", "203.0.113.7")
		c.Status(http.StatusOK)
	}

	router.GET("/report", limiter.Handler("reports", ginlimit.PerHour(100), ginlimit.InFlight(2)), report)

	request(router, "GET", "/report?depth=", "203.0.113.7")
	// Output:
	// GET /report?depth=11 429 remaining 0
	// GET /report?depth=1 200 remaining 98
	// GET /report?depth= 200 remaining 99
}

// Five failed logins within 15 minutes, then a ban of an hour, of two, of four, up to a day.
func ExampleWithBan() {
	router, limiter, stop := exampleLimiter()
	defer stop()

	logIn := func(c *gin.Context) { // the status is the same if the password is right
		c.Set("login failed", true)
		c.Redirect(http.StatusSeeOther, "/")
	}

	succeeded := func(c *gin.Context) bool { return !c.GetBool("login failed") }
	tries := ginlimit.Per(5, 15*time.Minute).WithAlgorithm(ginlimit.FixedWindow)
	router.POST("/login", limiter.Handler("login", tries, ginlimit.WithRefund(succeeded),
		ginlimit.WithBan(time.Hour, 24*time.Hour)), logIn)

	for range 6 {
		request(router, "POST", "/login", "203.0.113.7")
	}
	// Output:
	// POST /login 303 remaining 4
	// POST /login 303 remaining 3
	// POST /login 303 remaining 2
	// POST /login 303 remaining 1
	// POST /login 303 remaining 0
	// POST /login 429 remaining 0
}

// A gateway to a language model: a request takes the tokens of its prompt at first, and what the
// answer took in the end.
func ExampleWithSettle() {
	router, limiter, stop := exampleLimiter()
	defer stop()

	// complete streams an answer, and counts its tokens.
	complete := func(c *gin.Context) {
		used := 100
		for _, token := range strings.Fields("It all depends on the question.") {
			fmt.Fprintln(c.Writer, token)
			c.Writer.Flush()
			used += 10
		}
		c.Set("used", used)
	}

	prompt := func(c *gin.Context) int { return 100 } // an estimate
	used := func(c *gin.Context) int { return c.GetInt("used") }
	router.POST("/complete", limiter.Handler("tokens", ginlimit.PerDay(250),
		ginlimit.WithCost(prompt), ginlimit.WithSettle(used)), complete)

	for range 3 {
		request(router, "POST", "/complete", "203.0.113.7")
	}
	// Output:
	// POST /complete 200 remaining 150
	// POST /complete 429 remaining 90
	// POST /complete 429 remaining 90
}

// A job whose cost is known when it is done.
func ExamplePolicy_Reserve() {
	policy := examplePolicy("units", ginlimit.PerDay(1000))
	ctx := context.Background()
	work := func() (cost int) { return 420 }

	job, err := policy.Reserve(ctx, "user123", 300)
	if err != nil {
		panic(err) // no decision was made
	}
	if job.OK() {
		if err := job.Settle(ctx, work()); err != nil {
			panic(err) // the estimate stands
		}
	}

	r, err := policy.Peek(ctx, "user123")
	fmt.Println(r.Remaining, err)
	// Output:
	// 580 <nil>
}

// Batch jobs stop at a fifth of the tokens, and people go on.
func ExampleWithFloor() {
	router, limiter, stop := exampleLimiter()
	defer stop()
	search, err := limiter.Policy("search", ginlimit.PerHour(5))
	if err != nil {
		panic(err)
	}
	batch, err := search.With(ginlimit.WithFloor(1))
	if err != nil {
		panic(err)
	}
	router.GET("/search", search.Handler(), ok)
	router.GET("/batch", batch.Handler(), ok)

	for range 5 {
		request(router, http.MethodGet, "/batch", "203.0.113.7")
	}
	request(router, http.MethodGet, "/search", "203.0.113.7")
	// Output:
	// GET /batch 200 remaining 3
	// GET /batch 200 remaining 2
	// GET /batch 200 remaining 1
	// GET /batch 200 remaining 0
	// GET /batch 429 remaining 0
	// GET /search 200 remaining 0
}

func ExampleWithHeaders() {
	router, limiter, stop := exampleLimiter()
	defer stop()
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
	router, limiter, stop := exampleLimiter()
	defer stop()
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

// A malformed key is the client's fault: 400.
func ExampleKeyFunc() {
	router, rdb, stop := exampleServer()
	defer stop()
	byToken := func(c *gin.Context) (string, error) {
		token, ok := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer ")
		if !ok || len(token) != 8 {
			return "", fmt.Errorf("%w: a malformed token", ginlimit.ErrBadRequest) // the client does not see this text
		}
		return token, nil // a real one verifies it first
	}
	router.GET("/", ginlimit.New(rdb, "token", ginlimit.PerMinute(5), ginlimit.WithKey(byToken)), ok)
	request(router, "GET", "/", "203.0.113.7", "Authorization", "Bearer 12345678")
	request(router, "GET", "/", "203.0.113.7", "Authorization", "Bearer 1234")
	// Output:
	// GET / 200 remaining 4
	// GET / 400
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
	router, limiter, stop := exampleLimiter()
	defer stop()
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

func ExampleLimiter_NewPlans() {
	router, limiter, stop := exampleLimiter()
	defer stop()
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
	var policy struct{ Search, Login ginlimit.Limit }
	if err := json.Unmarshal([]byte(`{"search": "10/s burst 20", "login": "5/15m"}`), &policy); err != nil {
		panic(err)
	}
	fmt.Println(policy.Search.Burst, policy.Login.Period)

	err := json.Unmarshal([]byte(`{"search": "ten a second"}`), &policy)
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

// Ten at once, two a second, and a quota for each month of the customer's time zone: all must
// allow, or none is charged.
func ExamplePerCalendar() {
	router, limiter, stop := exampleLimiter()
	defer stop()
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

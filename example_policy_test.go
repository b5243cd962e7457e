package ginlimit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

// examplePolicy returns a policy in this process.
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
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	policy, err := limiter.Policy("users", ginlimit.Per(1, 2*time.Second).WithBurst(10))
	if err != nil {
		panic(err)
	}

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

func ExamplePolicy_Block() {
	login := examplePolicy("login", ginlimit.PerMinute(100))

	ctx, client := context.Background(), ginlimit.AddrKey(netip.MustParseAddr("203.0.113.7"))
	if err := login.Block(ctx, client, time.Hour); err != nil {
		panic(err)
	}
	r, err := login.Peek(ctx, client)
	fmt.Println(r.Allowed, r.RetryAfter.Round(time.Minute), err)
	// Output: false 1h0m0s <nil>
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

	router.GET("/", limiter.Handler("all", ginlimit.PerMinute(100)), ok) // without Redis 25 a minute, in each of 4 processes
	router.GET("/health", limiter.Handler("health", ginlimit.PerMinute(60), ginlimit.WithFailureMode(ginlimit.FailOpen)), ok)
	router.POST("/login", limiter.Handler("login", ginlimit.PerMinute(5), ginlimit.WithFailureMode(ginlimit.FailClosed)), ok)

	request(router, "GET", "/", "203.0.113.7")
	request(router, "GET", "/health", "203.0.113.7")
	request(router, "POST", "/login", "203.0.113.7")
	// Output:
	// GET / 200 remaining 24
	// GET /health 200 remaining 59
	// POST /login 503
}

func ExampleLimit_WithAlgorithm() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

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

// What was taken for work that was not done.
func ExamplePolicy_Refund() {
	exports := examplePolicy("exports", ginlimit.PerDay(10))

	ctx := context.Background()
	r, err := exports.AllowN(ctx, "user123", 4)
	fmt.Println(r.Remaining, err)
	fmt.Println(exports.Refund(ctx, "user123", 4))
	r, err = exports.Peek(ctx, "user123")
	fmt.Println(r.Remaining, err)
	// Output:
	// 6 <nil>
	// <nil>
	// 10 <nil>
}

// A client and a limiter as one may want them in production.
func ExampleNewLimiter() {
	rdb := redis.NewClient(&redis.Options{
		Addr:            "127.0.0.1:6379",
		DisableIdentity: true,
		DialTimeout:     time.Second,
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

// To unblock a client that the policy login has denied.
func ExamplePolicy_Reset() {
	login := examplePolicy("login", ginlimit.Per(5, 15*time.Minute))
	ctx := context.Background()

	err := login.Reset(ctx, ginlimit.AddrKey(netip.MustParseAddr("203.0.113.7")))

	fmt.Println(err)
	// Output: <nil>
}

// Reports are slow: each client has two at a time, in all processes, and a hundred an hour.
func ExampleInFlight() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

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

// Outside HTTP: three workers at a time for each customer.
func ExamplePolicy_Reserve_slots() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()

	jobs, err := limiter.Policy("jobs", ginlimit.InFlight(3))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	slot, err := jobs.Reserve(ctx, "customer 7", 1)
	if err != nil {
		panic(err)
	}
	defer slot.Release()

	fmt.Println(slot.Result().Allowed, slot.Result().Remaining)
	// Output: true 2
}

// Five failed logins within 15 minutes, then a ban of an hour, of two, of four, up to a day.
func ExampleWithBan() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

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
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

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
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	policy, err := limiter.Policy("units", ginlimit.PerDay(1000))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	work := func() (cost int) { return 420 }

	job, err := policy.Reserve(ctx, "user123", 300)
	if err != nil {
		panic(err) // no decision was made
	}
	if job.Result().Allowed {
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
	limiter, err := ginlimit.NewLocal()
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
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

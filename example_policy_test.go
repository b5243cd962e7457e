package ginlimit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

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

// To unblock a client that a handler named login has refused.
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

// Reports are slow: each client has two at a time, in all processes, and a hundred an hour.
func ExampleWithConcurrency() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

	report := func(c *gin.Context) { // asks for another one while it is served
		request(router, "GET", "/report?depth="+c.Query("depth")+"1", "203.0.113.7")
		c.Status(http.StatusOK)
	}

	router.GET("/report",
		ginlimit.New(rdb, ginlimit.PerHour(100), ginlimit.WithName("reports"), ginlimit.WithConcurrency(2)), report)

	request(router, "GET", "/report?depth=", "203.0.113.7")
	// Output:
	// GET /report?depth=11 429 remaining 0
	// GET /report?depth=1 200 remaining 98
	// GET /report?depth= 200 remaining 99
}

// Outside HTTP: three workers at a time for each customer.
func ExamplePolicy_Acquire() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()

	jobs, err := limiter.Policy(ginlimit.Limit{Rate: -1}, ginlimit.WithName("jobs"), ginlimit.WithConcurrency(3))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	slot, err := jobs.Acquire(ctx, "customer 7")
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
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

	logIn := func(c *gin.Context) { // the status is the same if the password is right
		c.Set("login failed", true)
		c.Redirect(http.StatusSeeOther, "/")
	}

	succeeded := func(c *gin.Context) bool { return !c.GetBool("login failed") }
	router.POST("/login", ginlimit.New(rdb, ginlimit.Limit{Rate: 5, Period: 15 * time.Minute}, ginlimit.WithName("login"),
		ginlimit.WithAlgorithm(ginlimit.FixedWindow), ginlimit.WithRefund(succeeded),
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
	router.POST("/complete", ginlimit.New(rdb, ginlimit.PerDay(250), ginlimit.WithName("tokens"),
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
func ExampleLimiter_Reserve() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	ctx, limit := context.Background(), ginlimit.PerDay(1000)
	work := func() (cost int) { return 420 }

	job, err := limiter.Reserve(ctx, "user123", 300, limit)
	if err != nil {
		panic(err) // no decision was made
	}
	if job.Result().Allowed {
		if err := job.Settle(ctx, work()); err != nil {
			panic(err) // the estimate stands
		}
	}

	r, err := limiter.Peek(ctx, "user123", limit)
	fmt.Println(r.Remaining, err)
	// Output:
	// 580 <nil>
}

// Batch jobs stop at a fifth of the tokens, and people go on.
func ExampleWithFloor() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

	limit := ginlimit.PerHour(5)
	router.GET("/search", limiter.Handler(limit, ginlimit.WithName("search")), ok)
	router.GET("/batch", limiter.Handler(limit, ginlimit.WithName("search"), ginlimit.WithFloor(1)), ok)

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

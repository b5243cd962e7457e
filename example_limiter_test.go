package ginlimit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

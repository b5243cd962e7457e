package ginlimit_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
)

// Ten at once, two a second, and a quota for each month of the customer's time zone: all must allow, or none is charged.
func ExamplePerCalendar() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		panic(err)
	}
	month := ginlimit.CalendarMonth(berlin, 1)
	router.GET("/", ginlimit.New(rdb, ginlimit.PerSecond(2).WithBurst(10), ginlimit.WithName("api"),
		ginlimit.WithLimits(ginlimit.PerCalendar(3, month))), ok)

	for range 4 {
		request(router, "GET", "/", "203.0.113.7")
	}
	// Output:
	// GET / 200 remaining 2
	// GET / 200 remaining 1
	// GET / 200 remaining 0
	// GET / 429 remaining 0
}

// Calendar quotas as text, as a plan in a database or a file of configuration has them.
func ExampleParseLimit_calendar() {
	for _, text := range []string{"500/calendar-day", "2000/week from sunday", "10000/month from 15 in Europe/Berlin", "1/month from 32"} {
		limit, err := ginlimit.ParseLimit(text)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(limit)
	}
	// Output:
	// 500/calendar-day
	// 2000/week from sunday
	// 10000/month from 15 in Europe/Berlin
	// ginlimit: invalid limit: "1/month from 32": from: want a day of the month, 1 to 31
}

// A gateway to a language model: a request takes the tokens of its prompt at first, and what the answer took in the end.
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

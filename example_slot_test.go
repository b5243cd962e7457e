package ginlimit_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
)

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

	router.GET("/report", ginlimit.New(rdb, ginlimit.PerHour(100), ginlimit.WithName("reports"), ginlimit.WithConcurrency(2)), report)

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
		ginlimit.WithAlgorithm(ginlimit.FixedWindow), ginlimit.WithRefund(succeeded), ginlimit.WithBan(time.Hour, 24*time.Hour)), logIn)

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

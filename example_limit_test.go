package ginlimit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
)

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

	plans, err := ginlimit.NewPlans(rdb, time.Minute, func(_ context.Context, client string) ([]ginlimit.Limit, error) {
		rate, known := database[client] // a query, in an application
		if !known {
			return nil, ginlimit.ErrUnknownClient // 403; or return a limit for strangers
		}
		return []ginlimit.Limit{ginlimit.PerMinute(rate)}, nil
	})
	if err != nil {
		panic(err)
	}
	router.GET("/", limiter.Handler(ginlimit.PerMinute(0), ginlimit.WithName("plan"), // the plan takes its place
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
	// ginlimit: invalid limit: "ten a second": want a "/" between rate and period
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

// Ten in a minute and a hundred in a day: both must allow, or neither is charged.
func ExampleWithLimits() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", ginlimit.New(rdb, ginlimit.PerMinute(10), ginlimit.WithLimits(ginlimit.PerDay(2))), ok)

	for range 3 {
		request(router, "GET", "/", "203.0.113.7") // the headers report the limit closest to exhaustion
	}
	// Output:
	// GET / 200 remaining 1
	// GET / 200 remaining 0
	// GET / 429 remaining 0
}

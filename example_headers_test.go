package ginlimit_test

import (
	"context"
	"math"
	"net/http"
	"strconv"
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

// Header fields of your own: the count, the state and when it expires (system B).
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
	plan := func(_ context.Context, client string) ([]ginlimit.Limit, error) {
		return []ginlimit.Limit{ginlimit.PerMinute(quotas[client])}, nil
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

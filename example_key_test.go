package ginlimit_test

import (
	"fmt"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
)

func ExampleWithKey() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()

	byUser := func(c *gin.Context) (string, error) {
		return c.GetHeader("X-User-Id"), nil // set by the proxy that logs users in
	}
	router.Use(ginlimit.New(rdb, ginlimit.PerMinute(5), ginlimit.WithKey(byUser)))
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
	tokens, err := limiter.Policy(ginlimit.PerMinute(5), ginlimit.WithName("token"), ginlimit.WithKey(byToken))
	if err != nil {
		panic(err)
	}
	addresses, err := limiter.Policy(ginlimit.PerMinute(2), ginlimit.WithName("address"))
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
	router.Use(ginlimit.New(rdb, ginlimit.PerMinute(5)))
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

func ExampleWithIdentity() {
	rdb, stop := exampleRedis()
	defer stop()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)

	everybody := func(*gin.Context) (string, error) { return "all", nil }
	router.GET("/", limiter.Handler(ginlimit.PerMinute(10), ginlimit.WithName("address"), // all must allow, or none is charged
		ginlimit.WithIdentity("api key", ginlimit.ByHeader("X-Api-Key"), ginlimit.PerMinute(2)),
		ginlimit.WithIdentity("all", everybody, ginlimit.PerSecond(1000))), ok)

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

// The API key where there is one, and else the address.
func ExampleByFirst() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", ginlimit.New(rdb, ginlimit.PerMinute(2),
		ginlimit.WithKey(ginlimit.ByFirst(ginlimit.ByHeader("X-Api-Key"), ginlimit.ByClientIP))), ok)

	request(router, "GET", "/", "203.0.113.7", "X-Api-Key", "a")
	request(router, "GET", "/", "198.51.100.1", "X-Api-Key", "a")
	request(router, "GET", "/", "203.0.113.7")
	// Output:
	// GET / 200 remaining 1
	// GET / 200 remaining 0
	// GET / 200 remaining 1
}

// Each user of each tenant.
func ExampleByAll() {
	rdb, stop := exampleRedis()
	defer stop()
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/:tenant", ginlimit.New(rdb, ginlimit.PerMinute(2),
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
	router.GET("/", ginlimit.New(rdb, ginlimit.PerMinute(2), ginlimit.WithKey(ginlimit.ByClientIPPrefix(24, 48))), ok)

	for _, address := range []string{"203.0.113.7", "203.0.113.8", "203.0.113.9", "198.51.100.1"} {
		request(router, "GET", "/", address)
	}
	// Output:
	// GET / 200 remaining 1
	// GET / 200 remaining 0
	// GET / 429 remaining 0
	// GET / 200 remaining 1
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

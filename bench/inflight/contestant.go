package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

// limits are what a system has to keep.
type limits struct {
	slots []int // of each key, at each level
	rate  bool  // one rate that nobody uses up, of the key at the first level

	timeout time.Duration    // of ginlimit, instead of its own
	ttl     time.Duration    // of a slot of sub2api, instead of its own
	clock   func() time.Time // of LiteLLM's process, instead of the time
}

// system is one of those that are compared.
type system struct {
	name      string
	new       func(*redis.Client, limits) (middleware gin.HandlerFunc, end func(), err error)
	takesPart func(limits) bool
	slotKey   func(level int, id string) string // the key in Redis, if it has one for each key of a level
}

// contestant is a system with a client and a Gin engine of its own.
type contestant struct {
	system
	engine http.Handler // GET / responds at once, GET /hold when its request is told to end
	end    func()
}

// start starts a system.
func (s system) start(addr string, l limits) (*contestant, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr}) // as in the quickstart
	middleware, end, err := s.new(rdb, l)
	if err != nil {
		_ = rdb.Close()
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	engine.GET("/", middleware, func(c *gin.Context) {
		callerOf(c).admitted = time.Now()
		c.Writer.WriteHeader(http.StatusOK)
	})
	engine.GET("/hold", middleware, func(c *gin.Context) {
		own := callerOf(c)
		close(own.holds)
		<-own.released
	})
	return &contestant{s, engine, func() { end(); _ = rdb.Close() }}, nil
}

// levelHeader has the key of a request at a level.
var levelHeader = [...]string{"X-Level-0", "X-Level-1", "X-Level-2"}

// idOf returns the key of a request at a level.
func idOf(c *gin.Context, level int) string { return c.Request.Header[levelHeader[level]][0] }

// caller sends requests to a contestant, without a network.
type caller struct {
	request  *http.Request
	header   http.Header
	status   int
	admitted time.Time // when the last request was

	holds, released chan struct{} // of a request that is held
}

type callerKey struct{}

func callerOf(c *gin.Context) *caller { return c.Request.Context().Value(callerKey{}).(*caller) }

// newCaller returns a caller whose requests have these keys at the levels.
func newCaller(ctx context.Context, path string, ids ...string) *caller {
	c := &caller{header: http.Header{}, holds: make(chan struct{}), released: make(chan struct{})}
	request, err := http.NewRequestWithContext(context.WithValue(ctx, callerKey{}, c), http.MethodGet, path, nil)
	if err != nil {
		panic(err) // method and path are constant
	}
	for level, id := range ids {
		request.Header[levelHeader[level]] = []string{id}
	}
	c.request = request
	return c
}

// Header, Write and WriteHeader implement [http.ResponseWriter].
func (c *caller) Header() http.Header         { return c.header }
func (c *caller) Write(p []byte) (int, error) { return len(p), nil }
func (c *caller) WriteHeader(status int)      { c.status = status }

// call sends a request, and reports whether it was admitted.
func (c *caller) call(to *contestant) bool {
	clear(c.header)
	c.status = http.StatusOK
	to.engine.ServeHTTP(c, c.request)
	return c.status == http.StatusOK
}

// degraded reports whether ginlimit decided on the last request without Redis.
func (c *caller) degraded() bool { return len(c.header["X-Ratelimit-Status"]) > 0 }

// hold sends a request that stays in flight until it is released. It reports whether the request was admitted.
func (c *contestant) hold(ctx context.Context, ids ...string) (release func(), ok bool) {
	own, ended := newCaller(ctx, "/hold", ids...), make(chan struct{})
	go func() {
		defer close(ended)
		own.call(c)
	}()
	select {
	case <-own.holds:
		return func() { close(own.released); <-ended }, true
	case <-ended:
		return nil, false
	}
}

// newGinlimit returns ginlimit with the options of the quickstart.
func newGinlimit() system {
	return system{"ginlimit", func(rdb *redis.Client, l limits) (gin.HandlerFunc, func(), error) {
		var patience []ginlimit.LimiterOption
		if l.timeout > 0 {
			patience = append(patience, ginlimit.WithTimeout(l.timeout))
		}
		limiter, err := ginlimit.NewLimiter(rdb, patience...)
		if err != nil {
			return nil, nil, err
		}
		key := func(level int) ginlimit.KeyFunc {
			return func(c *gin.Context) (string, error) { return idOf(c, level), nil }
		}
		var policies []*ginlimit.Policy
		for level, slots := range l.slots {
			options := []ginlimit.PolicyOption{ginlimit.WithKey(key(level)), ginlimit.InFlight(slots)}
			if l.rate && level == 0 {
				options = append(options, ginlimit.PerMinute(100).WithBurst(1_000_000_000))
			}
			policy, err := limiter.Policy(fmt.Sprint("level ", level), options...)
			if err != nil {
				return nil, nil, err
			}
			policies = append(policies, policy)
		}
		return ginlimit.AllOf(policies...), func() { _ = limiter.Close() }, nil
	}, func(limits) bool { return true }, nil}
}

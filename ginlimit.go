// Package ginlimit limits the rate of requests to a Gin application, counted in Redis.
//
//	router.Use(ginlimit.New(rdb, ginlimit.PerMinute(100)))
//
// gives every client address a token bucket in Redis, shared by all processes of the application. One atomic script
// decides, in one round trip. A refused request is answered 429 and consumes nothing. Response headers report what is
// left.
//
// For limits per route, make one [Limiter] and a [Limiter.Handler] for each:
//
//	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithReplicas(4))
//	router.Use(limiter.Handler(ginlimit.PerMinute(100)))
//	router.POST("/login", limiter.Handler(ginlimit.PerHour(5), ginlimit.WithName("login")), login)
//
// Each is a [Policy]: [WithKey] chooses the key, and the limits are its own, one or several ([WithLimits]), or the
// client's ([WithLimitFunc], [NewPlans]). [WithAlgorithm] chooses token bucket or window, [WithHeaders] the header
// fields. Policies of one [WithName] share buckets. [FirstOf] takes the first policy that finds a key.
//
// Outside HTTP, [Limiter.Policy] returns a Policy, whose methods count a client: [Policy.Allow] and [Policy.AllowN] take
// tokens or none, [Policy.AllowUpTo] as many as fit, [Policy.Wait] waits for the next one; [Policy.Peek] looks,
// [Policy.Refund] gives back, [Policy.Block] bans for a time, [Policy.Reset] starts over. The methods of a Limiter do
// the same for any key and limits. [NewLocal] is the same without Redis.
//
// A decision waits for Redis no longer than [WithTimeout], 50 ms, and not at all while the circuit breaker is open. Then
// [WithFailure] applies: by default each process decides by its share of the limit ([WithReplicas]). Behind a proxy,
// set Gin's trusted proxies: see [ByClientIP]. For metrics there are [WithObserver] and [Limiter.Stats].
package ginlimit

import (
	"errors"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
)

// New returns middleware that limits every client to limit: [NewLimiter] and [Limiter.Handler] in one.
//
// It panics on a bad configuration, with all errors at once. Redis need not be there yet.
func New(rdb redis.UniversalClient, limit Limit, opts ...Option) gin.HandlerFunc {
	l, errs := newRedisLimiter(rdb, opts)
	p, err := l.Policy(limit)
	if err := errors.Join(append(errs, err)...); err != nil {
		panic(err)
	}
	return p.Handler()
}

// Handler returns middleware that limits every client to limit: [Limiter.Policy] and [Policy.Handler] in one.
//
// It panics on a bad configuration, with all errors at once.
func (l *Limiter) Handler(limit Limit, opts ...Option) gin.HandlerFunc {
	p, err := l.Policy(limit, opts...)
	if err != nil {
		panic(err)
	}
	return p.Handler()
}

// FromContext returns what ginlimit decided on the request, for handlers and access logs.
//
// If several policies decided, it is the refusal, or the Result closest to exhaustion. It is false if none has decided.
func FromContext(c *gin.Context) (Result, bool) {
	if s := stateOf(c); s != nil {
		return s.closest(), true
	}
	return Result{}, false
}

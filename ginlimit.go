// Package ginlimit limits the rate of requests to a Gin application, counted in Redis.
//
//	router.Use(ginlimit.New(rdb, ginlimit.PerMinute(100)))
//
// gives every client address a token bucket in Redis: the same answer whichever process of the
// application asks, in one round trip, by one atomic script. A refused request is answered 429 and
// consumes nothing. Every answer says what is left.
//
// For limits per route, make one [Limiter] and take a [Limiter.Handler] for each:
//
//	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithReplicas(4))
//	router.Use(limiter.Handler(ginlimit.PerMinute(100)))
//	router.POST("/login", limiter.Handler(ginlimit.PerHour(5), ginlimit.WithName("login")), login)
//
// A handler counts for whom [WithKey] says, under a limit of its own, several ([WithLimits]), or the
// client's ([WithLimitFunc], [NewPlans]), in a token bucket or a window ([WithAlgorithm]), and tells of it
// in the header fields of [WithHeaders]. Handlers of one [WithName] share buckets.
//
// The other methods of a Limiter limit anything else, under a key of one's own: [Limiter.Allow] and
// [Limiter.AllowN] take tokens or none, [Limiter.AllowUpTo] as many as fit, [Limiter.Wait] the next
// one; [Limiter.Peek] looks, [Limiter.Refund] gives back, [Limiter.Block] bans for a time, [Limiter.Reset]
// starts over. [NewLocal] is the same without Redis.
//
// A decision waits for Redis no longer than [WithTimeout], 50 ms, and not at all where Redis is lost; then
// [WithFailure] says what becomes of it: by default each process decides by its share of the limit
// ([WithReplicas]). Behind a proxy, tell Gin whom to trust: see [ByClientIP]. For metrics there are
// [WithObserver] and [Limiter.Stats].
package ginlimit

import (
	"errors"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
)

// New returns middleware that limits every client to limit: [NewLimiter] and [Limiter.Handler] in one.
//
// It panics on a bad configuration, with all faults at once. It does not need Redis to be there yet.
func New(rdb redis.UniversalClient, limit Limit, opts ...Option) gin.HandlerFunc {
	l, faults := newRedisLimiter(rdb, opts)
	handler, err := l.handler(limit, nil)
	if err := errors.Join(append(faults, err)...); err != nil {
		panic(err)
	}
	return handler
}

// Handler returns middleware that limits every client to limit.
//
// With [WithLimits] there are more. It sets X-RateLimit-Limit, X-RateLimit-Remaining and
// X-RateLimit-Reset, or what [WithHeaders] says, and aborts a refused request with 429, and with
// Retry-After unless no waiting helps. Where several handlers decide on one request, these headers tell of the one
// closest to exhaustion. It panics on a bad configuration, with all faults at once.
func (l *Limiter) Handler(limit Limit, opts ...Option) gin.HandlerFunc {
	handler, err := l.handler(limit, opts)
	if err != nil {
		panic(err)
	}
	return handler
}

// FromContext returns what ginlimit decided on the request, for handlers and access logs.
//
// Where several handlers decided, it is the refusal, or the Result closest to exhaustion. It is false
// where none has decided.
func FromContext(c *gin.Context) (Result, bool) {
	if d := decidedOn(c); d != nil {
		return d.closest.decision, true
	}
	return Result{}, false
}

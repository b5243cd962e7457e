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
// fields. Policies of one [WithName] and one algorithm share buckets. [FirstOf] takes the first policy that finds a key.
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
	"time"

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

// Source is where a decision was made.
type Source uint8

const (
	FromRedis  Source = iota // in Redis
	FromMemory               // in this process, from a refusal of Redis that it remembers
	FromLease                // in this process, from tokens that it has taken ahead (see [WithLease])
	FromLocal                // in this process, without Redis
	FromPolicy               // nowhere: the limit is unlimited or prohibits, or the request was not counted
)

// String returns the source in one word, or "unknown".
func (s Source) String() string {
	names := [...]string{FromRedis: "redis", FromMemory: "memory", FromLease: "lease", FromLocal: "local", FromPolicy: "policy"}
	if int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}

// Result is one decision.
//
// With several limits, Limit, Remaining, RetryAfter and ResetAfter are those of the one closest to
// exhaustion: of a refusal the one with the longest wait, else the one with the fewest tokens left.
//
// A Result always marshals to JSON, with the Limit as text (see [Limit.MarshalText]).
type Result struct {
	Allowed    bool
	Granted    int           // tokens taken by this call
	Limit      Limit         // as given; InFlight for a slot of [WithConcurrency]; zero of an address that is denied
	Name       string        // of the policy or identity it belongs to; "" for a method of a Limiter
	Remaining  int           // whole tokens left; math.MaxInt if unlimited
	RetryAfter time.Duration // 0 if allowed; above 0 it is after this wait; below 0 it never is
	ResetAfter time.Duration // until the bucket is full again
	Source     Source
}

// closerThan reports whether r is closer to exhaustion than s: of two refusals the one that lasts
// longer, else the one with fewer tokens left, else the one that is full later.
func (r Result) closerThan(s Result) bool {
	// As unsigned numbers, never is the longest wait.
	if wait, other := uint64(r.RetryAfter), uint64(s.RetryAfter); wait != other {
		return wait > other
	}
	if r.Remaining != s.Remaining {
		return r.Remaining < s.Remaining
	}
	return r.ResetAfter > s.ResetAfter
}

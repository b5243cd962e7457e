// Package ginlimit limits the rate of requests to a Gin application, counted in Redis.
//
//	router.Use(ginlimit.New(rdb, ginlimit.PerMinute(100)))
//
// gives every client address a token bucket in Redis, shared by all processes of the application.
// One atomic script decides, in one round trip. A denied request is answered 429 and consumes
// nothing. Response headers report what is left.
//
// For limits per route, make one [Limiter] and a [Limiter.Handler] for each:
//
//	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithReplicas(4))
//	router.Use(limiter.Handler(ginlimit.PerMinute(100)))
//	router.POST("/login", limiter.Handler(ginlimit.PerHour(5), ginlimit.WithName("login")), login)
//
// Each is a [Policy]: [WithKey] chooses the key, and the limits are its own, one or several
// ([WithLimits]), or the client's ([WithLimitFunc], [NewPlans]). [WithAlgorithm] chooses token
// bucket or window, [WithHeaders] the header fields. Policies of one [WithName] and one algorithm
// share buckets. [FirstOf] takes the first policy that finds a key.
//
// Outside HTTP, [Limiter.Policy] returns a Policy, whose methods count a client: [Policy.Allow] and
// [Policy.AllowN] take tokens or none, [Policy.AllowUpTo] as many as fit, [Policy.Wait] waits for
// the next one; [Policy.Peek] looks, [Policy.Refund] gives back, [Policy.Block] bans for a time,
// [Policy.Reset] starts over. The methods of a Limiter do the same for any key and limits.
// [NewLocal] is the same without Redis.
//
// A decision waits for Redis no longer than [WithTimeout], 50 ms, and not at all while the circuit
// breaker is open. Then [WithFailure] applies: by default each process decides by its share of the
// limit ([WithReplicas]). Behind a proxy, set Gin's trusted proxies: see [ByClientIP]. For metrics
// there are [WithObserver] and [Limiter.Stats].
package ginlimit

import (
	"crypto/rand"
	"errors"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// New returns middleware that limits every client to limit: [NewLimiter] and [Limiter.Handler] in
// one.
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

// Handler returns middleware that limits every client to limit: [Limiter.Policy] and
// [Policy.Handler] in one.
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
// If several policies decided, it is the denial, or the Result closest to exhaustion. It is false
// if none has decided.
func FromContext(c *gin.Context) (Result, bool) {
	if s := stateOf(c); s != nil {
		return s.closest(), true
	}
	return Result{}, false
}

// NewLimiter returns a limiter whose buckets are in Redis.
//
// It works with a client, a cluster client, a ring and a failover client, and connects with the
// first decision only: Redis need not be there yet. Options of a policy are the defaults of its
// policies. The error joins all faults.
//
// The commands of a [redis.Client] end within [WithTimeout], whatever the client's timeouts are:
// they use its connections, but not its ReadTimeout and WriteTimeout. A hook of the client sees
// them, and must not keep a command after the call, as its memory is used again. The limiters of a
// client add one hook to it, which stays. Make one limiter and share it: each has a memory and
// batches of its own, so the log warns of a hundred on one client. A client of another type, such
// as one that wraps a cluster client, is taken for one server.
func NewLimiter(rdb redis.UniversalClient, opts ...Option) (*Limiter, error) {
	l, errs := newRedisLimiter(rdb, opts)
	return l.orErrors(errs)
}

// newRedisLimiter returns the limiter even if there are faults, so that faults of its first policy
// are found too.
func newRedisLimiter(rdb redis.UniversalClient, opts []Option) (*Limiter, []error) {
	defaults, errs := newConfig(opts)
	if redisstore.IsNil(rdb) {
		errs = append(errs, errors.New("ginlimit: the Redis client is nil"))
	}
	e := engine.NewRedis(engineConfig(&defaults), rdb, defaults.denyEntries, defaults.trustClock, redisstore.Config{
		Prefix: defaults.prefix, Log: defaults.logger, Process: "P" + rand.Text()[:maxProcess], Sources: sources(),
	})
	return &Limiter{defaults: defaults, engine: e}, errs
}

// engineConfig returns what a limiter's engine is made of.
func engineConfig(c *config) engine.Config {
	return engine.Config{Keys: clientkey.NewText(c.secret), Timeout: c.timeout, Replicas: int64(c.replicas)}
}

// NewLocal returns a limiter whose buckets are in this process alone.
//
// It remembers the [LocalBuckets] buckets and windows that take longest to be full; a forgotten one
// is full. The log of a [SlidingWindow] is exact up to 8,192 entries; of more it merges two into
// the later one, so that it may deny for longer. All logs together take up to 8 MiB; beyond that,
// the logs that end soonest are forgotten. The options and the error are as for [NewLimiter],
// but for options that have no effect without Redis: [WithPrefix], [WithTimeout], [WithDenyMemory],
// [WithReplicas], [WithKeySecret], [WithFailure] and [WithLease] are errors. A policy of the
// limiter may have a WithFailure and a WithLease, so that the same routes run with and without
// Redis.
func NewLocal(opts ...Option) (*Limiter, error) {
	defaults, errs := newConfig(opts)
	const useless = "%s has no effect without Redis: NewLocal does not take it"
	errs = append(errs, defaults.misused(redisOptions, true, useless)...)
	l := &Limiter{defaults: defaults, engine: engine.NewLocal(engineConfig(&defaults))}
	return l.orErrors(errs)
}

// orErrors returns the limiter, or all faults, including faults of its policies' defaults.
func (l *Limiter) orErrors(errs []error) (*Limiter, error) {
	_, err := l.policy(Limit{Rate: -1}, nil)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	return l, nil
}

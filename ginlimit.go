// Package ginlimit limits the rate of requests to a Gin application, counted in Redis.
//
//	router.Use(ginlimit.New(rdb, "all", ginlimit.PerMinute(100)))
//
// gives each client address a token bucket that all processes share. A denied request is answered
// 429 and consumes nothing. For limits per route, make one [Limiter]:
//
//	limiter, err := ginlimit.NewLimiter(rdb)
//	attempts := ginlimit.PerHour(5).WithAlgorithm(ginlimit.SlidingWindow) // 5 in any hour
//	router.POST("/login", limiter.Handler("login", attempts), login)
//	router.GET("/report", limiter.Handler("report", ginlimit.PerHour(100), ginlimit.InFlight(2)), report)
//
// Each handler is of a [Policy]: a name, limits and options, such as [WithKey]. [AllOf] limits a
// request by several; handlers one after another each charge, also if a later one denies.
// [WithLimitFunc] and [Plans] give each client limits of its own. [NewLocal] is the same without
// Redis.
//
// A decision waits for Redis no longer than [WithTimeout]; then [WithFailureMode] applies. Behind a
// proxy, set Gin's trusted proxies: see [ByClientIP].
package ginlimit

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/gintrust"
	"github.com/ginlimit/ginlimit/internal/overrides"
	"github.com/ginlimit/ginlimit/internal/published"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/throttle"
	"github.com/ginlimit/ginlimit/internal/upkeep"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// NewLimiter returns a limiter whose buckets are in Redis, which need not be reachable yet. It
// takes a client, a cluster client, a ring or a failover client; any other type counts as one
// server. The client stays as it is; its hooks must not keep a command after they return. The error
// joins all faults, each an [OptionError].
func NewLimiter(rdb redis.UniversalClient, opts ...LimiterOption) (*Limiter, error) {
	l, errs := newRedisLimiter(rdb, opts)
	if errs != nil {
		return nil, errors.Join(errs...)
	}
	return l, nil
}

// newRedisLimiter returns the limiter even if there are faults, so that faults of its first policy
// are found too.
func newRedisLimiter(rdb redis.UniversalClient, opts []LimiterOption) (*Limiter, []error) {
	c := newConfig(opts)
	c.requireOf("rdb", !redisstore.IsNil(rdb), "the Redis client is nil")
	process := "P" + rand.Text()[:maxProcess]
	e := engine.NewRedis(c.engine(), rdb, c.denials, redisstore.Config{
		Prefix: c.prefix, Log: c.logger, Process: process, Scripts: scripts,
	})
	l := &Limiter{limiterConfig: c.limiterConfig, defaults: c.defaults, engine: e, rdb: rdb}
	l.joinBackground(rdb)
	// Goroutines hold both, so they would never be collected.
	runtime.AddCleanup(l, (*engine.Engine).Drop, e)
	runtime.AddCleanup(l, func(leave func()) { leave() }, l.leave)
	return l, c.errs
}

// defaultTimeout is [DefaultTimeout]. Examples raise it: on a busy machine Redis would be late.
var defaultTimeout = DefaultTimeout

// newConfig returns what a limiter's options fill, over what is built in.
func newConfig(opts []LimiterOption) *config {
	c := &config{limiterConfig: limiterConfig{
		prefix: DefaultPrefix, logger: slog.Default(), timeout: defaultTimeout, denials: defaultDenials,
	}}
	for i, opt := range opts {
		if c.requireOption(i, opt != nil) {
			opt.limiterOption(c)
		}
	}
	if slices.Contains(c.used, "WithSettle") && slices.Contains(c.used, "WithRefund") {
		c.addFault("WithSettle", excluded("WithSettle", "WithRefund").err())
	}
	return c
}

// engine returns what a limiter's engine is made of.
func (c *limiterConfig) engine() engine.Config {
	return engine.Config{Keys: clientkey.NewText(c.secret), Timeout: c.timeout, Replicas: int64(c.replicas)}
}

// NewLocal returns a limiter whose buckets are in this process alone. Beyond 262,144 it forgets
// those that are full soonest. A [SlidingWindow] is exact up to 8,192 entries. An option without
// effect here is an error.
func NewLocal(opts ...LimiterOption) (*Limiter, error) {
	c := newConfig(opts)
	for _, option := range c.used {
		c.requireOf(option, !slices.Contains(redisOptions, option),
			"%s has no effect without Redis: NewLocal does not take it", option)
	}
	if c.errs != nil {
		return nil, errors.Join(c.errs...)
	}
	e := engine.NewLocal(c.engine())
	l := &Limiter{limiterConfig: c.limiterConfig, defaults: c.defaults, engine: e}
	l.leave = newBackground(nil, new(overrides.Local), new(published.Local)).join(l)
	return l, nil
}

// Limiter makes policies that count in one place. It may be used concurrently.
type Limiter struct {
	limiterConfig
	defaults  []setting // of its policies
	engine    *engine.Engine
	rdb       redis.UniversalClient // nil without Redis
	questions sync.Pool             // of *question
	decisions sync.Pool             // of *decision, each of one policy
	addresses gintrust.Warnings     // of addresses that clients can spoof, or that Gin cannot read
	overrides *overrides.View[[]Limit]
	published *published.Limiter
	upkeep    *upkeep.Upkeep // of both; nil without Redis
	leave     func()         // ends what the limiter has in the background
	policies  nameSet[*Policy]
	plans     nameSet[bool]
	noClient  throttle.Log // of warnings of keys that no request counts under
	readAhead atomic.Int64 // bytes of the bodies of waiting requests
}

var errNotMade = invalid("the limiter was not made by NewLimiter or NewLocal")

// errNoPolicy is the error of a zero Policy.
var errNoPolicy = invalid("the policy was not made by Limiter.Policy")

// Close ends the limiter: further decisions return [ErrClosed], and every Wait returns. Call it
// when the requests have ended. It waits for decisions in flight, up to 2.2 s if Redis hangs. The
// Redis client stays open.
func (l *Limiter) Close() error {
	if l != nil && l.engine != nil {
		l.leave()
		l.engine.Close()
	}
	return nil
}

// Ping reports whether Redis answers within [WithTimeout], for readiness checks: every master of a
// cluster, every shard of a ring. The error names the cause and wraps [ErrUnavailable], or is the
// context's.
func (l *Limiter) Ping(ctx context.Context) error {
	if l == nil || l.engine == nil {
		return errNotMade
	}
	return l.engine.Ping(ctx)
}

// background is what limiters of one client and prefix do in the background, once in a process: read overrides and
// publish policies.
type background struct {
	upkeep    *upkeep.Upkeep
	overrides *overrides.Overrides[[]Limit]
	published *published.Policies

	mu   sync.Mutex // guards the field below
	logs []*upkeepLog
}

// newBackground returns the background of a client and prefix. Without upkeep it does nothing by itself.
func newBackground(u *upkeep.Upkeep, o overrides.Store, p published.Store) *background {
	b := &background{upkeep: u, published: published.New(p, "P"+rand.Text()[:maxProcess], u)}
	b.overrides = overrides.New(overrides.Config[[]Limit]{
		Store: o, Upkeep: u, Limits: readLimits, Publication: b.published.Last, Lost: b.lost,
	})
	return b
}

// maxOverrideLimits is how many limits an override has at most.
const maxOverrideLimits = 16

// readLimits reads the limits of an override. Others than this package can have written them.
func readLimits(text string) ([]Limit, error) {
	if n := strings.Count(text, limitSeparator) + 1; n > maxOverrideLimits {
		return nil, invalid("%d limits; want at most %d", n, maxOverrideLimits)
	}
	limits, err := splitLimits(text)
	if err == nil {
		_, err = newLimitSet(limits)
	}
	return limits, err
}

// inProcess has the background of each client and prefix. Only the process knows which limiters it has, as [New] makes
// one that nobody else gets, so it is no field of anything.
var inProcess upkeep.Registry[*background]

// joinBackground makes the limiter go by the overrides of its client and prefix, and publish its policies there.
func (l *Limiter) joinBackground(rdb redis.UniversalClient) {
	b, leave := inProcess.Join(rdb, l.prefix, func() *background {
		u := upkeep.New(upkeep.Config{Denied: redisstore.IsDenied})
		b := newBackground(u, redisstore.NewOverrides(rdb, l.prefix), redisstore.NewPolicies(rdb, l.prefix))
		u.Failed = b.failed
		return b
	}, func(b *background) { b.upkeep.End() })
	own := b.join(l)
	l.leave = sync.OnceFunc(func() { own(); leave() })
}

// join gives a limiter its part of the background, until it calls the function that is returned.
func (b *background) join(l *Limiter) (leave func()) {
	view := &overrides.View[[]Limit]{
		Ignores: l.ignoresOverrides, Changed: l.engine.LimitsChanged, Waits: l.engine.Waits,
	}
	if l.secret != nil {
		keys := l.limiterConfig.engine().Keys
		view.Hide = func(policy, client string) string { return string(keys.Append(nil, Key(policy, ""), client)) }
	}
	policies, log := b.published.Join(), &upkeepLog{Logger: l.logger}
	l.upkeep, l.overrides, l.published = b.upkeep, b.overrides.Join(view), policies
	b.mu.Lock()
	defer b.mu.Unlock()
	b.logs = append(b.logs, log)
	return func() { // it holds no limiter, so that the limiter is collected
		view.Leave()
		policies.Leave()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.logs = slices.DeleteFunc(b.logs, func(other *upkeepLog) bool { return other == log })
	}
}

// upkeepLog is where a limiter's log says what fails in the background.
type upkeepLog struct {
	*slog.Logger
	failures throttle.Log
	denied   sync.Once
}

// failed logs why overrides cannot be read or policies not be published, once in each log.
func (b *background) failed(err error) { b.eachLog(func(log *upkeepLog) { log.failed(err) }) }

func (b *background) eachLog(f func(log *upkeepLog)) {
	b.mu.Lock()
	logs := slices.Clone(b.logs)
	b.mu.Unlock()
	for i, log := range logs {
		if !slices.ContainsFunc(logs[:i], log.isOf) {
			f(log)
		}
	}
}

// isOf reports whether another logger writes to the same handler.
func (l *upkeepLog) isOf(other *upkeepLog) bool {
	a, b := l.Handler(), other.Handler()
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// lost publishes the policies again, as Redis has lost them, and logs how many overrides are gone with them.
func (b *background) lost(ctx context.Context, overrides int) error {
	b.eachLog(func(log *upkeepLog) {
		if overrides == 0 {
			log.Warn("ginlimit: Redis has lost its data; blocks and bans may be gone")
			return
		}
		log.Warn("ginlimit: Redis has lost its data; overrides are gone, and blocks and bans may be",
			"overrides", overrides)
	})
	return b.published.Again(ctx)
}

func (l *upkeepLog) failed(err error) {
	reason := "" // without Redis other lines say so
	switch {
	case redisstore.IsDenied(err):
		l.denied.Do(func() {
			l.Warn("ginlimit: the user of Redis may not read overrides or publish policies; trying every ten minutes",
				"reason", redisstore.Word(err))
		})
	case redisstore.IsErrorReply(err):
		reason = redisstore.Word(err)
	case errors.Is(err, wire.ErrUnreadable), errors.Is(err, ErrInvalidArgument):
		reason = "unreadable"
	}
	if reason != "" && l.failures.Allow() {
		l.Warn("ginlimit: overrides cannot be read, or policies not be published", "reason", reason)
	}
}

// maxNames is how many policies, and how many [Plans], a limiter makes.
const maxNames = 1 << 16

// nameSet is a limiter's policies, or its plans, by name.
type nameSet[T any] struct {
	mu    sync.Mutex
	taken map[string]T
}

// get returns what has a name, or the zero T.
func (n *nameSet[T]) get(name string) T {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.taken[name]
}

// take gives what is made a name, unless there are faults, to which it adds its own: the name is taken, or there
// are too many. It returns all of them as one error.
func (n *nameSet[T]) take(name string, made T, taken, full string, faults []error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, is := n.taken[name]
	switch {
	case is:
		faults = append(faults, &OptionError{-1, "name", invalid(taken, name)})
	case len(n.taken) == maxNames:
		faults = append(faults, &OptionError{-1, "name", invalid(full, maxNames)})
	}
	err := errors.Join(faults...)
	if err == nil {
		if n.taken == nil {
			n.taken = map[string]T{}
		}
		n.taken[name] = made
	}
	return err
}

// Transition is a change of a circuit breaker's state.
type Transition struct {
	To     string // "open", "half_open" or "closed"
	Reason Reason // what has opened it; "" if it has not opened
}

// Stats are the figures of a limiter. Batches, Decisions, Leased and Transitions count from when it
// was made. For [NewLocal] only Slots, Bans, Overrides, LocalBuckets and Waiting are not zero.
type Stats struct {
	Servers      int                   // of Redis that decisions are sent to; one while they are not known yet
	LostServers  int                   // of these, with an open circuit breaker
	Batches      uint64                // sent to Redis
	Decisions    uint64                // in these, with the calls by which processes count each other
	InFlight     int                   // batches without an answer, overdue ones too
	Queued       int                   // decisions that wait for a batch
	Leases       int                   // keys of which this process has tokens that it took ahead
	Leased       uint64                // decisions by such tokens
	Replicas     int                   // processes or limiters that share the limits without Redis: see [WithReplicas]
	Slots        int                   // held by requests in flight in this process: see [InFlight]
	Bans         int                   // in force and known to this process, at most 65,536: see [WithBan]
	Remembered   int                   // denials in the deny cache that are still valid
	Overrides    int                   // in force and known to this process: see [Limiter.Override]
	LocalBuckets int                   // in this process, full ones too until they are forgotten
	Waiting      map[string]int        // callers that wait for tokens or a slot, by policy; nil if there is no policy
	Transitions  map[Transition]uint64 // of the circuit breakers of all servers; nil if there were none
}

// Stats returns the current figures. It scans the deny cache, leases and bans.
func (l *Limiter) Stats() Stats {
	if l == nil || l.engine == nil {
		return Stats{}
	}
	of := l.engine.Stats()
	s := Stats{
		Servers: of.Redis.Servers, LostServers: of.Redis.Open, Batches: of.Redis.Batches, Decisions: of.Redis.Calls,
		InFlight: of.Redis.InFlight, Queued: of.Redis.Queued,
		Leases: of.Leases, Leased: of.Leased, Slots: of.Slots, Bans: of.Bans, Replicas: of.Replicas,
		Remembered: of.Denials, LocalBuckets: of.Local, Overrides: l.overrides.InForce(),
	}
	for t, n := range of.Redis.Transitions {
		if s.Transitions == nil {
			s.Transitions = map[Transition]uint64{}
		}
		s.Transitions[Transition{t.To, Reason(t.Reason)}] = n
	}
	s.Waiting = l.waiting()
	return s
}

// waiting returns how many callers wait, by policy.
func (l *Limiter) waiting() (all map[string]int) {
	l.policies.mu.Lock()
	defer l.policies.mu.Unlock()
	for name, p := range l.policies.taken {
		if all == nil {
			all = make(map[string]int, len(l.policies.taken))
		}
		all[name] = int(p.waiting.Load())
	}
	return all
}

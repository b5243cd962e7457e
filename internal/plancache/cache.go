// Package plancache caches the answers of a slow source, in the process and in Redis.
//
// An answer is the plan of a client, a value of any type that has a text. The source, for example a database, is
// queried once per client and life. Redis keeps the answer for all processes; a process keeps it for a second.
// While the source or Redis fails, old answers are used. It owns how long an answer serves, and must know no limit.
//
// It does not use the dispatcher, which coalesces calls that never wait longer than a timeout. A process reads a
// plan at most once a second, so there is nothing to coalesce, and a lookup waits seconds for its turn. While Redis
// fails, one lookup a second is the probe.
package plancache

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/goroutine"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

const (
	// recheck is how long a process uses a plan before it reads Redis again, and how long it waits
	// after a failure.
	recheck = time.Second
	// retention is how long an old plan may be used after its life while the source fails.
	retention = 24 * time.Hour
	// sourceTimeout limits a query of the source, and the wait for a query's turn.
	sourceTimeout = 5 * time.Second

	maxQueries  = 256               // concurrent queries of the source
	maxWaiting  = 1 << 12           // queries waiting for their turn
	maxFlights  = 2 * maxWaiting    // concurrent lookups; each takes some 6 KiB
	maxCalls    = 8                 // unanswered calls to Redis; each may hold a connection
	maxKept     = 1 << 15           // the least plans that a process keeps; it keeps at most twice as many
	maxRetained = maxKept           // clients for which a process begins retention, in each retention
	tokenLife   = 2 * sourceTimeout // an answer can be stored this long after its token
)

// Errors of lookups that the source did not answer.
var (
	errLate = errors.New("no answer in time")
	errBusy = errors.New("too many plans are asked for")
)

// Config configures a cache. All fields are required.
type Config[T any] struct {
	// Source returns a client's plan. It is called for at most 256 clients at once, each time in a
	// goroutine of its own, with a context that ends after five seconds.
	Source func(ctx context.Context, client string) (T, error)
	// Key returns a client's key in Redis, with a hash tag.
	Key func(client string) string
	// Marshal returns a plan's text. The text must not be empty, be "unknown", or begin with
	// "short ".
	Marshal func(T) string
	// Unmarshal parses the text. The error means that the text is foreign.
	Unmarshal func(text string) (T, error)
	// Unknown is the source's error for a client without a plan. It is cached like a plan.
	Unknown error
	// Failed wraps any other error of the source for the caller.
	Failed func(error) error
	// Reason returns what may be logged of a source's error; "" logs only the error's type.
	Reason func(error) string

	Life    time.Duration // the source is queried again after this time
	Timeout time.Duration // of a call to Redis
	Redis   *redisstore.Answers
	Log     *slog.Logger
}

// Cache caches the plans of clients.
type Cache[T any] struct {
	config Config[T]

	mu            sync.Mutex            // guards the fields up to retainLeft
	fresh         map[string]*plan[T]   // by key in Redis; used since the last rotation
	old           map[string]*plan[T]   // used in the rotation before
	flights       map[string]*flight[T] // by key in Redis
	retainedSince time.Time             // when retainLeft was last set
	retainLeft    int                   // clients for which retention may still begin

	queries semaphore    // bounds the queries of the source
	waiting atomic.Int64 // queries waiting for their turn
	calls   calls        // bounds the calls to Redis
	health  health       // of the source, for the log
	lookups struct{ hits, misses, stale, errors atomic.Uint64 }
}

// New returns an empty cache.
func New[T any](config Config[T]) *Cache[T] {
	return &Cache[T]{
		config: config, fresh: map[string]*plan[T]{}, old: map[string]*plan[T]{},
		flights: map[string]*flight[T]{}, queries: make(semaphore, maxQueries),
		calls:  calls{timeout: config.Timeout, semaphore: make(semaphore, maxCalls)},
		health: health{log: config.Log},
	}
}

// Get returns a client's plan. The error is Unknown or Failed of the [Config], or ctx.Err().
func (c *Cache[T]) Get(ctx context.Context, client string) (T, error) {
	now, key := time.Now(), c.config.Key(client)
	c.mu.Lock()
	cached, f := c.cachedLocked(key), c.flights[key]
	switch {
	case now.Before(cached.until):
		c.mu.Unlock()
		return c.answer(cached, false)
	case f == nil && len(c.flights) >= maxFlights:
		c.mu.Unlock()
		return c.answer(c.fallback(errBusy, cached, cached), false)
	case f == nil:
		f = &flight[T]{done: make(chan struct{})}
		c.flights[key] = f
		borrowed := goroutine.Borrow(context.Background(), ctx, &c.calls.stuck)
		defer borrowed.End()
		go c.fetch(borrowed, client, key, f, cached)
	}
	c.mu.Unlock()

	select {
	case <-f.done:
		return c.answer(f.plan, f.queried)
	case <-time.After(c.maxWait(cached, now)):
		return c.answer(c.fallback(errLate, cached, cached), false)
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// maxWait returns how long a caller waits for a flight if the process has an old plan.
func (c *Cache[T]) maxWait(cached *plan[T], now time.Time) time.Duration {
	switch {
	case !cached.usable(now):
		return sourceTimeout
	case cached.invalid: // the new plan is worth a wait
		return min(sourceTimeout, max(c.config.Timeout, recheck))
	}
	return min(sourceTimeout, c.config.Timeout)
}

// answer returns and counts the result of a lookup.
func (c *Cache[T]) answer(found *plan[T], queried bool) (T, error) {
	switch {
	case found.err != nil && found.err != c.config.Unknown:
		c.lookups.errors.Add(1)
	case queried:
		c.lookups.misses.Add(1)
	case found.fresh(time.Now()):
		c.lookups.hits.Add(1)
	default:
		c.lookups.stale.Add(1)
	}
	return found.value, found.err
}

// Invalidate makes the next lookup of a client query the source, in all processes that reach Redis.
// The error is from Redis or ctx; then other processes may use the old plan for its life.
func (c *Cache[T]) Invalidate(ctx context.Context, client string) error {
	key := c.config.Key(client)
	c.mu.Lock()
	invalid := *c.cachedLocked(key)
	invalid.until, invalid.invalid, invalid.newer = time.Time{}, true, true
	c.keepLocked(key, &invalid)
	delete(c.flights, key) // its answer may be old
	c.mu.Unlock()
	return c.forget(ctx, key)
}

// Stats count the calls of Get that returned before their context ended. A hit is a plan within its
// life, a miss an answer of the source, stale an old plan.
type Stats struct{ Hits, Misses, Stale, Errors uint64 }

// Stats returns the counts since New.
func (c *Cache[T]) Stats() Stats {
	l := &c.lookups
	return Stats{l.hits.Load(), l.misses.Load(), l.stale.Load(), l.errors.Load()}
}

// cachedLocked returns the process' plan of a client, and marks it as used.
func (c *Cache[T]) cachedLocked(key string) *plan[T] {
	if cached := c.fresh[key]; cached != nil {
		return cached
	}
	cached := c.old[key]
	if cached == nil {
		return &plan[T]{}
	}
	c.keepLocked(key, cached)
	return cached
}

// keepLocked keeps a plan. If there are too many, it forgets the plans unused for longest.
func (c *Cache[T]) keepLocked(key string, cached *plan[T]) {
	if len(c.fresh) >= maxKept {
		c.old, c.fresh = c.fresh, map[string]*plan[T]{}
	}
	c.fresh[key] = cached
}

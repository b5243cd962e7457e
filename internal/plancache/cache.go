// Package plancache caches the answers of a slow source, in the process and in Redis.
//
// An answer is the plan of a client, a value of any type that has a text. The source, a database
// say, is asked once per client and life. Redis keeps the answer for all processes, a process keeps
// it for a second. While the source or Redis fails, old answers serve.
//
// What lookups and decisions have in common exists once: [dispatch.Bounded] bounds their calls, and
// [dispatch.Borrow] lends them the caller's values. The dispatcher itself is not for lookups. It
// merges thousands of calls on buckets, none of which waits longer than its timeout, and probes a
// lost Redis in the background. A process reads a client's plan once a second at most, so there is
// nothing to merge. A client without a plan gets an error, so a lookup waits seconds for a place
// while Redis is well. While Redis is lost, one lookup a second is the probe.
package plancache

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

const (
	// recheck is when a process reads a plan in Redis again, and when it retries after a failure.
	recheck = time.Second
	// rest is how long an old plan serves after its life while the source fails.
	rest = 24 * time.Hour
	// sourceTimeout limits a question to the source, and its wait for a place.
	sourceTimeout = 5 * time.Second

	maxQuestions = 256               // questions to the source at a time
	maxWaiting   = 1 << 12           // questions that wait for a place
	maxFlights   = 2 * maxWaiting    // clients that are looked up at a time; each takes some 6 KiB
	maxCalls     = 8                 // unanswered calls to Redis; each may hold a connection
	maxKept      = 1 << 15           // plans that a process keeps at least; it keeps at most twice as many
	maxRested    = maxKept           // clients whose plans a process has Redis start to rest, in each rest
	tokenLife    = 2 * sourceTimeout // an answer can be stored this long after its token was made
)

// Errors of lookups for which the source gave no answer.
var (
	errLate = errors.New("no answer in time")
	errBusy = errors.New("too many plans are asked for")
)

// Config is what a cache is made of. All fields are required.
type Config[T any] struct {
	// Source returns a client's plan. It is called for at most 256 clients at once, each time in a
	// goroutine of its own, with a context that ends after five seconds.
	Source func(ctx context.Context, client string) (T, error)
	// Key returns a client's key in Redis, with a hash tag.
	Key func(client string) string
	// Marshal returns a plan's text. The text is neither empty nor "unknown", and does not begin
	// with "short ".
	Marshal func(T) string
	// Unmarshal reads the text. The error says that the text is foreign.
	Unmarshal func(text string) (T, error)
	// Unknown is the error of the source for a client without a plan. It is cached like a plan.
	Unknown error
	// Failed wraps any other error of the source for the caller.
	Failed func(error) error
	// Reason returns what the log may say of an error of the source; "" is the error's type alone.
	Reason func(error) string

	Life    time.Duration // the source is asked again after this time
	Timeout time.Duration // of a call to Redis
	Redis   *redisstore.Answers
	Log     *slog.Logger
}

// Cache has the plans of clients.
type Cache[T any] struct {
	config Config[T]

	mu         sync.Mutex            // guards the fields up to restsLeft
	fresh      map[string]*plan[T]   // by key in Redis; used since the last turn
	old        map[string]*plan[T]   // used in the turn before
	flights    map[string]*flight[T] // by key in Redis
	restsSince time.Time             // when restsLeft was last set
	restsLeft  int                   // clients whose plans may begin to rest in Redis

	questions places       // of questions to the source
	waiting   atomic.Int64 // questions that wait for a place
	calls     calls        // to Redis
	health    health       // of the source, for the log
	lookups   struct{ hits, misses, stale, errors atomic.Uint64 }
}

// New returns a cache that knows no plan yet.
func New[T any](config Config[T]) *Cache[T] {
	return &Cache[T]{
		config: config, fresh: map[string]*plan[T]{}, old: map[string]*plan[T]{},
		flights: map[string]*flight[T]{}, questions: make(places, maxQuestions),
		calls:  calls{timeout: config.Timeout, places: make(places, maxCalls)},
		health: health{log: config.Log},
	}
}

// Get returns the plan of a client. The error is Unknown or Failed of the [Config], or that of ctx.
func (c *Cache[T]) Get(ctx context.Context, client string) (T, error) {
	now, key := time.Now(), c.config.Key(client)
	c.mu.Lock()
	known, f := c.knownLocked(key), c.flights[key]
	switch {
	case now.Before(known.until):
		c.mu.Unlock()
		return c.answer(known, false)
	case f == nil && len(c.flights) >= maxFlights:
		c.mu.Unlock()
		return c.answer(c.fallback(errBusy, known, known), false)
	case f == nil:
		f = &flight[T]{done: make(chan struct{})}
		c.flights[key] = f
		lent := dispatch.Borrow(context.Background(), ctx)
		defer lent.End()
		go c.fetch(lent, client, key, f, known)
	}
	c.mu.Unlock()

	select {
	case <-f.done:
		return c.answer(f.plan, f.asked)
	case <-time.After(c.patience(known, now)):
		return c.answer(c.fallback(errLate, known, known), false)
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// patience returns how long a caller waits for a flight that knows an old plan.
func (c *Cache[T]) patience(known *plan[T], now time.Time) time.Duration {
	switch {
	case !known.serves(now):
		return sourceTimeout
	case known.invalid: // a change is worth waiting for
		return min(sourceTimeout, max(c.config.Timeout, recheck))
	}
	return min(sourceTimeout, c.config.Timeout)
}

// answer returns what a lookup has found, and counts it.
func (c *Cache[T]) answer(found *plan[T], asked bool) (T, error) {
	switch {
	case found.err != nil && found.err != c.config.Unknown:
		c.lookups.errors.Add(1)
	case asked:
		c.lookups.misses.Add(1)
	case found.lives(time.Now()):
		c.lookups.hits.Add(1)
	default:
		c.lookups.stale.Add(1)
	}
	return found.value, found.err
}

// Invalidate makes the next lookup of a client ask the source again, in all processes that reach
// Redis. The error is that of Redis or of ctx; then other processes may keep the old plan for its
// life.
func (c *Cache[T]) Invalidate(ctx context.Context, client string) error {
	key := c.config.Key(client)
	c.mu.Lock()
	invalid := *c.knownLocked(key)
	invalid.until, invalid.invalid, invalid.ahead = time.Time{}, true, true
	c.keepLocked(key, &invalid)
	delete(c.flights, key) // its answer may be old
	c.mu.Unlock()
	return c.forget(ctx, key)
}

// Stats count each Get that its context did not end. An old plan is stale, an answer of the source
// is a miss.
type Stats struct{ Hits, Misses, Stale, Errors uint64 }

// Stats returns the figures since New.
func (c *Cache[T]) Stats() Stats {
	l := &c.lookups
	return Stats{l.hits.Load(), l.misses.Load(), l.stale.Load(), l.errors.Load()}
}

// knownLocked returns what the process knows of a client, and keeps it.
func (c *Cache[T]) knownLocked(key string) *plan[T] {
	if known := c.fresh[key]; known != nil {
		return known
	}
	known := c.old[key]
	if known == nil {
		return &plan[T]{}
	}
	c.keepLocked(key, known)
	return known
}

// keepLocked keeps a plan. If there are too many, it forgets plans that were unused for longest.
func (c *Cache[T]) keepLocked(key string, known *plan[T]) {
	if len(c.fresh) >= maxKept {
		c.old, c.fresh = c.fresh, map[string]*plan[T]{}
	}
	c.fresh[key] = known
}

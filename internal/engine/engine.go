// Package engine makes decisions on keys: by leased tokens, by the deny cache, by the store, or
// without it, for one key or for several. Callers put a [Request] in, and get an [Answer] for each [Ask].
//
// It owns what this process knows of keys: leases, denials, slots, bans, and who waits. It never knows a
// policy, the name of a limit, or HTTP.
package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/denycache"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/fifo"
	"github.com/ginlimit/ginlimit/internal/goroutine"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/lease"
	"github.com/ginlimit/ginlimit/internal/memory"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/replicas"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// ErrUnavailable says that no decision could be made.
var ErrUnavailable = errors.New("ginlimit: unavailable")

// ErrClosed says that the engine is closed. It comes with ErrUnavailable.
var ErrClosed = dispatch.ErrClosed

// Failure is what happens if the store does not decide.
type Failure uint8

const (
	FailLocal  Failure = iota // this process decides
	FailOpen                  // the request is allowed
	FailClosed                // there is no decision
)

// Source is where a decision was made.
type Source uint8

const (
	FromStore  Source = iota // by the store: Redis, or this process if it has no Redis
	FromCache                // by the deny cache
	FromLease                // by tokens taken ahead
	FromLocal                // in this process, without the store
	FromOpen                 // nowhere: the store did not decide, and the request is allowed
	FromStatic               // nowhere: nothing is counted, the set prohibits, or a queue has no place
)

// Subject is a client under a set of rules.
type Subject struct {
	Prefix string // of the client's key; "" is none
	Client string
	Tenant bucket.Tenant // of the client, if tenants share its limits; see TenantName
	Set    *rules.Set    // the current one; waiting for another calendar period renews it
}

// Ask is what a request wants of a subject, and how it may be decided on.
type Ask struct {
	Subject
	N       int64         // tokens; 0 only looks, and is allowed unless the set prohibits
	UpTo    bool          // fewer tokens will do, and no denial bans the client
	Leases  bool          // leased tokens may serve, and tokens be taken ahead
	Failure Failure       // what happens if the store does not decide
	Settles bool          // what is taken may be given back
	Recalls bool          // what is taken for a caller that has left is given back
	Report  rules.Report  // which statuses are wanted
	Queue   Queue         // how the request waits for what it lacks of this Ask
	scope   rules.Scope   // all of the set, but for a look that leaves slots out
	again   bool          // it has waited and tried before, and its tokens are counted as wanted
	turn    time.Duration // until this process is no longer known to wait; 0 if the request does not
}

// Answer is a decision on an Ask.
type Answer struct {
	rules.Verdict
	Decided  bool // else another Ask of the same request was denied first
	Source   Source
	Statuses []rules.Status // as the Ask wants them; the memory is the caller's
	Hash     uint64         // of the key; 0 if no bucket was asked
	Waited   time.Duration  // for tokens or a slot of this Ask
	// QueueFull says that the request is denied because the Ask's queue has no place for it.
	QueueFull bool
	Failed    error      // why there is no decision on a trial
	Err       error      // why the store did not decide, last; then it may still have the Ask's set
	attempt   int64      // that holds a slot; 0 is none
	recalled  bool       // the attempt ends later: see recall
	share     *rules.Set // by which this process decided; nil if it did not
	place     int64      // of this process among those that wait for the slot that it lacks; 0 if not known
	receipt   *receipt   // of what was taken; nil if nothing is to be given back
}

// withoutStore reports whether the store did not decide.
func (a *Answer) withoutStore() bool { return a.Source == FromLocal || a.Source == FromOpen }

// Status returns the status of a resource, or nil if there is none.
func (a *Answer) Status(resource int) *rules.Status {
	for i := range a.Statuses {
		if resource >= 0 && int(a.Statuses[i].Resource) == resource {
			return &a.Statuses[i]
		}
	}
	return nil
}

// reset prepares an answer for another decision.
func (a *Answer) reset() { *a = Answer{Statuses: a.Statuses[:0], Waited: a.Waited, Err: a.Err} }

// store keeps buckets.
type store interface {
	// Do applies a call to all its buckets or to none.
	Do(ctx context.Context, c *dispatch.Call) error
	// Close returns when the store has stopped working.
	Close()
}

// Engine makes decisions. It is safe for concurrent use.
type Engine struct {
	Config
	store     store
	redis     *redisstore.Store // the store; nil if it is this process
	denied    *denycache.Cache  // what Redis is not asked again; nil without Redis
	leases    *lease.Cache      // what was taken ahead of Redis
	local     *memory.Store     // decides if the store does not; nil without Redis
	calls     sync.Pool         // of *dispatch.Call
	decisions sync.Pool         // of *several
	slots     *inflight.Counts  // that this process holds
	replica   *replicas.Member  // nil without Redis, and if the number of replicas is known
	bans      bans              // that it knows of
	waits
	background goroutine.Background
	unreturned unreturned
	abandoned  abandoned

	ending
}

// waits are the callers that wait for tokens or slots.
type waits struct {
	waiting fifo.Queues
	changes atomic.Uint64 // that may end a wait
	places  fifo.Places   // of the requests of each client that wait
	looking atomic.Int64  // callers that look for slots now and then, one for each line
}

// ending is how far an engine is from its end.
type ending struct {
	dropped atomic.Bool // nobody has the engine any more
	closing sync.Once
	closed  chan struct{}
}

// Config is what an engine is made of.
type Config struct {
	Keys     clientkey.Text
	Timeout  time.Duration // of a decision by Redis
	Replicas int64         // that share the limits without Redis; if 0, they are counted in Redis
}

// closeTimeout is how long Close waits for decisions in flight, or closeTimeouts timeouts if these
// are longer: a decision may take two while a server fails, and as long
// again to give back what it took.
const (
	closeTimeout  = time.Second
	closeTimeouts = 4
)

// NewRedis returns an engine whose store is Redis. It remembers at most as many denials as given.
func NewRedis(c Config, rdb redis.UniversalClient, denials int, s redisstore.Config) *Engine {
	e := newEngine(c)
	s.Timeout, s.Outage, s.Dropped = c.Timeout, e.describeOutage, &e.dropped
	e.redis = redisstore.New(rdb, s)
	e.store = e.redis
	e.denied = denycache.New(denials)
	e.slots = inflight.New(e.report)
	if c.Replicas > 0 {
		e.local = memory.New(memory.MaxBuckets)
	} else {
		e.replica = e.joinReplica()
		e.local = e.replica.Local()
	}
	return e
}

// NewLocal returns an engine whose store is this process.
func NewLocal(c Config) *Engine {
	e := newEngine(c)
	e.slots = inflight.New(nil)
	e.store = localStore{memory.New(memory.MaxBuckets), e.slots}
	return e
}

func newEngine(c Config) *Engine {
	e := &Engine{Config: c, ending: ending{closed: make(chan struct{})}}
	e.leases = lease.New(e.returnLater)
	return e
}

// SharesStore reports whether two engines have the same buckets, as far as is known.
func (e *Engine) SharesStore(other *Engine) bool {
	return e == other || e.redis != nil && other.redis != nil && e.redis.String() == other.redis.String()
}

// IsLocal reports whether the store is this process.
func (e *Engine) IsLocal() bool { return e.redis == nil }

// Close ends the engine. It waits for decisions in flight, gives back leased tokens, and reports
// the slots that are free.
func (e *Engine) Close() {
	e.closing.Do(func() {
		close(e.closed)
		e.leases.Close()
		e.background.Close(max(closeTimeout, closeTimeouts*e.Timeout))
		e.returnLeases() // also what a decision in flight took ahead
		e.closeSlots()
		e.store.Close()
	})
}

// Drop says that nobody will call the engine again, without Close. Its goroutines and timers end, also if
// Redis or the client is gone. It does not wait, and may be called from anywhere.
func (e *Engine) Drop() { e.dropped.Store(true) }

// Ping reports whether Redis answers, within the timeout.
func (e *Engine) Ping(ctx context.Context) error {
	if err := e.Ready(ctx); err != nil || e.redis == nil {
		return err
	}
	within, cancel := context.WithTimeout(context.Background(), e.Timeout)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	lent := e.background.Borrow(within, ctx) // the client may go on after the end
	defer lent.End()
	err := e.redis.Ping(lent)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ended(ctx)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// Ready reports why the engine makes no decision, if it makes none.
func (e *Engine) Ready(ctx context.Context) error {
	select {
	case <-e.closed:
		return errClosed()
	default:
	}
	if left(ctx) {
		return ended(ctx)
	}
	e.replica.Start()
	return nil
}

// laterTimeout is how long what is done in the background may take, or two timeouts if these are longer.
const laterTimeout = 5 * time.Second

// Later calls f in the background, and Close waits for it. The context ends in time, and a panic ends f alone. It is
// false, and f is not called, once Close has begun.
func (e *Engine) Later(f func(context.Context)) bool {
	if !e.background.Begin() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), max(laterTimeout, 2*e.Timeout))
	goroutine.Isolate(func() (struct{}, error) {
		defer e.background.Done()
		defer cancel()
		f(ctx)
		return struct{}{}, nil
	})
	return true
}

// within returns a context that ends when a decision that began at start has taken long enough. Then the
// caller has not left.
func (e *Engine) within(ctx context.Context, start time.Time) (context.Context, context.CancelFunc) {
	if e.redis == nil {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, start.Add(e.Timeout), dispatch.ErrLate)
}

// left reports whether the caller has left: its context has ended, not just the time of its calls.
func left(ctx context.Context) bool {
	return ctx.Err() != nil && context.Cause(ctx) != dispatch.ErrLate
}

// ended says that the caller's context ended before there was a decision.
func ended(ctx context.Context) error { return fmt.Errorf("ginlimit: %w", ctx.Err()) }

func errClosed() error { return fmt.Errorf("%w: %w", ErrUnavailable, ErrClosed) }

// Unavailable is the error if no answer was had for another reason than a closed engine: the end of
// the caller's context, or [ErrUnavailable].
func Unavailable(ctx context.Context, err error) error {
	switch {
	case left(ctx):
		return ended(ctx)
	case errors.Is(err, context.DeadlineExceeded): // not the caller's
		err = dispatch.ErrLate
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// mayStillHappen reports whether Redis may do a change that has failed.
func mayStillHappen(err error) bool { return err != nil && !redisstore.IsErrorReply(err) }

// key returns the key of a subject as the store has it.
func (e *Engine) key(s *Subject) []byte { return e.Keys.Append(nil, s.Prefix, s.Client) }

// TenantName returns the name of a tenant as stores have it.
func (e *Engine) TenantName(name string) string { return string(e.Keys.Append([]byte{':'}, "", name)) }

// whoOf returns who is denied by a decision on a key: its tenant, or whoever has the key.
func whoOf(key []byte, t bucket.Tenant) []byte {
	if t.Name == "" {
		return key
	}
	return append(append(append(make([]byte, 0, 128), key...), '\n'), t.Name...) // no key has a line break
}

// Hash returns the hash of a subject's key.
func (e *Engine) Hash(s *Subject) uint64 { return clientkey.Hash(e.key(s)) }

// call returns a call for an operation on the buckets of a subject in a scope.
func (e *Engine) call(op bucket.Op, s *Subject, scope rules.Scope) *dispatch.Call {
	c, ok := e.calls.Get().(*dispatch.Call)
	if !ok {
		c = dispatch.NewCall()
	}
	op.Tenant = s.Tenant
	c.Reset(op, s.Set.Buckets(scope), s.Set.Layout(scope))
	c.Key = e.Keys.Append(c.Key, s.Prefix, s.Client)
	c.Hash = clientkey.Hash(c.Key)
	return c
}

// release keeps a call for another use, unless it may still be answered.
func (e *Engine) release(c *dispatch.Call) {
	if !c.Abandoned() {
		c.Release()
		e.calls.Put(c)
	}
}

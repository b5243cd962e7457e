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
	local     *memory.Store     // the store without Redis; else it decides if the store does not
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

// SharesStore reports whether two engines have the same buckets, as far as is known.
func (e *Engine) SharesStore(other *Engine) bool {
	return e == other || e.redis != nil && other.redis != nil && e.redis.String() == other.redis.String()
}

// IsLocal reports whether the store is this process.
func (e *Engine) IsLocal() bool { return e.redis == nil }

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
	if ctx.Err() != nil && left(ctx) {
		return ended(ctx)
	}
	if m := e.replica; m != nil && !m.Started.Load() {
		m.Start()
	}
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

// Rest returns a context that ends when a call that has waited before has taken long enough.
func (e *Engine) Rest(ctx context.Context, waited time.Duration) (context.Context, context.CancelFunc) {
	if waited == 0 {
		return ctx, func() {}
	}
	return e.within(ctx, time.Now().Add(-waited))
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
	c := e.calls.Get().(*dispatch.Call)
	op.Tenant = s.Tenant
	buckets, layout := s.Set.Call(scope)
	c.Set(op, buckets, layout)
	c.Key = e.Keys.Append(c.Key, s.Prefix, s.Client)
	c.Hash = clientkey.Hash(c.Key)
	return c
}

// release keeps a call for another use, unless it may still be answered.
func (e *Engine) release(c *dispatch.Call) {
	if c.Release() {
		e.calls.Put(c)
	}
}

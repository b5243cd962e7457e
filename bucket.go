package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Match these with [errors.Is].
var (
	// ErrInvalidLimit says that a limit or another argument cannot be used.
	ErrInvalidLimit = errors.New("ginlimit: invalid limit")
	// ErrUnavailable says that no decision could be made: by Redis, by a plan, or by a closed limiter.
	ErrUnavailable = errors.New("ginlimit: unavailable")
	// ErrNoKey says that there is no key to count under.
	ErrNoKey = errors.New("ginlimit: no key")
)

// Limiter counts keys against limits. It is safe for concurrent use.
//
// [NewLimiter] and [NewLocal] make one; the zero Limiter makes no decision, and says so by an error.
//
// Every method takes the limits to count under, each of another period, and needs at least one. A
// key's buckets are told apart by period and algorithm, so a changed Rate or Burst takes over the bucket as
// it is: what is missing from it takes as long to come back as before. Of a window, what was counted stays.
//
// A decision waits for Redis no longer than [WithTimeout] says, and than its context; one that finds Redis
// idle looks at the end of its context only afterwards. If either ends when the question is on its way, the
// tokens may have been taken all the same.
//
// An error means that no decision was made. It wraps [ErrInvalidLimit] or [ErrNoKey] for an argument
// that cannot be used, the context's error when that has ended, and [ErrUnavailable] otherwise.
type Limiter struct {
	defaults config // of its handlers
	store    store
	source   Source      // of what the store decides
	denied   *denyMemory // what Redis is not asked for again; nil in the process
	local    *localStore // decides where the store does not; nil in the process
	asks     sync.Pool   // of *ask
	macs     *sync.Pool  // of hash.Hash, with the secret of the keys, if there is one
	probed   atomic.Bool // whether Gin would believe forged addresses

	afterwards afterwards // what is given back when a decision's time is up

	close  sync.Once
	closed chan struct{}
}

// store keeps buckets.
type store interface {
	// do what is asked, of all buckets at once or of none.
	do(ctx context.Context, a *ask) error
	// close returns when the store has stopped working.
	close()
	// String names the store, and no other store in this process that shares no bucket with it.
	String() string
}

// NewLimiter returns a limiter whose buckets are in Redis.
//
// It works with a client, a cluster client, a ring and a failover client, and connects with the first
// decision only: Redis need not be there yet. Options of a handler are the defaults of its handlers.
// The error joins all faults.
//
// It is fastest with a client whose ContextTimeoutEnabled is set: then, with a [WithTimeout] of up to 100 ms, a
// decision that finds Redis idle is sent by its caller, not handed to another goroutine. A hook of the client must not
// keep a command after the call, as its memory is used again. A client of another type, that wraps one of a cluster,
// say, is taken for one server.
func NewLimiter(rdb redis.UniversalClient, opts ...Option) (*Limiter, error) {
	l, faults := newRedisLimiter(rdb, opts)
	return l.unless(faults)
}

// newRedisLimiter returns the limiter even if there are faults, to find those of its first handler too.
func newRedisLimiter(rdb redis.UniversalClient, opts []Option) (*Limiter, []error) {
	defaults, faults := newConfig(opts)
	if isNil(rdb) {
		faults = append(faults, errors.New("ginlimit: the Redis client is nil"))
	}
	l := newLimiter(defaults, newRedisStore(rdb, defaults), FromRedis)
	l.denied = newDenyMemory(defaults.denials, defaults.eager)
	l.local = newLocalStore(LocalBuckets)
	return l, faults
}

// NewLocal returns a limiter whose buckets are in this process alone.
//
// It remembers the [LocalBuckets] buckets that take longest to be full; a forgotten bucket is full. The log of a
// [SlidingWindow] is exact up to 8,192 entries; of more it merges two into the later one, so that it may refuse
// for longer. All logs together have up to 1,048,576 entries; of more, those are forgotten that end soonest. The
// options are those of [NewLimiter], and so is the error.
func NewLocal(opts ...Option) (*Limiter, error) {
	defaults, faults := newConfig(opts)
	return newLimiter(defaults, newLocalStore(LocalBuckets), FromLocal).unless(faults)
}

func newLimiter(defaults config, s store, source Source) *Limiter {
	return &Limiter{defaults: defaults, store: s, source: source, macs: newMACs(defaults.secret), closed: make(chan struct{})}
}

// unless returns the limiter, or all faults, those of its default limits among them.
func (l *Limiter) unless(faults []error) (*Limiter, error) {
	if more := l.defaults.limits; len(more) > 0 {
		_, err := newRules(l.defaults.algorithm, more...)
		faults = append(faults, err)
	}
	for _, list := range [][]netip.Prefix{l.defaults.allow, l.defaults.deny} {
		_, err := newAddressSet(list)
		faults = append(faults, err)
	}
	for _, identity := range l.defaults.identities {
		_, err := newRules(l.defaults.algorithm, identity.limits...)
		faults = append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return l, nil
}

// Close ends the limiter: it makes no more decisions, every Wait returns, and what is on its way to
// Redis is waited for. The Redis client stays open, as it is the caller's. Close may be called more
// than once.
//
// Where Redis hangs it waits for a second, or a longer timeout; without ContextTimeoutEnabled of the client, for as long
// as the client's own ReadTimeout.
func (l *Limiter) Close() error {
	l.close.Do(func() {
		if l.store != nil {
			close(l.closed)
			l.afterwards.close()
			l.store.close()
		}
	})
	return nil
}

// Allow takes one token. It is short for AllowN with n = 1.
//
// Keys of methods and of handlers are one space: what comes from strangers goes through [Key], with a name of its own.
func (l *Limiter) Allow(ctx context.Context, key string, limits ...Limit) (Result, error) {
	return l.AllowN(ctx, key, 1, limits...)
}

// AllowN takes n tokens, or none: of every limit, or of none.
//
// An n above a limit's Burst is refused with RetryAfter below 0. An n below 1 is an error.
// Use [Limiter.AllowUpTo] where fewer than n are of use too.
func (l *Limiter) AllowN(ctx context.Context, key string, n int, limits ...Limit) (Result, error) {
	r, err := l.checked(key, n, limits)
	if err != nil {
		return Result{}, err
	}
	return l.allow(ctx, key, &r, n)
}

// allow decides on all n tokens or none.
func (l *Limiter) allow(ctx context.Context, key string, r *rules, n int) (res Result, err error) {
	o := l.defaults.observe("")
	defer func() { o.end(ctx, l.outcome(res, r.failure, err), n, res.Allowed, res.Limit) }()
	if res, ok := r.settled(n); ok {
		return l.settle(ctx, res)
	}
	a := l.ask(opDecide, r)
	defer l.release(a)
	l.about(a, "", key)
	return l.take(ctx, a, r, n)
}

// take has an ask answered that wants all n tokens or none.
func (l *Limiter) take(ctx context.Context, a *ask, r *rules, n int) (Result, error) {
	wish(a, r, n)
	res, err := l.decide(ctx, a, r)
	if err != nil {
		return Result{}, err
	}
	return told(res, n), nil
}

// wish sets what an ask is to take that wants all n tokens or none.
func wish(a *ask, r *rules, n int) {
	switch a.charges, a.n = 1, int64(n); {
	case n == 0:
		a.charges, a.n = 0, 1 // it is told what is left
	case a.n > r.burst():
		a.charges = 0 // never: take nothing, tell what is left
	}
}

// told returns the Result of a wish for n tokens. Nobody is refused none.
func told(res Result, n int) Result {
	if n == 0 {
		res.Allowed, res.RetryAfter = true, 0
	}
	return res
}

// AllowUpTo takes as many of n tokens as fit.
//
// Of several limits it takes the same number. Result.Granted says how many; Allowed if there was one. RetryAfter
// is the wait for one token. An n below 1 is an error.
func (l *Limiter) AllowUpTo(ctx context.Context, key string, n int, limits ...Limit) (res Result, err error) {
	r, err := l.checked(key, n, limits)
	if err != nil {
		return Result{}, err
	}
	o := l.defaults.observe("")
	defer func() { o.end(ctx, l.outcome(res, r.failure, err), n, res.Allowed, res.Limit) }()
	if res, ok := r.settled(n); ok {
		return l.settle(ctx, res)
	}
	a := l.ask(opDecide, &r)
	defer l.release(a)
	l.about(a, "", key)
	a.charges = min(int64(n), r.burst())
	return l.decide(ctx, a, &r)
}

// Wait takes one token as soon as there is one.
//
// It returns at once when the context's deadline comes before the token, with an error that wraps
// [context.DeadlineExceeded], and when the limit prohibits, with [ErrInvalidLimit]. Those who wait
// for one key are served in no order.
func (l *Limiter) Wait(ctx context.Context, key string, limits ...Limit) error {
	r, err := l.checked(key, 1, limits)
	if err != nil {
		return err
	}
	for {
		res, err := l.allow(ctx, key, &r, 1)
		switch {
		case err != nil:
			return err
		case res.Allowed:
			return nil
		case res.RetryAfter < 0:
			return fmt.Errorf("%w: %s never allows, so there is nothing to wait for", ErrInvalidLimit, res.Limit)
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < res.RetryAfter {
			return fmt.Errorf("ginlimit: the next token comes after the deadline: %w", context.DeadlineExceeded)
		}
		timer := time.NewTimer(res.RetryAfter)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ended(ctx)
		case <-l.closed:
			timer.Stop()
			return errClosed()
		}
	}
}

// Peek tells what one token would meet, and takes nothing: Granted is 0.
func (l *Limiter) Peek(ctx context.Context, key string, limits ...Limit) (Result, error) {
	r, err := l.checked(key, 1, limits)
	if err != nil {
		return Result{}, err
	}
	if res, ok := r.settled(0); ok {
		return l.settle(ctx, res)
	}
	a := l.ask(opDecide, &r)
	defer l.release(a)
	l.about(a, "", key)
	return l.decide(ctx, a, &r)
}

// Refund gives n tokens back, to every limit.
//
// It never fills a bucket above full. Of a [SlidingWindow] it gives back what was taken last. It does not shorten a
// [Limiter.Block]. An n below 1 is an error.
//
// It gives back what was taken long ago too, though that has flowed back meanwhile: over any time, as many may be taken
// besides as are given back in it. Where Redis is lost it returns [ErrUnavailable], and has given back in this process.
func (l *Limiter) Refund(ctx context.Context, key string, n int, limits ...Limit) error {
	r, err := l.checked(key, n, limits)
	if err != nil {
		return err
	}
	if len(r.buckets) == 0 {
		return l.ready(ctx)
	}
	a := l.ask(opDecide, &r)
	a.charges = -min(int64(n), maxUnits)
	return l.change(ctx, a, &r, key)
}

// Block denies the key every token for d, in every process.
//
// It works at once. Requests that cost nothing pass (see [WithCost]). The time is rounded up to a millisecond.
// After it there is one token, and the bucket regains the rest at its rate; a window has what it would have
// without the block. A block is never shortened by another one, only ended by [Limiter.Reset]. A d of zero or less
// is an error, and so are unlimited limits alone, which have no bucket to block. So is a d whose level would pass 2^53
// units: thousands of years for most limits, ten days for 10,000,019 per second, less where the Burst is nearly that.
//
// Where Redis is lost it returns [ErrUnavailable], and the block holds in this process all the same, with [FailLocal].
func (l *Limiter) Block(ctx context.Context, key string, d time.Duration, limits ...Limit) error {
	r, err := l.checked(key, 1, limits)
	switch {
	case err != nil:
		return err
	case d <= 0:
		return fmt.Errorf("%w: a block of %s; want more than zero", ErrInvalidLimit, d)
	case r.denies && len(r.buckets) == 0:
		return l.ready(ctx)
	case len(r.buckets) == 0:
		return fmt.Errorf("%w: %s is never counted, so it has no bucket to block", ErrInvalidLimit, r.unlimited)
	}
	a := l.ask(opBlock, &r)
	a.block = d
	var faults []error
	for i := range r.buckets {
		if a.states[i].level, err = r.buckets[i].blockLevel(d); err != nil {
			faults = append(faults, err)
		}
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	return l.change(ctx, a, &r, key)
}

// Reset fills the key's buckets up and ends a block.
//
// Where Redis is lost it returns [ErrUnavailable], and has done so in this process all the same.
func (l *Limiter) Reset(ctx context.Context, key string, limits ...Limit) error {
	r, err := l.checked(key, 1, limits)
	if err != nil {
		return err
	}
	if len(r.buckets) == 0 {
		return l.ready(ctx)
	}
	return l.change(ctx, l.ask(opReset, &r), &r, key)
}

// checked checks the arguments that every method has, and reports every fault in them.
func (l *Limiter) checked(key string, n int, limits []Limit) (rules, error) {
	r, err := newRules(l.defaults.algorithm, limits...)
	r.failure = l.defaults.failure
	faults := []error{err}
	if key == "" {
		faults = append(faults, fmt.Errorf("%w: the key is empty", ErrNoKey))
	}
	if n < 1 {
		faults = append(faults, fmt.Errorf("%w: a cost of %d; want at least 1", ErrInvalidLimit, n))
	}
	return r, errors.Join(faults...)
}

package ginlimit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/clocktrust"
	"github.com/ginlimit/ginlimit/internal/denycache"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/fifo"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/lease"
	"github.com/ginlimit/ginlimit/internal/memory"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

const (
	// LocalBuckets is how many buckets and windows this process remembers at most, of all algorithms together. What was given
	// back of a bucket lately takes the place of another one.
	LocalBuckets = memory.MaxBuckets
	// DefaultDenyMemory is how many refusals a limiter remembers at most.
	DefaultDenyMemory = 1 << 16
)

// Match these with [errors.Is].
var (
	// ErrInvalidLimit says that a limit or another argument cannot be used.
	ErrInvalidLimit = errors.New("ginlimit: invalid limit")
	// ErrUnavailable says that no decision could be made: by Redis, by a plan, or by a closed limiter.
	ErrUnavailable = errors.New("ginlimit: unavailable")
	// ErrNoKey says that there is no key to count under.
	ErrNoKey = errors.New("ginlimit: no key")
	// ErrBadRequest says that the client is at fault. A [KeyFunc] that finds a malformed key returns an error that wraps it,
	// and the default error handler answers 400, without the error's text. [ByFirst] and [FirstOf] do not look for another
	// key: a client could leave its bucket with a malformed one. If the key is missing, wrap [ErrNoKey] as well, and they do.
	ErrBadRequest = errors.New("ginlimit: bad request")
)

// Limiter counts keys against limits. It is safe for concurrent use.
//
// [NewLimiter] and [NewLocal] make one; the zero Limiter makes no decision, and says so by an error. [Limiter.Policy] and
// [Limiter.Handler] limit clients under a name. The other methods are for keys of your own: a policy without a name.
//
// These methods take the limits to count under, each of another period, and need at least one. A key has a bucket
// for each period and algorithm, so a changed Rate or Burst takes over the bucket as it is: what is missing from it takes
// as long to come back as before. A changed window keeps what it has counted.
//
// A decision waits for Redis no longer than [WithTimeout] says, and than its context. A caller that finds Redis idle may
// look at the end of its context only afterwards. If either ends while the call is in flight, the tokens may have been
// taken all the same.
//
// An error means that no decision was made. It wraps [ErrInvalidLimit] or [ErrNoKey] for an argument that cannot be used,
// the context's error if that has ended, and [ErrUnavailable] otherwise.
type Limiter struct {
	defaults config // of its policies
	store    store
	source   Source           // of what the store decides
	denied   *denycache.Cache // what Redis is not asked for again; nil in the process
	leases   *lease.Cache     // what was taken of Redis ahead of its use; nil in the process
	local    *memory.Store    // decides if the store does not; nil in the process
	adHocs   sync.Pool        // of *adHoc
	calls    sync.Pool        // of *dispatch.Call
	keys     clientkey.Text   // writes keys as they stand in Redis
	warned   atomic.Bool      // that clients can spoof their addresses
	resets   [1024]resets     // by the hash of a key
	moving   [64]atomic.Int64 // by the hash of a key: until when its slot is taken to migrate, in Unix milliseconds

	slots      *inflight.Counts // that this process holds
	bans       bans             // that it knows of
	waiting    fifo.Queues      // of those who wait for tokens or slots
	algorithms algorithms       // of its policies
	looking    atomic.Int64     // how many of them look for slots now and then, one for each client
	background background       // what Close waits for

	noClient redisstore.Throttle // of warnings of keys that no request counts under

	close  sync.Once
	closed chan struct{}
}

// background is work that no request waits for, and decisions that may have to give back, take tokens ahead or take a slot. Its
// mutex guards closed.
type background struct {
	mu     sync.Mutex
	closed bool
	all    sync.WaitGroup
}

// begin notes such work, which ends with all.Done. It is false once Close has begun. During it more may be added.
func (b *background) begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.all.Add(1)
	return true
}

// close returns when the work has ended, or after most: a hook of the client may hang.
func (b *background) close(most time.Duration) {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		b.all.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(most):
	}
}

// closeTimeout is how long Close waits for decisions in flight, or closeTimeouts timeouts where these are longer: a decision may take
// two while a server fails or a slot moves, and as long again to give back what it took.
const (
	closeTimeout  = time.Second
	closeTimeouts = 4
)

// NewLimiter returns a limiter whose buckets are in Redis.
//
// It works with a client, a cluster client, a ring and a failover client, and connects with the first decision only: Redis
// need not be there yet. Options of a policy are the defaults of its policies. The error joins all faults.
//
// The commands of a [redis.Client] end within [WithTimeout], whatever the client's timeouts are: they use its connections,
// but not its ReadTimeout and WriteTimeout. A hook of the client sees them, and must not keep a command after the call, as
// its memory is used again. The limiters of a client add one hook to it, which stays. Make one limiter and share it: each has
// a memory and batches of its own, so the log warns of a hundred on one client. A client of another type, such as one that
// wraps a cluster client, is taken for one server.
func NewLimiter(rdb redis.UniversalClient, opts ...Option) (*Limiter, error) {
	l, errs := newRedisLimiter(rdb, opts)
	return l.orErrors(errs)
}

// newRedisLimiter returns the limiter even if there are faults, to find those of its first policy too.
func newRedisLimiter(rdb redis.UniversalClient, opts []Option) (*Limiter, []error) {
	defaults, errs := newConfig(opts)
	if redisstore.IsNil(rdb) {
		errs = append(errs, errors.New("ginlimit: the Redis client is nil"))
	}
	store := redisstore.New(rdb, redisstore.Config{
		Prefix: defaults.prefix, Timeout: defaults.timeout, Log: defaults.logger, Process: "P" + rand.Text()[:maxProcess], Sources: sources(),
	})
	l := newLimiter(defaults, store, FromRedis)
	clock := clocktrust.New(defaults.trustClock) // of which each learns from the other
	l.denied = denycache.New(defaults.denyEntries, clock)
	l.leases = lease.New(clock)
	l.local = memory.New(LocalBuckets)
	l.slots = inflight.New(store.Report)
	return l, errs
}

// NewLocal returns a limiter whose buckets are in this process alone.
//
// It remembers the [LocalBuckets] buckets and windows that take longest to be full; a forgotten one is full. The log of a
// [SlidingWindow] is exact up to 8,192 entries; of more it merges two into the later one, so that it may refuse for
// longer. All logs together take up to 8 MiB; beyond that, those that end soonest are forgotten. The options are those of
// [NewLimiter], and so is the error, but for options that have no effect without Redis: [WithPrefix], [WithTimeout], [WithDenyMemory],
// [WithReplicas], [WithKeySecret], [WithFailure] and [WithLease] are errors. A policy of the limiter may have a WithFailure and a
// WithLease, so that the same routes run with and without Redis.
func NewLocal(opts ...Option) (*Limiter, error) {
	defaults, errs := newConfig(opts)
	errs = append(errs, defaults.misused(redisOptions, true, "%s has no effect without Redis: NewLocal does not take it")...)
	store := localStore{memory.New(LocalBuckets), inflight.New(nil)}
	l := newLimiter(defaults, store, FromLocal)
	l.slots = store.slots
	return l.orErrors(errs)
}

func newLimiter(defaults config, s store, source Source) *Limiter {
	return &Limiter{
		defaults: defaults, store: s, source: source, keys: clientkey.NewText(defaults.secret), closed: make(chan struct{}),
	}
}

// orErrors returns the limiter, or all faults, those of its policies' defaults among them.
func (l *Limiter) orErrors(errs []error) (*Limiter, error) {
	_, err := l.policy(Limit{Rate: -1}, nil)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	return l, nil
}

// Close ends the limiter: it makes no more decisions, every Wait returns, and it waits for decisions in flight.
// Then leased tokens that were not used are given back, and Redis learns which slots are free. Slots that are still held
// (see [WithConcurrency]) are free for others 10 s later, so close the limiter when its requests have ended. The Redis
// client stays open, as it is the caller's. Close may be called more than once.
//
// If Redis answers, Close takes as long as the decisions in flight and two round trips. If Redis hangs, it waits at most a
// second, or four times [WithTimeout] if that is longer, for decisions that hold slots, take tokens ahead or may have to give
// back; then a timeout each for leases and slots; then a second, or a timeout if that is longer, for every other call.
// With the default timeout that is 2.2 s in the worst case, and 1.2 s unless the client's hooks hang too. Calls that still
// hang then end with the client's own timeouts, or with the client.
func (l *Limiter) Close() error {
	l.close.Do(func() {
		if l.store != nil {
			close(l.closed)
			l.background.close(max(closeTimeout, closeTimeouts*l.defaults.timeout))
			l.returnLeases() // those that a decision in flight took ahead among them
			l.closeSlots()
			l.store.Close()
		}
	})
	return nil
}

// Ping reports whether Redis answers, for readiness checks: every master of a cluster and every shard of a ring, within
// [WithTimeout]. A limiter of [NewLocal] needs none. The error wraps [ErrUnavailable] and names the cause, or is the end of ctx.
// It takes no part in decisions: those go on by [WithFailure] without Redis, so an application that can do with that is ready
// without it.
func (l *Limiter) Ping(ctx context.Context) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	store, ok := l.store.(*redisstore.Store)
	if !ok {
		return nil
	}
	within, cancel := context.WithTimeout(context.Background(), l.defaults.timeout)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	lent := dispatch.Lend(within, ctx) // the client may go on after the end
	defer lent.End()
	err := store.Ping(lent)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ended(ctx)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// Allow takes one token. It is short for AllowN with n = 1.
//
// Keys of these methods and of policies are one space: a key that comes from a client goes through [Key], with a name of
// its own.
func (l *Limiter) Allow(ctx context.Context, key string, limits ...Limit) (Result, error) {
	return l.AllowN(ctx, key, 1, limits...)
}

// AllowN takes n tokens, or none: of every limit, or of none.
//
// An n above a limit's Burst is refused with RetryAfter below 0. An n below 1 is an error.
// Use [Limiter.AllowUpTo] if fewer than n are of use too.
func (l *Limiter) AllowN(ctx context.Context, key string, n int, limits ...Limit) (Result, error) {
	s, err := l.subject(key, n, limits)
	if err != nil {
		return Result{}, err
	}
	defer l.putBack(s)
	o := l.defaults.observe("")
	res, _, err := l.allow(ctx, &s.subject, n)
	return res, o.end(ctx, l, &s.subject, n, res, err)
}

// AllowUpTo takes as many tokens as there are, up to n.
//
// Of several limits it takes the same number. Result.Granted says how many; Allowed if there was one. RetryAfter is the
// wait for one token. An n below 1 is an error.
func (l *Limiter) AllowUpTo(ctx context.Context, key string, n int, limits ...Limit) (Result, error) {
	s, err := l.subject(key, n, limits)
	if err != nil {
		return Result{}, err
	}
	defer l.putBack(s)
	o := l.defaults.observe("")
	res, err := l.allowUpTo(ctx, &s.subject, n)
	return res, o.end(ctx, l, &s.subject, n, res, err)
}

// Wait takes one token as soon as there is one. It is short for WaitN with n = 1.
func (l *Limiter) Wait(ctx context.Context, key string, limits ...Limit) error {
	return l.WaitN(ctx, key, 1, limits...)
}

// WaitN takes n tokens as soon as there are so many.
//
// It returns at once if the context's deadline comes before the tokens, with an error that wraps
// [context.DeadlineExceeded], and if a limit never allows n tokens, with [ErrInvalidLimit]. An n below 1 is an error.
// Callers of one process that wait for the same key under the same limits are served in order of arrival: the first of them
// tries, and the others wait for their turn. So a deadline that comes before the tokens is known to the first only.
//
// With [FailClosed] it goes on through an outage, and tries again a few times a second until the context ends; a try that Redis
// did not answer may have taken the tokens. Otherwise an error of Redis ends it.
func (l *Limiter) WaitN(ctx context.Context, key string, n int, limits ...Limit) error {
	s, err := l.subject(key, n, limits)
	if err != nil {
		return err
	}
	defer l.putBack(s)
	o := l.defaults.observe("")
	res, err := l.wait(ctx, &s.subject, n)
	return waited(res, n, o.end(ctx, l, &s.subject, n, res, err))
}

// Peek tells what one token would meet, and takes nothing: Granted is 0.
func (l *Limiter) Peek(ctx context.Context, key string, limits ...Limit) (Result, error) {
	s, err := l.subject(key, 1, limits)
	if err != nil {
		return Result{}, err
	}
	defer l.putBack(s)
	return l.peek(ctx, ctx, &s.subject)
}

// Refund gives n tokens back, to every limit.
//
// It never fills a bucket above full. Of a [SlidingWindow] it gives back what was taken last. It does not shorten a
// [Limiter.Block]: during one, it fills a bucket up to where the first token comes when the block ends. An n below 1 is an
// error.
//
// It gives back what it is told to, also what was taken long ago and has flowed back meanwhile: as many more may be taken. If
// those tokens may come back otherwise too, use [Limiter.Reserve] or [WithRefund], which give nothing back twice. If Redis is down it returns [ErrUnavailable], and has given back in this process.
func (l *Limiter) Refund(ctx context.Context, key string, n int, limits ...Limit) error {
	s, err := l.subject(key, n, limits)
	if err != nil {
		return err
	}
	defer l.putBack(s)
	return l.refund(ctx, &s.subject, n)
}

// Block denies the key every token for d, in every process.
//
// It works at once. Requests that cost nothing pass (see [WithCost]). The time is rounded up to a millisecond. After it
// there is one token, unless the bucket was emptier: a block never makes a token come sooner. The bucket regains the rest
// at its rate; a window has what it would have without the block. Neither another block nor a [Limiter.Refund] shortens a
// block, only [Limiter.Reset] ends it. If the limit is raised during a block, RetryAfter for several tokens may be too long.
//
// A d of zero or less is an error, and so are unlimited limits alone, which have no bucket to block. So is a d whose level would pass 2^53 units: thousands of years for most limits, ten days for
// 10,000,019 per second, less if the Burst is nearly that; and of a calendar quota one that lasts longer than 31 periods after
// this one.
//
// If Redis is down it returns [ErrUnavailable], and the block holds in this process all the same, with [FailLocal].
//
// It blocks the buckets of these limits, as the limiter's algorithm counts them. To block a policy's client, use
// [Policy.Block], which knows its limits and algorithm.
func (l *Limiter) Block(ctx context.Context, key string, d time.Duration, limits ...Limit) error {
	s, err := l.subject(key, 1, limits)
	if err != nil {
		return err
	}
	defer l.putBack(s)
	return l.block(ctx, &s.subject, d)
}

// Reset fills the key's buckets up and ends a block.
//
// If Redis is down it returns [ErrUnavailable], and has done so in this process all the same.
func (l *Limiter) Reset(ctx context.Context, key string, limits ...Limit) error {
	s, err := l.subject(key, 1, limits)
	if err != nil {
		return err
	}
	defer l.putBack(s)
	return l.reset(ctx, &s.subject)
}

// adHoc is the memory of a method's subject under up to two limits. It is used again.
type adHoc struct {
	subject
	set          limitSet
	bucketMemory [2]bucket.Bucket
	limitMemory  [2]Limit
}

// subject returns the subject of a method's arguments, or all faults in them. It is to be put back.
func (l *Limiter) subject(key string, n int, limits []Limit) (*adHoc, error) {
	s, ok := l.adHocs.Get().(*adHoc)
	if !ok {
		s = new(adHoc)
	}
	s.set = limitSet{buckets: s.bucketMemory[:0], limits: s.limitMemory[:0], failure: l.defaults.failure, lease: l.defaults.lease}
	s.subject = subject{client: key, limits: &s.set}
	return s, checkArguments(key, n, s.set.add(l.defaults.algorithm, limits))
}

// putBack keeps a subject's memory for another one, unless a call that was not answered still has it.
func (l *Limiter) putBack(s *adHoc) {
	if s.failure == nil {
		l.adHocs.Put(s)
	}
}

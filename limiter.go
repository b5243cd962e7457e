package ginlimit

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/engine"
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
	// ErrUnavailable says that no decision could be made: by Redis, by a plan, or by a closed limiter.
	ErrUnavailable = engine.ErrUnavailable
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
	defaults   config // of its policies
	engine     *engine.Engine
	adHocs     sync.Pool           // of *adHoc
	warned     atomic.Bool         // that clients can spoof their addresses
	algorithms algorithms          // of its policies
	noClient   redisstore.Throttle // of warnings of keys that no request counts under
}

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
	e := engine.NewRedis(defaults.engine(), rdb, defaults.denyEntries, defaults.trustClock, redisstore.Config{
		Prefix: defaults.prefix, Log: defaults.logger, Process: "P" + rand.Text()[:maxProcess], Sources: sources(),
	})
	return &Limiter{defaults: defaults, engine: e}, errs
}

// engine returns the configuration of the limiter's engine.
func (c *config) engine() engine.Config {
	return engine.Config{Keys: clientkey.NewText(c.secret), Timeout: c.timeout, Replicas: int64(c.replicas)}
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
	l := &Limiter{defaults: defaults, engine: engine.NewLocal(defaults.engine())}
	return l.orErrors(errs)
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
	if l.engine != nil {
		l.engine.Close()
	}
	return nil
}

// Ping reports whether Redis answers, for readiness checks: every master of a cluster and every shard of a ring, within
// [WithTimeout]. A limiter of [NewLocal] needs none. The error wraps [ErrUnavailable] and names the cause, or is the end of ctx.
// It takes no part in decisions: those go on by [WithFailure] without Redis, so an application that can do with that is ready
// without it.
func (l *Limiter) Ping(ctx context.Context) error {
	if l.engine == nil {
		return errNotMade
	}
	return l.engine.Ping(ctx)
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
	s, err := l.ask(key, n, limits)
	if err != nil {
		return Result{}, err
	}
	defer s.putBack()
	return s.end(ctx, n, l.engine.Take(ctx, int64(n), s.asks[:], s.answers[:]))
}

// AllowUpTo takes as many tokens as there are, up to n.
//
// Of several limits it takes the same number. Result.Granted says how many; Allowed if there was one. RetryAfter is the
// wait for one token. An n below 1 is an error.
func (l *Limiter) AllowUpTo(ctx context.Context, key string, n int, limits ...Limit) (Result, error) {
	s, err := l.ask(key, n, limits)
	if err != nil {
		return Result{}, err
	}
	defer s.putBack()
	return s.end(ctx, n, l.engine.TakeUpTo(ctx, int64(n), &s.asks[0], &s.answers[0]))
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
	s, err := l.ask(key, n, limits)
	if err != nil {
		return err
	}
	defer s.putBack()
	res, err := s.end(ctx, n, l.engine.Wait(ctx, int64(n), &s.asks[0], &s.answers[0]))
	return waited(res, n, err)
}

// Peek tells what one token would meet, and takes nothing: Granted is 0.
func (l *Limiter) Peek(ctx context.Context, key string, limits ...Limit) (Result, error) {
	s, err := l.ask(key, 1, limits)
	if err != nil {
		return Result{}, err
	}
	defer s.putBack()
	if err := l.engine.Peek(ctx, s.asks[:], s.answers[:]); err != nil {
		return Result{}, err
	}
	return s.result(), nil
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
	s, err := l.ask(key, n, limits)
	if err != nil {
		return err
	}
	defer s.putBack()
	return s.keepsSet(l.engine.Refund(ctx, int64(n), &s.asks[0]))
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
	s, err := l.ask(key, 1, limits)
	if err != nil {
		return err
	}
	defer s.putBack()
	if err := s.set.checkBlockable(d); err != nil {
		return err
	}
	return s.keepsSet(l.engine.Block(ctx, d, &s.asks[0]))
}

// Reset fills the key's buckets up and ends a block.
//
// If Redis is down it returns [ErrUnavailable], and has done so in this process all the same.
func (l *Limiter) Reset(ctx context.Context, key string, limits ...Limit) error {
	s, err := l.ask(key, 1, limits)
	if err != nil {
		return err
	}
	defer s.putBack()
	return s.keepsSet(l.engine.Reset(ctx, &s.asks[0]))
}

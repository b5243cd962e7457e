package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// Limiter counts keys against limits. It is safe for concurrent use.
//
// [NewLimiter] and [NewLocal] make one; the zero Limiter makes no decision, and says so by an
// error. [Limiter.Policy] and [Limiter.Handler] limit clients under a name. The other methods are
// for keys of your own: a policy without a name.
//
// These methods take the limits to count under, each of another period, and need at least one. A
// key has a bucket for each period and algorithm, so a changed Rate or Burst takes over the bucket
// as it is: what is missing from it takes as long to come back as before. A changed window keeps
// what it has counted.
//
// A decision waits for Redis no longer than [WithTimeout] says, and than its context. A caller that
// finds Redis idle may look at the end of its context only afterwards. If either ends while the
// call is in flight, the tokens may have been taken all the same.
//
// An error means that no decision was made. It wraps [ErrInvalidLimit] or [ErrNoKey] for an
// argument that cannot be used, the context's error if that has ended, and [ErrUnavailable]
// otherwise.
type Limiter struct {
	defaults   config // of its policies
	engine     *engine.Engine
	adHocs     sync.Pool           // of *adHoc
	warned     atomic.Bool         // that clients can spoof their addresses
	algorithms algorithms          // of its policies
	noClient   redisstore.Throttle // of warnings of keys that no request counts under
}

// Close ends the limiter: it makes no more decisions, every Wait returns, and it waits for
// decisions in flight. Then leased tokens that were not used are given back, and Redis learns which
// slots are free. Slots that are still held (see [WithConcurrency]) are free for others 10 s later,
// so close the limiter when its requests have ended. The Redis client stays open, as it is the
// caller's. Close may be called more than once.
//
// If Redis answers, Close takes as long as the decisions in flight and two round trips. If Redis
// hangs, it waits at most a second, or four times [WithTimeout] if that is longer, for decisions
// that hold slots, take tokens ahead or may have to give back; then a timeout each for leases and
// slots; then a second, or a timeout if that is longer, for every other call. With the default
// timeout that is 2.2 s in the worst case, and 1.2 s unless the client's hooks hang too. Calls that
// still hang then end with the client's own timeouts, or with the client.
func (l *Limiter) Close() error {
	if l.engine != nil {
		l.engine.Close()
	}
	return nil
}

// Ping reports whether Redis answers, for readiness checks: every master of a cluster and every
// shard of a ring, within [WithTimeout]. A limiter of [NewLocal] needs none. The error wraps
// [ErrUnavailable] and names the cause, or is the end of ctx. It takes no part in decisions: those
// go on by [WithFailure] without Redis, so an application that can do with that is ready without
// it.
func (l *Limiter) Ping(ctx context.Context) error {
	if l.engine == nil {
		return errNotMade
	}
	return l.engine.Ping(ctx)
}

// Allow takes one token. It is short for AllowN with n = 1.
//
// Keys of these methods and of policies are one space: a key that comes from a client goes through
// [Key], with a name of its own.
func (l *Limiter) Allow(ctx context.Context, key string, limits ...Limit) (Result, error) {
	return l.AllowN(ctx, key, 1, limits...)
}

// AllowN takes n tokens, or none: of every limit, or of none.
//
// An n above a limit's Burst is denied with RetryAfter below 0. An n below 1 is an error.
// Use [Limiter.AllowUpTo] if fewer than n are of use too.
func (l *Limiter) AllowN(ctx context.Context, key string, n int, limits ...Limit) (Result, error) {
	s, err := l.ask(key, n, limits)
	if err != nil {
		return Result{}, err
	}
	defer s.putBack()
	return s.end(ctx, n, l.engine.Take(ctx, int64(n), s.asks[:], s.answers[:]))
}

// AllowUpTo takes up to n tokens, whatever is available.
//
// Of several limits it takes the same number. Result.Granted says how many; Allowed if there was
// one. RetryAfter is the wait for one token. An n below 1 is an error.
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

// WaitN takes n tokens as soon as they are available.
//
// It returns at once if the context's deadline comes before the tokens, with an error that wraps
// [context.DeadlineExceeded], and if a limit never allows n tokens, with [ErrInvalidLimit]. An n
// below 1 is an error. Callers of one process that wait for the same key under the same limits are
// served in order of arrival: the first of them tries, and the others wait for their turn. So a
// deadline that comes before the tokens is known to the first only.
//
// With [FailClosed] it goes on through an outage, and tries again a few times a second until the
// context ends; a try that Redis did not answer may have taken the tokens. Otherwise an error of
// Redis ends it.
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
// It never fills a bucket above full. Of a [SlidingWindow] it gives back what was taken last. It
// does not shorten a [Limiter.Block]: during one, it fills a bucket up to where the first token
// comes when the block ends. An n below 1 is an error.
//
// It gives back what it is told to, also what was taken long ago and has flowed back meanwhile: as
// many more may be taken. If those tokens may come back otherwise too, use [Limiter.Reserve] or
// [WithRefund], which give nothing back twice. If Redis is down it returns [ErrUnavailable], and
// has given back in this process.
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
// It works at once. Requests that cost nothing pass (see [WithCost]). The time is rounded up to a
// millisecond. After it there is one token, unless the bucket was emptier: a block never makes a
// token come sooner. The bucket regains the rest at its rate; a window has what it would have
// without the block. Neither another block nor a [Limiter.Refund] shortens a block, only
// [Limiter.Reset] ends it. If the limit is raised during a block, RetryAfter for several tokens may
// be too long.
//
// A d of zero or less is an error, and so are unlimited limits alone, which have no bucket to
// block. So is a d whose level would pass 2^53 units: thousands of years for most limits, ten days
// for 10,000,019 per second, less if the Burst is nearly that; and of a calendar quota one that
// lasts longer than 31 periods after this one.
//
// If Redis is down it returns [ErrUnavailable], and the block holds in this process all the same,
// with [FailLocal].
//
// It blocks the buckets of these limits, as the limiter's algorithm counts them. To block a
// policy's client, use [Policy.Block], which knows its limits and algorithm.
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

// adHoc is a question of a method about a key or a client, and its memory for up to two limits. It
// is used again.
type adHoc struct {
	limiter      *Limiter
	observed     observation
	set          *limitSet
	asks         [1]engine.Ask
	answers      [1]engine.Answer
	inUse        bool // the store may still have the memory, as it did not answer
	own          limitSet
	bucketMemory [2]bucket.Bucket
	limitMemory  [2]Limit
}

var errNotMade = fmt.Errorf("%w: the limiter was not made by NewLimiter or NewLocal", ErrUnavailable)

// ask returns the question of a method's arguments, or all faults in them. It is to be put back.
func (l *Limiter) ask(key string, n int, limits []Limit) (*adHoc, error) {
	q := l.adHoc()
	q.own = limitSet{limits: q.limitMemory[:0]}
	q.own.rules.Reuse(q.bucketMemory[:])
	q.set, q.observed = &q.own, observe(l.defaults.observers, "")
	err := checkArguments(key, n, q.own.add(l.defaults.algorithm, limits))
	if err == nil && l.engine == nil {
		err = errNotMade
	}
	q.asks[0] = engine.Ask{
		Client: key, Set: &q.own.rules, Scope: rules.Tokens,
		Failure: engine.Failure(l.defaults.failure), Lease: l.defaults.lease,
	}
	return q, err
}

// adHoc returns memory for a question.
func (l *Limiter) adHoc() *adHoc {
	q, ok := l.adHocs.Get().(*adHoc)
	if !ok {
		q = &adHoc{limiter: l}
	}
	q.answers[0], q.observed, q.inUse = engine.Answer{}, observation{}, false
	return q
}

// putBack keeps the memory of a question for another one, unless the store may still have it.
func (q *adHoc) putBack() {
	if !q.inUse && q.answers[0].Err == nil {
		q.limiter.adHocs.Put(q)
	}
}

// keepsSet returns the error of a change, of which the store may still have the set.
func (q *adHoc) keepsSet(err error) error {
	q.inUse = err != nil
	return err
}

// result returns the Result of the answer.
func (q *adHoc) result() Result { return q.set.result(q.limiter.engine, &q.answers[0]) }

// end records the decision on n tokens, and returns its Result.
func (q *adHoc) end(ctx context.Context, n int, err error) (Result, error) {
	var r Result
	if q.answers[0].Decided {
		r = q.result()
	}
	return q.endWith(ctx, n, r, err)
}

// endWith records a result, and returns it.
func (q *adHoc) endWith(ctx context.Context, n int, r Result, err error) (Result, error) {
	if q.observed.observers != nil {
		a, local := &q.answers[0], q.limiter.engine.IsLocal()
		q.observed.event.Waited = a.Waited
		outcome := outcomeOf(r, Failure(q.asks[0].Failure), local, err)
		q.observed.record(ctx, outcome, n, r.Allowed, r, failure{err: err, store: a.Err})
	}
	return r, err
}

// waited returns the error of a Wait from the result and the error of its last try.
func waited(res Result, n int, err error) error {
	if err == nil && !res.Allowed {
		return fmt.Errorf("%w: %s never allows %d at once, so there is nothing to wait for", ErrInvalidLimit, res.Limit, n)
	}
	return err
}

// checkArguments reports every error in the arguments that all methods have.
func checkArguments(key string, n int, err error) error {
	if err == nil && key != "" && n >= 1 {
		return nil
	}
	errs := []error{err}
	if key == "" {
		errs = append(errs, fmt.Errorf("%w: the key is empty", ErrNoKey))
	}
	if n < 1 {
		errs = append(errs, fmt.Errorf("%w: a cost of %d; want at least 1", ErrInvalidLimit, n))
	}
	return errors.Join(errs...)
}

// Transition is a change of a circuit breaker's state.
type Transition struct {
	To     string // "open", "half_open" or "closed"
	Reason string // what has opened it, one of the first group of [Event].Reason; "" if it has not opened
}

// Stats are the figures of a limiter. Batches, Decisions, Leased and Transitions count from when it
// was made.
//
// For a limiter of [NewLocal] only Slots, Bans and LocalBuckets are not zero. A closed limiter has
// no LostServers.
type Stats struct {
	Servers      int    // of Redis that decisions are sent to; a client whose servers are not known yet has one
	LostServers  int    // of these, with an open circuit breaker
	Batches      uint64 // sent to Redis
	Decisions    uint64 // in these
	InFlight     int    // batches that are sent and not answered, overdue ones among them
	Queued       int    // decisions that wait for a batch
	Leases       int    // keys of which this process has tokens that it took ahead
	Leased       uint64 // decisions by such tokens
	Slots        int    // held by requests in flight in this process: see [WithConcurrency]
	Bans         int    // of clients that this process has found banned and that last, at most 65,536: see [WithBan]
	Remembered   int    // denials in the deny memory that are still valid
	LocalBuckets int    // in this process, of all algorithms, full ones that are not forgotten yet among them

	Transitions map[Transition]uint64 // of the circuit breakers of all servers; nil if there were none
}

// Stats returns the current figures. It is meant for metrics: each call scans the deny memory, the
// leases and the bans.
func (l *Limiter) Stats() Stats {
	if l.engine == nil {
		return Stats{}
	}
	of := l.engine.Stats()
	s := Stats{
		Servers: of.Redis.Servers, LostServers: of.Redis.Open, Batches: of.Redis.Batches, Decisions: of.Redis.Calls,
		InFlight: of.Redis.InFlight, Queued: of.Redis.Queued,
		Leases: of.Leases, Leased: of.Leased, Slots: of.Slots, Bans: of.Bans,
		Remembered: of.Denials, LocalBuckets: of.Local,
	}
	for t, n := range of.Redis.Transitions {
		if s.Transitions == nil {
			s.Transitions = map[Transition]uint64{}
		}
		s.Transitions[Transition(t)] = n
	}
	return s
}

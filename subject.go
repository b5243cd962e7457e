package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/fifo"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// subject is a client under its limits, and what a decision leaves for whoever asked for it.
type subject struct {
	keyName string // what the keys of its policy begin with; "" for the methods of a Limiter
	client  string
	limits  *limitSet
	status  *limitStatuses // of its limits after the decision; nil if it is not wanted
	receipt *receipt       // of what the decision took; nil if that is not wanted
	failure error          // of the last call about it that was not answered: it may still be; nil if all were
	waited  time.Duration  // for tokens or a slot
	bans    bucket.Bans    // which refusals ban the client

	acquires bool  // it takes a slot too, if there are slots
	slot     int64 // the attempt that has taken one; 0 is none
	trial    bool  // it is the slots of a dry run
}

// static is that of its limits. It adds the status of a limit that prohibits.
func (s *subject) static(n int) (Result, bool) {
	res, ok := s.limits.static(n)
	if ok && !res.Allowed && s.status != nil {
		s.status.addProhibited(s.limits)
	}
	return res, ok
}

// What follows is what the methods of Limiter and Policy have in common: each acts on one subject, whose arguments are
// checked.

// allow decides on all n tokens or none.
func (l *Limiter) allow(ctx context.Context, s *subject, n int) (Result, uint64, error) {
	if err := l.ready(ctx); err != nil {
		return Result{}, 0, err
	}
	under := s.guarded()
	if res, ok := under.static(n); ok {
		return res, 0, nil
	}
	if s.acquires && s.limits.guards != nil { // Close would not tell Redis how its attempt ends
		if !l.background.begin() {
			return Result{}, 0, errClosed()
		}
		defer l.background.all.Done()
	}
	c := l.call(takeAll(under.limits, n), under)
	defer l.release(c)
	defer l.attempt(c, s)()
	res, err := l.decide(ctx, ctx, c, under)
	s.failure = under.failure
	l.settleAttempt(c, s, res, err)
	if err != nil {
		return Result{}, c.Hash, err
	}
	return allOrNone(res, n), c.Hash, nil
}

// takeAll returns the Op that takes n tokens or none. It only looks for 0 tokens, and for more than there ever are.
func takeAll(limits *limitSet, n int) bucket.Op {
	switch {
	case n == 0:
		return bucket.Peek(1)
	case int64(n) > limits.burst():
		return bucket.Peek(int64(n))
	}
	return bucket.Op{Verb: bucket.Take, Charges: 1, N: int64(n)}
}

// allOrNone is the Result of [takeAll]: a cost of 0 is allowed, whatever is left.
func allOrNone(res Result, n int) Result {
	if n == 0 {
		res.Allowed, res.RetryAfter = true, 0
	}
	return res
}

// allowUpTo decides on as many tokens as there are, up to n.
func (l *Limiter) allowUpTo(ctx context.Context, s *subject, n int) (Result, error) {
	if err := l.ready(ctx); err != nil {
		return Result{}, err
	}
	under := s.guarded()
	if res, ok := under.static(n); ok {
		return res, nil
	}
	c := l.call(bucket.Op{Verb: bucket.Take, Charges: min(int64(n), under.limits.burst()), N: 1}, under)
	defer l.release(c)
	res, err := l.decide(ctx, ctx, c, under)
	s.failure = under.failure
	return res, err
}

// outagePause is the pause before a Wait tries again after Redis did not answer.
const outagePause = 200 * time.Millisecond

// maxSleep is the longest pause between two tries of a Wait: another process may have given tokens back.
const maxSleep = 10 * time.Second

// wait takes n tokens as soon as there are so many, and returns the Result of the last try. A refusal without an error
// never ends.
//
// Of the callers in this process that wait for the same tokens, only the first tries; the others follow in order of arrival.
func (l *Limiter) wait(ctx context.Context, s *subject, n int) (res Result, err error) {
	if err := l.ready(ctx); err != nil {
		return res, err
	}
	if res, ok := s.guarded().static(n); ok {
		return res, nil
	}
	s.bans = bucket.NoBans // a try is no refusal
	queue := l.queueOf(s)
	first := l.waiting.Len(queue) == 0 || int64(n) > s.limits.burst() // of the latter, the answer is known
	if first {
		if res, _, err = l.allow(ctx, s, n); err == nil && (res.Allowed || res.RetryAfter < 0) || err != nil && !l.waitsOn(s, err) {
			return res, err
		}
	}
	tried := time.Now()
	deadline, limited := ctx.Deadline()
	if next := l.waiting.Next(queue); limited && deadline.Before(next) { // of the first
		return res, errTooLate()
	}
	leave, wake, _ := l.waiting.Join(ctx, l.closed, queue, math.MaxInt)
	s.waited += time.Since(tried)
	if leave != nil {
		defer leave()
	}
	next := tried.Add(res.RetryAfter)
	// If others came at the same moment and had their turn before, its answer is old: tokens may have been given back since.
	if !first || !l.waiting.Next(queue).IsZero() || !time.Now().Before(next) {
		next, err = tried, nil
	}
	for {
		if err != nil {
			next = time.Now().Add(outagePause)
		} else if limited && deadline.Before(next) {
			return res, errTooLate()
		}
		l.waiting.Expect(queue, next)
		if err := s.sleep(ctx, l, min(maxSleep, time.Until(next)), wake); err != nil {
			return res, err
		}
		s.limits = s.limits.now() // a calendar period may be over
		if res, _, err = l.allow(ctx, s, n); err == nil && (res.Allowed || res.RetryAfter < 0) || err != nil && !l.waitsOn(s, err) {
			return res, err
		}
		next = time.Now().Add(res.RetryAfter)
	}
}

// waitsOn reports whether a Wait goes on after an error: through an outage in which nobody else may decide.
func (l *Limiter) waitsOn(s *subject, err error) bool {
	return s.limits.failure == FailClosed && !redisstore.IsReply(err) && !errors.Is(err, dispatch.ErrClosed) && errors.Is(err, ErrUnavailable)
}

// errTooLate is the error of a Wait whose context ends before there are tokens.
func errTooLate() error {
	return fmt.Errorf("ginlimit: the tokens come after the deadline: %w", context.DeadlineExceeded)
}

// changed forgets the denials of a key, and makes the callers that wait for its tokens try again, as Redis was asked to change its
// buckets, or this process has.
func (l *Limiter) changed(key []byte, hash uint64, err error) {
	l.denied.Forget(key, hash, mayStillHappen(err))
	if !l.waiting.Empty() {
		l.waiting.Wake(string(key))
	}
}

// queueOf names the queue of the callers that wait for the same tokens: of the same buckets, down to the same floor, under the
// same ban, and with the same answer to an outage.
func (l *Limiter) queueOf(s *subject) fifo.Name {
	text := strconv.AppendUint(nil, uint64(s.limits.failure), 10)
	buckets := s.guarded().limits.buckets
	for i := range buckets {
		b := &buckets[i]
		id := b.ID
		if b.Ends != 0 { // callers of several periods keep their order
			id = id[:strings.LastIndexByte(id, ':')]
		}
		text = strconv.AppendQuote(append(text, ' '), id)
		for _, n := range [...]int64{b.Cost, b.Drain, b.Capacity} {
			text = strconv.AppendInt(append(text, ' '), n, 10)
		}
	}
	return fifo.Name{Key: string(l.keys.Append(nil, s.keyName, s.client)), Of: string(text)}
}

// sleep returns after a time, or when it is woken. The error is that the context or the limiter ended before.
func (s *subject) sleep(ctx context.Context, l *Limiter, d time.Duration, wake <-chan struct{}) error {
	timer, start := time.NewTimer(d), time.Now()
	defer func() {
		timer.Stop()
		s.waited += time.Since(start)
	}()
	select {
	case <-timer.C:
		return nil
	case <-wake:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	case <-l.closed:
		return errClosed()
	}
}

// waited returns the error of a Wait from that of its last try.
func waited(res Result, n int, err error) error {
	if err == nil && !res.Allowed {
		return fmt.Errorf("%w: %s never allows %d at once, so there is nothing to wait for", ErrInvalidLimit, res.Limit, n)
	}
	return err
}

// peek looks at what one token would meet. The store is given less time than the caller has if within ends before ctx.
func (l *Limiter) peek(ctx, within context.Context, s *subject) (Result, error) {
	if err := l.ready(ctx); err != nil {
		return Result{}, err
	}
	s.acquires = true // to tell of slots
	under := s.guarded()
	if res, ok := under.static(0); ok {
		return res, nil
	}
	c := l.call(bucket.Peek(1), under)
	defer l.release(c)
	defer l.attempt(c, s)()
	return l.decide(ctx, within, c, under)
}

// refund gives n tokens back.
func (l *Limiter) refund(ctx context.Context, s *subject, n int) error {
	op := bucket.Op{Verb: bucket.Give, N: min(int64(n), bucket.MaxUnits), Records: bucket.WithRecords}
	return l.change(ctx, s, op)
}

// block denies every token for d.
func (l *Limiter) block(ctx context.Context, s *subject, d time.Duration) error {
	switch {
	case d <= 0:
		return fmt.Errorf("%w: a block of %s; want more than zero", ErrInvalidLimit, d)
	case len(s.limits.buckets) == 0 && !s.limits.denies:
		return fmt.Errorf("%w: %s is never counted, so it has no bucket to block", ErrInvalidLimit, s.limits.unlimited)
	}
	if err := s.limits.checkBlock(d); err != nil {
		return err
	}
	s.limits = s.limits.withPeriods(time.Now().Add(d))
	return l.change(ctx, s, bucket.Op{Verb: bucket.Block, N: milliseconds(d)})
}

// reset fills the buckets up and ends a block.
func (l *Limiter) reset(ctx context.Context, s *subject) error {
	if s.limits.ends != 0 { // it ends a block of later periods too
		s.limits = s.limits.withPeriods(time.UnixMilli(math.MaxInt64 / 2))
	}
	return l.change(ctx, s.guarded(), bucket.Op{Verb: bucket.Reset, N: 1, Records: bucket.WithRecords})
}

// change has an Op done that has no Result.
//
// A block and a reset are also done in this process, to hold in an outage. In an outage a refund is too.
func (l *Limiter) change(ctx context.Context, s *subject, op bucket.Op) error {
	if err := l.ready(ctx); err != nil || len(s.limits.buckets) == 0 {
		return err
	}
	c := l.call(op, s)
	defer l.release(c)
	within, cancel := context.WithTimeout(ctx, l.defaults.timeout+l.defaults.timeout/10)
	defer cancel()
	began := time.Now()
	err := l.do(within, c)
	s.failure = err
	if op.Verb == bucket.Reset {
		l.bans.note(c.Hash, 0)
		if err == nil {
			l.resetsOf(c.Hash).add(began, "", c.Buckets, c.States)
		}
	}
	l.changed(c.Key, c.Hash, err)
	if l.local != nil && (err != nil || op.Verb != bucket.Give) {
		share := s.limits.shareOf(l.defaults.replicas)
		for i := range share.buckets {
			if op.Verb == bucket.Block {
				op.N = min(op.N, share.buckets[i].MaxBlock())
			}
		}
		states := make([]bucket.State, len(share.buckets))
		l.local.Do(c.Key, share.buckets, op, states)
		if op.Verb == bucket.Reset {
			l.resetsOf(c.Hash).add(began, inOutage, share.buckets, states)
		}
	}
	if err != nil {
		return unavailable(ctx, err)
	}
	return nil
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

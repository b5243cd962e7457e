package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// subject is a client under its limits, and what a decision leaves for whoever asked for it.
type subject struct {
	keyName string // what the keys of its policy begin with; "" for the methods of a Limiter
	client  string
	limits  *limitSet
	status  *limitStatuses // of its limits after the decision; nil if it is not wanted
	receipt *receipt       // of what the decision took; nil if that is not wanted
	failed  bool           // a call about it was not answered: it may still be
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
	if res, ok := s.static(n); ok {
		return res, 0, nil
	}
	c := l.call(takeAll(s.limits, n), s)
	defer l.release(c)
	res, err := l.decide(ctx, ctx, c, s)
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
	if res, ok := s.static(n); ok {
		return res, nil
	}
	c := l.call(bucket.Op{Verb: bucket.Take, Charges: min(int64(n), s.limits.burst()), N: 1}, s)
	defer l.release(c)
	return l.decide(ctx, ctx, c, s)
}

// wait takes n tokens as soon as there are so many, and returns the Result of the last try. A refusal without an error
// never ends.
func (l *Limiter) wait(ctx context.Context, s *subject, n int) (Result, error) {
	for {
		res, _, err := l.allow(ctx, s, n)
		if err != nil || res.Allowed || res.RetryAfter < 0 {
			return res, err
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < res.RetryAfter {
			return res, fmt.Errorf("ginlimit: the tokens come after the deadline: %w", context.DeadlineExceeded)
		}
		timer := time.NewTimer(res.RetryAfter)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return res, ended(ctx)
		case <-l.closed:
			timer.Stop()
			return res, errClosed()
		}
	}
}

// waited returns the error of a Wait from that of its last try.
func waited(res Result, n int, err error) error {
	if err == nil && !res.Allowed {
		return fmt.Errorf("%w: %s never allows %d at once, so there is nothing to wait for", ErrInvalidLimit, res.Limit, n)
	}
	return err
}

// peek looks at what one token would meet.
func (l *Limiter) peek(ctx context.Context, s *subject) (Result, error) {
	if err := l.ready(ctx); err != nil {
		return Result{}, err
	}
	if res, ok := s.static(0); ok {
		return res, nil
	}
	c := l.call(bucket.Peek(1), s)
	defer l.release(c)
	return l.decide(ctx, ctx, c, s)
}

// refund gives n tokens back.
func (l *Limiter) refund(ctx context.Context, s *subject, n int) error {
	return l.change(ctx, s, bucket.Op{Verb: bucket.Give, N: min(int64(n), bucket.MaxUnits)})
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
	return l.change(ctx, s, bucket.Op{Verb: bucket.Block, N: milliseconds(d)})
}

// reset fills the buckets up and ends a block.
func (l *Limiter) reset(ctx context.Context, s *subject) error {
	return l.change(ctx, s, bucket.Op{Verb: bucket.Reset, N: 1})
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
	err := l.do(ctx, c)
	s.failed = err != nil
	l.denied.Forget(c.Key, c.Hash, mayStillHappen(err))
	if l.local != nil && (err != nil || op.Verb != bucket.Give) {
		share := s.limits.shareOf(l.defaults.replicas)
		for i := range share.buckets {
			if op.Verb == bucket.Block {
				op.N = min(op.N, share.buckets[i].MaxBlock())
			}
		}
		l.local.Do(c.Key, share.buckets, op, make([]bucket.State, len(share.buckets)))
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

// receipt tells how the tokens that a charge took from windows are found again, to give back these and no others. A token
// bucket needs none.
type receipt struct {
	sent  time.Time     // when the store was asked for them, at the earliest
	late  time.Duration // how late Redis may do what it is asked
	marks []int64       // of each window, once the charge is made
}

// newReceipt returns a receipt to be filled, or nil if none is needed.
func (l *Limiter) newReceipt(s *limitSet) *receipt {
	if len(s.buckets) == 0 || s.buckets[0].Kind == bucket.Token {
		return nil
	}
	return &receipt{late: 2 * l.defaults.timeout} // it may be queued, and then in flight
}

// fill keeps when a charge was sent and what was found, if that is wanted.
func (r *receipt) fill(sent time.Time, found []bucket.State) {
	if r == nil {
		return
	}
	r.sent, r.marks = sent, make([]int64, len(found))
	for i := range found {
		r.marks[i] = found[i].Mark
	}
}

// marksHere returns the marks of windows in this process.
func (r *receipt) marksHere() []int64 {
	if r == nil {
		return nil
	}
	return r.marks
}

// marksNow returns the marks of windows in Redis. Within a period of the charge, no other window has the same one. There
// is none if the period may be over before Redis gives back, which may be late, and whose clock may be a little faster:
// then nothing is given back, as it has left by itself or is about to.
func (r *receipt) marksNow(windows []bucket.Bucket, now time.Time) []int64 {
	if r == nil {
		return nil
	}
	marks := make([]int64, len(windows))
	for i := range windows {
		passed, whole := now.Sub(r.sent), millis(windows[i].Period)
		if marks[i] = r.marks[i]; passed+passed/1024+min(r.late, max(2*DefaultTimeout, whole/2)) >= whole {
			marks[i] = bucket.NoMark
		}
	}
	return marks
}

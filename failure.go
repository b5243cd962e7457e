package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// Failure chooses what happens when Redis makes no decision: it is unavailable, late, or refuses.
type Failure uint8

const (
	// FailLocal has this process decide, by buckets of its own that hold and regain its share of each limit (see
	// [WithReplicas]). They start full, and are kept when Redis is back, so that an outage that follows soon
	// gives nobody another burst. A decision on more tokens than the share holds is made when it is full, and
	// leaves it as much longer to fill up.
	FailLocal Failure = iota
	// FailOpen allows, as if every bucket were full, and also what is blocked.
	FailOpen
	// FailClosed makes no decision: the error is [ErrUnavailable], which a handler answers with 503.
	FailClosed
)

// String returns the failure in one word, or "unknown".
func (f Failure) String() string {
	names := [...]string{FailLocal: "local", FailOpen: "open", FailClosed: "closed"}
	if int(f) < len(names) {
		return names[f]
	}
	return "unknown"
}

// fallback decides on a call on which the store has not decided. The call may still be on its way: of it, only what its caller
// has set is read, and the Op is passed apart, as what is asked of Redis may be more.
func (l *Limiter) fallback(ctx context.Context, c *dispatch.Call, op bucket.Op, s *subject, err error) (Result, error) {
	s.failure = err
	if ctx.Err() != nil || l.local == nil || s.limits.failure == FailClosed || errors.Is(err, dispatch.ErrClosed) {
		return Result{}, unavailable(ctx, err)
	}
	var res Result
	if s.limits.failure == FailOpen {
		res = s.limits.result(make([]bucket.State, len(s.limits.buckets)), op, s.status)
	} else {
		res = l.decideLocally(c, op, s, err)
	}
	res.Source = FromLocal
	return res, nil
}

// decideLocally decides on a call by this process' share of its limits. Whoever wants more tokens at once than the share
// ever holds gets them when it is full, and the share then owes them.
func (l *Limiter) decideLocally(c *dispatch.Call, op bucket.Op, s *subject, err error) Result {
	share := s.limits.shareOf(l.defaults.replicas)
	if op.Charges > 1 {
		op.Charges = min(op.Charges, share.burst())
	}
	states, sent := make([]bucket.State, len(share.buckets)), time.Now()
	doHere(l.local, l.slots, c, share.buckets, op, states, mayStillHappen(err) && !errors.Is(err, dispatch.ErrOpen))
	s.receipt.fill(sent, states)
	res := share.result(states, op, s.status)
	if res.RetryAfter < 0 && op.N <= s.limits.burst() { // it is more than the share of a calendar period, but not of the whole
		res.RetryAfter = time.Until(time.UnixMilli(s.limits.ends))
	}
	return res
}

// unavailable is the error if no decision was made: the end of the caller's context, or [ErrUnavailable].
func unavailable(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ended(ctx)
	case errors.Is(err, context.DeadlineExceeded): // not the caller's
		err = dispatch.ErrLate
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

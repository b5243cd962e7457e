package ginlimit

import (
	"context"
	"errors"
	"fmt"
)

// Failure tells what becomes of decisions that Redis does not make.
//
// It does not where it is lost, late, or refuses.
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

// without decides on an ask on which the store has not decided.
func (l *Limiter) without(ctx context.Context, a *ask, r *rules, err error) (Result, error) {
	if ctx.Err() != nil || l.local == nil || r.failure == FailClosed || err == errLimiterClosed {
		return Result{}, unavailable(ctx, err)
	}
	var res Result
	if r.failure == FailOpen {
		res = r.result(make([]state, len(r.buckets)), a.charges, a.n, a.told)
	} else {
		res = l.decideLocally(ctx, a, r)
	}
	res.Source = FromLocal
	return res, nil
}

// decideLocally decides on an ask by this process' share of its limits. Whoever wants more tokens at once than the
// share ever holds gets them when it is full, and the share then owes them.
func (l *Limiter) decideLocally(ctx context.Context, a *ask, r *rules) Result {
	share := r.shareOf(l.defaults.replicas)
	own := l.ask(opDecide, share) // a may be on its way still
	defer l.release(own)
	own.key = append(own.key[:0], a.key...)
	own.charges, own.n = a.charges, a.n
	if a.charges > 1 {
		own.charges = min(a.charges, share.burst())
	}
	_ = l.local.do(ctx, own) // it has no error
	res := share.result(own.states, own.charges, own.n, a.told)
	if a.n > r.burst() {
		res.Allowed, res.RetryAfter = false, never
	}
	return res
}

// changeLocally does to the local buckets what was to be done to those of the store.
func (l *Limiter) changeLocally(ctx context.Context, a *ask, r *rules) {
	share := r.shareOf(l.defaults.replicas)
	own := l.ask(a.op, share)
	defer l.release(own)
	own.key = append(own.key[:0], a.key...)
	own.charges, own.block = a.charges, a.block
	if a.op == opBlock {
		for i := range share.buckets {
			own.states[i].level = share.buckets[i].blockLevelUpTo(a.block)
		}
	}
	_ = l.local.do(ctx, own) // it has no error
}

// unavailable is the error where no decision was made: the end of the caller's context, or [ErrUnavailable].
func unavailable(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ended(ctx)
	case errors.Is(err, context.DeadlineExceeded): // not the caller's
		err = errLate
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

package ginlimit

import (
	"context"
	"errors"
	"fmt"
)

// decide has an ask answered and derives the Result from the states found.
func (l *Limiter) decide(ctx context.Context, a *ask, r *rules) (Result, error) {
	return l.decideWithin(ctx, ctx, a, r)
}

// decideWithin is decide, but the store is given less time than the caller has.
func (l *Limiter) decideWithin(ctx, within context.Context, a *ask, r *rules) (Result, error) {
	if err := l.ready(ctx); err != nil {
		return Result{}, err
	}
	if l.denied.knows(a) {
		res := r.result(a.states, a.charges, a.n, a.told)
		res.Source = FromMemory
		return res, nil
	}
	if err := l.store.do(within, a); err != nil {
		return l.without(ctx, a, r, err)
	}
	res := r.result(a.states, a.charges, a.n, a.told)
	res.Source = l.source
	if res.Allowed {
		l.denied.drop(a)
	} else {
		l.denied.remember(a)
	}
	return res, nil
}

// change has an ask done that has no Result.
//
// A block and a reset are also done in this process, to hold should Redis be lost; where it is, so is a refund.
func (l *Limiter) change(ctx context.Context, a *ask, r *rules, key string) error {
	defer l.release(a)
	if err := l.ready(ctx); err != nil {
		return err
	}
	l.about(a, "", key)
	err := l.store.do(ctx, a)
	l.denied.forget(a, err != nil && !isRefusal(err))
	if l.local != nil && (err != nil || a.op != opDecide) {
		l.changeLocally(ctx, a, r)
	}
	if err != nil {
		return unavailable(ctx, err)
	}
	return nil
}

// ready reports why the limiter makes no decision.
func (l *Limiter) ready(ctx context.Context) error {
	select {
	case <-l.closed:
		return errClosed()
	default:
	}
	if l.store == nil {
		return errNotMade
	}
	if ctx.Err() != nil {
		return ended(ctx)
	}
	return nil
}

// settle returns a Result that needs no bucket.
func (l *Limiter) settle(ctx context.Context, res Result) (Result, error) {
	if err := l.ready(ctx); err != nil {
		return Result{}, err
	}
	return res, nil
}

// ended says that the caller's context ended before there was a decision.
func ended(ctx context.Context) error { return fmt.Errorf("ginlimit: %w", ctx.Err()) }

var errNotMade = fmt.Errorf("%w: the limiter was not made by NewLimiter or NewLocal", ErrUnavailable)

var errLimiterClosed = errors.New("the limiter is closed")

func errClosed() error { return fmt.Errorf("%w: %w", ErrUnavailable, errLimiterClosed) }

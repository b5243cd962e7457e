package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ginlimit/ginlimit/internal/engine"
)

// Reservation is tokens taken for work whose cost is known only afterwards.
//
// Take an estimate with [Policy.Reserve] or [Limiter.Reserve], do the work if [Reservation.Result] allows it, and call
// Settle with what it took, or Cancel. A Reservation that is never settled stays as it was estimated. It may be used by
// several goroutines.
type Reservation struct {
	limiter *Limiter
	taken   engine.Charge
	result  Result
	settled atomic.Bool
}

// Reserve takes n tokens of a key, or none, to be settled later. n is at least 1; errors are those of [Limiter.AllowN]. An
// error comes without a Reservation, a refusal with one that has nothing to settle.
func (l *Limiter) Reserve(ctx context.Context, key string, n int, limits ...Limit) (*Reservation, error) {
	if l == nil || l.engine == nil {
		return nil, errNotMade
	}
	q, err := l.ask(key, n, limits) // not put back: the Reservation keeps its limits
	if err != nil {
		return nil, err
	}
	return q.reserve(ctx, n)
}

// Reserve takes n tokens of a client, or none, to be settled later. See [Limiter.Reserve].
func (p *Policy) Reserve(ctx context.Context, client string, n int) (*Reservation, error) {
	q, err := p.observed(ctx, client, n)
	if err != nil {
		return nil, err
	}
	return q.reserve(ctx, n)
}

func (q *adHoc) reserve(ctx context.Context, n int) (*Reservation, error) {
	q.asks[0].Settles = true
	res, err := q.end(ctx, n, q.limiter.engine.Take(ctx, int64(n), q.asks[:], q.answers[:]))
	if err != nil {
		return nil, err
	}
	return &Reservation{limiter: q.limiter, taken: q.answers[0].Charge, result: res}, nil
}

// Result returns the decision on the estimate; that of a nil Reservation is zero.
func (r *Reservation) Result() Result {
	if r == nil {
		return Result{}
	}
	return r.result
}

// Settle replaces the estimate by what the work took. It does so once; further calls, of Cancel too, do nothing and return nil.
//
// If actual is less, the rest is given back, as far as it still counts: what has flowed back into a token bucket by itself, or
// was given back by a [Limiter.Reset], is not given back again. A bucket drains by what was taken first; where it is not
// certain how much is left, as other requests gave back meanwhile, the least that may be left is given back. The time is
// this process' clock, and Redis' may be faster by a thousandth. If it is more, the difference is charged, though there
// may be no room for it: a limit goes into debt up to another burst of it, and what passes that is not charged. A window's debt
// ends with the window. A refused Reservation has nothing to settle. One that was decided without Redis is settled in this process.
//
// A negative actual is [ErrInvalidLimit], and the end of ctx before the call, or a closed limiter, is the error of
// [Limiter.Allow]; all of them change nothing. [ErrUnavailable] says that Redis did not answer: the estimate stands, or Redis
// settles it late. It is not tried again, as that could charge or give back twice.
func (r *Reservation) Settle(ctx context.Context, actual int) error {
	switch {
	case r == nil || r.limiter == nil:
		return errNotReserved
	case actual < 0:
		return fmt.Errorf("%w: settled with %d tokens; want at least 0", ErrInvalidLimit, actual)
	}
	if err := r.limiter.engine.Ready(ctx); err != nil {
		return err
	}
	if r.settled.Swap(true) || !r.result.Allowed {
		return nil
	}
	return errors.Join(r.limiter.engine.Settle(ctx, int64(actual), r.taken)...)
}

// Cancel gives the estimate back. It is Settle with 0.
func (r *Reservation) Cancel(ctx context.Context) error { return r.Settle(ctx, 0) }

// errNotReserved is the error of a zero Reservation.
var errNotReserved = fmt.Errorf("%w: the reservation was not made by Reserve", ErrUnavailable)

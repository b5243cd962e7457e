package ginlimit

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// Reservation is tokens taken for work whose cost is known only afterwards.
//
// Take an estimate with [Policy.Reserve] or [Limiter.Reserve], do the work if [Reservation.Result] allows it, and call
// Settle with what it took, or Cancel. A Reservation that is never settled stays as it was estimated. It may be used by
// several goroutines.
type Reservation struct {
	limiter *Limiter
	taken   charge
	result  Result
	settled atomic.Bool
}

// Reserve takes n tokens of a key, or none, to be settled later. n is at least 1; errors are those of [Limiter.AllowN]. An
// error comes without a Reservation, a refusal with one that has nothing to settle.
func (l *Limiter) Reserve(ctx context.Context, key string, n int, limits ...Limit) (*Reservation, error) {
	if l == nil || l.store == nil {
		return nil, errNotMade
	}
	s, err := l.subject(key, n, limits) // not put back: the Reservation keeps it
	if err != nil {
		return nil, err
	}
	o := l.defaults.observe("")
	r, err := l.reserve(ctx, &s.subject, n)
	return r, o.end(ctx, l, &s.subject, n, r.Result(), err)
}

// Reserve takes n tokens of a client, or none, to be settled later. See [Limiter.Reserve].
func (p *Policy) Reserve(ctx context.Context, client string, n int) (*Reservation, error) {
	s, o, err := p.begin(ctx, client, n)
	if err != nil {
		return nil, err
	}
	r, err := p.limiter.reserve(ctx, s, n)
	return r, o.end(ctx, p.limiter, s, n, r.Result(), err)
}

func (l *Limiter) reserve(ctx context.Context, s *subject, n int) (*Reservation, error) {
	s.receipt = l.newReceipt()
	res, _, err := l.allow(ctx, s, n)
	if err != nil {
		return nil, err
	}
	return &Reservation{limiter: l, taken: charge{*s, res.Granted, res.Source}, result: res}, nil
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
	if err := r.limiter.ready(ctx); err != nil {
		return err
	}
	if r.settled.Swap(true) || !r.result.Allowed {
		return nil
	}
	return r.limiter.settle(ctx, &r.taken, actual)
}

// Cancel gives the estimate back. It is Settle with 0.
func (r *Reservation) Cancel(ctx context.Context) error { return r.Settle(ctx, 0) }

// errNotReserved is the error of a zero Reservation.
var errNotReserved = fmt.Errorf("%w: the reservation was not made by Reserve", ErrUnavailable)

// settleEach settles charges at the same time: one timeout is enough for all. It returns the errors.
func (l *Limiter) settleEach(ctx context.Context, taken []charge, actual int) (errs []error) {
	settle := func(i int) error { return l.settle(ctx, &taken[i], actual) }
	var others []<-chan dispatch.Outcome[struct{}]
	for i := 1; i < len(taken); i++ {
		others = append(others, dispatch.Isolate(func() (struct{}, error) { return struct{}{}, settle(i) }))
	}
	if err := settle(0); err != nil {
		errs = append(errs, err)
	}
	for _, other := range others {
		if out := <-other; out.Err != nil {
			errs = append(errs, out.Err)
		}
	}
	return errs
}

// settle has a charge become one of so many tokens.
func (l *Limiter) settle(ctx context.Context, taken *charge, actual int) error {
	set, more := taken.limits, actual-taken.n
	here := taken.source == FromLocal && l.source == FromRedis
	switch {
	case more == 0 || len(set.buckets) == 0 || here && set.failure == FailOpen: // of the last, nothing was taken
		return nil
	case here:
		set = set.shareOf(l.defaults.replicas)
	}
	if more > 0 {
		return l.settleAll(ctx, taken, set, here, bucket.Op{Verb: bucket.Charge, N: int64(more)})
	}
	return l.settleAll(ctx, taken, set, here, l.returnOp(taken, set, here, int64(-more)))
}

// settleAll has an Op done on buckets from which a charge was taken, here or by the store.
func (l *Limiter) settleAll(ctx context.Context, taken *charge, set *limitSet, here bool, op bucket.Op) error {
	if here {
		key := l.keys.Append(nil, taken.keyName, taken.client)
		l.local.Do(key, set.buckets, op, make([]bucket.State, len(set.buckets)))
		l.changed(key, clientkey.Hash(key), nil)
		return nil
	}
	s := taken.subject
	s.limits = set
	c := l.call(op, &s)
	defer l.release(c)
	err := l.do(ctx, c)
	l.changed(c.Key, c.Hash, err)
	if err != nil {
		return unavailable(ctx, err)
	}
	return nil
}

// returnOp returns the Op that gives back the last n of the tokens that were taken.
func (l *Limiter) returnOp(taken *charge, set *limitSet, here bool, n int64) bucket.Op {
	where := ""
	if here {
		where = inOutage
	}
	claims := taken.receipt.claims(set.buckets, int64(taken.n), here || l.source == FromLocal, where)
	return bucket.Op{Verb: bucket.Return, N: n, Claims: claims, Records: bucket.WithRecords}
}

// giveBack returns what was just taken, to the buckets that it was taken from.
func (l *Limiter) giveBack(ctx context.Context, taken *charge) error {
	set, here := taken.limits, taken.source == FromLocal && l.source == FromRedis
	if taken.slot > 0 {
		l.releaseSlot(l.keys.Append(nil, taken.keyName, taken.client), taken.slot)
	}
	if len(set.buckets) == 0 || taken.n == 0 || here && set.failure == FailOpen {
		return nil
	}
	if here {
		set = set.shareOf(l.defaults.replicas)
	}
	op := l.returnOp(taken, set, here, int64(taken.n))
	takenNow(op.Claims, set.buckets, int64(taken.n))
	return l.settleAll(ctx, taken, set, here, op)
}

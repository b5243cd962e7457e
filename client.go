package ginlimit

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// ask returns the question of a method's arguments, or all faults in them. It is to be put back.
func (p *Policy) ask(ctx context.Context, client string, n int) (*adHoc, error) {
	if p == nil || p.limiter == nil {
		return nil, errNoPolicy
	}
	if err := checkArguments(client, n, nil); err != nil {
		return nil, err
	}
	p.warnNoClient(ctx, client)
	limits, err := p.limitsOf(ctx, client)
	if err != nil {
		return nil, err
	}
	q := p.limiter.adHoc()
	q.set, q.asks[0] = limits, p.askOf(client, limits)
	return q, nil
}

// observed is ask of a method that takes tokens, and that observers see. An error of the policy's
// function is an Event too.
func (p *Policy) observed(ctx context.Context, client string, n int) (*adHoc, error) {
	if p == nil || p.limiter == nil {
		return nil, errNoPolicy
	}
	o := observe(p.observers, p.name)
	q, err := p.ask(ctx, client, n)
	if err != nil && client != "" && n > 0 {
		o.record(ctx, OutcomeError, n, false, Result{}, failure{err: err, origin: fromLimitFunc})
	}
	if q != nil {
		q.observed = o
	}
	return q, err
}

// Allow takes one token of a client. It is short for AllowN with n = 1.
func (p *Policy) Allow(ctx context.Context, client string) (Result, error) {
	return p.AllowN(ctx, client, 1)
}

// AllowN takes n tokens of a client, or none. See [Limiter.AllowN].
func (p *Policy) AllowN(ctx context.Context, client string, n int) (Result, error) {
	q, err := p.observed(ctx, client, n)
	if err != nil {
		return Result{}, err
	}
	defer q.putBack()
	return q.end(ctx, n, p.limiter.engine.Take(ctx, int64(n), q.asks[:], q.answers[:]))
}

// AllowUpTo takes up to n tokens of a client, whatever is available. See [Limiter.AllowUpTo].
func (p *Policy) AllowUpTo(ctx context.Context, client string, n int) (Result, error) {
	q, err := p.observed(ctx, client, n)
	if err != nil {
		return Result{}, err
	}
	defer q.putBack()
	return q.end(ctx, n, p.limiter.engine.TakeUpTo(ctx, int64(n), &q.asks[0], &q.answers[0]))
}

// Wait takes one token of a client as soon as there is one. It is short for WaitN with n = 1.
func (p *Policy) Wait(ctx context.Context, client string) error { return p.WaitN(ctx, client, 1) }

// WaitN takes n tokens of a client as soon as they are available. See [Limiter.WaitN].
func (p *Policy) WaitN(ctx context.Context, client string, n int) error {
	q, err := p.observed(ctx, client, n)
	if err != nil {
		return err
	}
	defer q.putBack()
	res, err := q.end(ctx, n, p.limiter.engine.Wait(ctx, int64(n), &q.asks[0], &q.answers[0]))
	return waited(res, n, err)
}

// Peek tells what one token of a client would meet, with [WithConcurrency] together with a slot,
// and takes nothing: Granted is 0.
func (p *Policy) Peek(ctx context.Context, client string) (Result, error) {
	q, err := p.ask(ctx, client, 1)
	if err != nil {
		return Result{}, err
	}
	defer q.putBack()
	q.asks[0].Scope = rules.All
	if p.trial != nil {
		return p.peekTrial(ctx, q)
	}
	if err := p.limiter.engine.Peek(ctx, q.asks[:], q.answers[:]); err != nil {
		return Result{}, err
	}
	return q.result(), nil
}

// peekTrial is [Policy.Peek] of a dry run, with a slot of it.
func (p *Policy) peekTrial(ctx context.Context, q *adHoc) (Result, error) {
	e := p.limiter.engine
	asks, answers := []engine.Ask{q.asks[0], p.trial.askOf(&q.asks[0])}, make([]engine.Answer, 2)
	if err := e.Peek(ctx, asks, answers); err != nil {
		return Result{}, err
	}
	own, slot := q.set.result(e, &answers[0]), p.trial.limits.result(e, &answers[1])
	if own.RetryAfter >= 0 && (!asks[0].Set.Counts(rules.All) || !slot.Allowed && slot.closerThan(own)) {
		own = slot
	}
	return own, nil
}

// Refund gives n tokens back to a client. See [Limiter.Refund].
func (p *Policy) Refund(ctx context.Context, client string, n int) error {
	q, err := p.ask(ctx, client, n)
	if err != nil {
		return err
	}
	defer q.putBack()
	return q.keepsSet(p.limiter.engine.Refund(ctx, int64(n), &q.asks[0]))
}

// Block denies a client every token for d, in every process. See [Limiter.Block]. It blocks the
// buckets of the limits that the client has now: a limit of another period, which [WithLimitFunc]
// returns later, has a bucket of its own.
func (p *Policy) Block(ctx context.Context, client string, d time.Duration) error {
	q, err := p.ask(ctx, client, 1)
	if err != nil {
		return err
	}
	defer q.putBack()
	if err := q.set.checkBlockable(d); err != nil {
		return err
	}
	return q.keepsSet(p.limiter.engine.Block(ctx, d, &q.asks[0]))
}

// Reset fills a client's buckets up, and ends a block and a ban. It leaves slots alone, as their
// requests are in flight.
func (p *Policy) Reset(ctx context.Context, client string) error {
	q, err := p.ask(ctx, client, 1)
	if err != nil {
		return err
	}
	defer q.putBack()
	return q.keepsSet(p.limiter.engine.Reset(ctx, &q.asks[0]))
}

// Reservation is tokens taken for work whose cost is known only afterwards.
//
// Take an estimate with [Policy.Reserve] or [Limiter.Reserve], do the work if [Reservation.Result]
// allows it, and call Settle with what it took, or Cancel. A Reservation that is never settled
// stays as it was estimated. It may be used by several goroutines.
type Reservation struct {
	limiter *Limiter
	taken   engine.Charge
	result  Result
	settled atomic.Bool
}

// Reserve takes n tokens of a key, or none, to be settled later. n is at least 1; errors are those
// of [Limiter.AllowN]. An error comes without a Reservation, a denial with one that has nothing to
// settle.
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
	return &Reservation{limiter: q.limiter, taken: q.answers[0].Charge(&q.asks[0]), result: res}, nil
}

// Result returns the decision on the estimate, or zero for a nil Reservation.
func (r *Reservation) Result() Result {
	if r == nil {
		return Result{}
	}
	return r.result
}

// Settle replaces the estimate by what the work took. It does so once; further calls, of Cancel
// too, do nothing and return nil.
//
// If actual is less, the rest is given back, as far as it still counts: what has flowed back into a
// token bucket by itself, or was given back by a [Limiter.Reset], is not given back again. A bucket
// drains by what was taken first; where it is not certain how much is left, as other requests gave
// back meanwhile, the least that may be left is given back. The time is this process' clock, and
// Redis' may be faster by a thousandth. If it is more, the difference is charged, though there may
// be no room for it: a limit goes into debt up to another burst of it, and what passes that is not
// charged. A window's debt ends with the window. A denied Reservation has nothing to settle. One
// that was decided without Redis is settled in this process.
//
// A negative actual is [ErrInvalidLimit], and the end of ctx before the call, or a closed limiter,
// is the error of [Limiter.Allow]; all of them change nothing. [ErrUnavailable] says that Redis did
// not answer: the estimate stands, or Redis settles it late. It is not tried again, as that could
// charge or give back twice.
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
	if errs := r.limiter.engine.Settle(ctx, int64(actual), r.taken); errs != nil {
		return errs[0]
	}
	return nil
}

// Cancel gives the estimate back. It is Settle with 0.
func (r *Reservation) Cancel(ctx context.Context) error { return r.Settle(ctx, 0) }

// errNotReserved is the error of a zero Reservation.
var errNotReserved = fmt.Errorf("%w: the reservation was not made by Reserve", ErrUnavailable)

// Slot is one of the slots of [WithConcurrency], or a denial.
type Slot struct {
	engine   *engine.Engine
	charge   engine.Charge
	result   Result
	released atomic.Bool
}

// Acquire takes a slot of a client and one token of each limit, or nothing. The policy has
// [WithConcurrency].
//
// If [Slot.Result] allows it, do the work and call Release. A denial comes with a Slot that holds
// nothing, an error without one; for errors see [Limiter.Allow]. With [WithQueue] it waits for
// a slot. A policy without WithConcurrency has a slot for everybody.
func (p *Policy) Acquire(ctx context.Context, client string) (*Slot, error) {
	q, err := p.observed(ctx, client, 1)
	if err != nil {
		return nil, err
	}
	defer q.putBack()
	slot, kept := &Slot{engine: p.limiter.engine}, false
	defer func() { // an observer may panic
		if !kept {
			slot.Release()
		}
	}()
	err = p.acquire(ctx, q, slot)
	if slot.result, err = q.endWith(ctx, 1, slot.result, err); err != nil {
		return nil, err
	}
	kept = true
	return slot, nil
}

// acquire decides on a slot and one token, and fills the slot in.
func (p *Policy) acquire(ctx context.Context, q *adHoc, slot *Slot) error {
	if p.trial != nil {
		d := decision{limits: q.set}
		d.add(p.trial.askOf(&q.asks[0]))
		d.add(q.asks[0])
		err := d.take(ctx, p, 1)
		q.answers[0].Err, q.answers[0].Waited = d.failure(), d.answers[1].Waited
		if err == nil {
			slot.result, slot.charge = d.result(p), d.answers[0].Charge(&d.asks[0])
		}
		return err
	}
	q.asks[0].Scope = rules.All
	d := decision{asks: q.asks[:], answers: q.answers[:]}
	if err := d.take(ctx, p, 1); err != nil {
		return err
	}
	slot.result, slot.charge = q.result(), q.answers[0].Charge(&q.asks[0])
	return nil
}

// Result returns the decision, or zero for a nil Slot.
func (s *Slot) Result() Result {
	if s == nil {
		return Result{}
	}
	return s.result
}

// Release gives the slot back, without waiting for Redis. More than once is once.
func (s *Slot) Release() {
	if s != nil && s.engine != nil && !s.released.Swap(true) {
		s.engine.Release(&s.charge)
	}
}

package ginlimit

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// decision is what a policy decided on a request: on its own key, then on its identities.
type decision struct {
	limits  *limitSet    // of the policy's own key
	asks    []engine.Ask // empty if nobody was asked
	answers []engine.Answer
	request engine.Request

	one struct { // memory for a policy without identities
		asks     [1]engine.Ask
		answers  [1]engine.Answer
		statuses [1]rules.Status
	}
}

// add adds a question.
func (d *decision) add(ask engine.Ask) {
	d.asks, d.answers = append(d.asks, ask), append(d.answers, engine.Answer{})
}

// setOf returns the limits of a question.
func (d *decision) setOf(p *Policy, i int) *limitSet {
	if i == 0 {
		return d.limits
	}
	return p.identities[i-1].limits
}

// ask prepares the questions of a request.
func (d *decision) ask(c *gin.Context, p *Policy, client string, limits *limitSet) error {
	report := rules.ReportDenying
	if p.headers&RateLimitDraft != 0 {
		report = rules.ReportEvery
	}
	own := p.askOf(client, limits)
	tenant, err := p.tenantOfRequest(c)
	if err != nil {
		return err
	}
	if limits.rules.Divided() {
		own.Tenant = tenant
	}
	own.Report, own.Settles = report, p.settleFunc != nil
	if limits.slots > 0 {
		own.Scope = rules.All
	}
	var others []engine.Ask
	for i := range p.identities {
		key, err := keyOf(p.identities[i].key, c)
		if err != nil {
			return err
		}
		others = append(others, engine.Ask{
			Prefix: p.identities[i].prefix, Client: key, Set: p.identities[i].limits.rules.Now(), Scope: rules.All,
			Failure: own.Failure, Settles: own.Settles, Report: report,
		})
	}
	d.limits, d.asks, d.answers = limits, d.one.asks[:0], d.one.answers[:0]
	d.add(own)
	for i := range others {
		d.add(others[i])
	}
	d.answers[0].Statuses = d.one.statuses[:0]
	return nil
}

// take decides on n tokens.
func (d *decision) take(ctx context.Context, p *Policy, n int) error {
	var queue engine.Queue
	if !p.dryRun {
		queue = engine.Queue{Length: p.queue, Wait: p.queueWait}
	}
	for i := range d.asks {
		d.asks[i].N, d.asks[i].Queue = int64(n), queue
	}
	d.request = engine.Request{Asks: d.asks, Answers: d.answers}
	return p.limiter.engine.Take(ctx, &d.request)
}

// result returns the decision as one Result: of the key that denies, else of the key closest to
// exhaustion. Free slots say nothing of that, unless nothing else is counted.
func (d *decision) result(p *Policy) (r Result) {
	found, denied, counted := false, false, false
	degraded := Source(0) // the source of a decision without the store, if there is one
	for i := range d.answers {
		a := &d.answers[i]
		denied = denied || a.Decided && !a.Allowed
		counted = counted || a.Decided && a.Source != engine.FromStatic
		if a.Source == engine.FromLocal || a.Source == engine.FromOpen {
			degraded = sourceOf(p.limiter.engine, a.Source)
		}
	}
	free := false // r is of free slots
	for i := range d.answers {
		a := &d.answers[i]
		if !a.Decided || a.Allowed == denied || counted && !denied && a.Source == engine.FromStatic {
			continue
		}
		this := d.setOf(p, i).result(p.limiter.engine, a)
		slots := !denied && this.Limit.InFlight > 0
		if !found || free && !slots || free == slots && this.closerThan(r) {
			r, found, free = this, true, slots
		}
	}
	if degraded != FromRedis && !denied {
		r.Source = degraded
	}
	return r
}

// taken returns what was taken, which may have to be given back.
func (d *decision) taken() (charges []engine.Charge) {
	for i := range d.answers {
		if a := &d.answers[i]; a.Decided && a.Source != engine.FromStatic {
			charges = append(charges, a.Charge(&d.asks[i]))
		}
	}
	return charges
}

// hasSlots reports whether the request holds a slot of any key.
func (d *decision) hasSlots() bool {
	return slices.ContainsFunc(d.answers, func(a engine.Answer) bool { return a.HasSlot() })
}

// release gives the slots of the request back.
func (d *decision) release(e *engine.Engine) {
	for i := range d.answers {
		if d.answers[i].HasSlot() {
			charge := d.answers[i].Charge(&d.asks[i])
			e.Release(&charge)
		}
	}
}

// failure returns why the store did not decide, or nil.
func (d *decision) failure() (err error) {
	for i := range d.answers {
		if d.answers[i].Err != nil {
			err = d.answers[i].Err
		}
	}
	return err
}

// Reservation is tokens taken for work whose cost is known only afterwards.
//
// Take an estimate with [Policy.Reserve], do the work if [Reservation.Result]
// allows it, and call Settle with what it took, or Cancel. A Reservation that is never settled
// stays as it was estimated. It may be used by several goroutines.
type Reservation struct {
	limiter *Limiter
	taken   engine.Charge
	result  Result
	settled atomic.Bool
}

// Reserve takes n tokens of a client, or none, to be settled later.
//
// n is at least 1. An error comes without a Reservation, a denial with one that has nothing to
// settle.
func (p *Policy) Reserve(ctx context.Context, client string, n int) (*Reservation, error) {
	q, err := p.observed(ctx, client, n)
	if err != nil {
		return nil, err
	}
	defer q.putBack()
	q.asks[0].Settles = true
	r, err := q.end(ctx, n, q.take(ctx))
	if err != nil {
		return nil, err
	}
	return &Reservation{limiter: p.limiter, taken: q.answers[0].Charge(&q.asks[0]), result: r}, nil
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
// token bucket by itself is not given back again, and nothing is after a [Policy.Reset]. Where it
// is not certain how much is left, the least that may be left is given back. If actual is more, the
// difference is charged: a limit goes into debt up to another burst of it, and what passes that is
// not charged. A window's debt ends with the window.
//
// A negative actual is [ErrInvalidArgument], and the end of ctx before the call, or a closed limiter,
// is the error of [Policy.Allow]; all of them change nothing. [ErrUnavailable] says that Redis did
// not answer: the estimate stands, or Redis settles it late. It is not tried again, as that could
// charge or give back twice. A Reservation that was decided without Redis is settled in this process.
func (r *Reservation) Settle(ctx context.Context, actual int) error {
	switch {
	case r == nil || r.limiter == nil:
		return errNotReserved
	case actual < 0:
		return fmt.Errorf("%w: settled with %d tokens; want at least 0", ErrInvalidArgument, actual)
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

// Slot is one of the slots of [InFlight], or a denial.
type Slot struct {
	limiter  *Limiter
	charge   engine.Charge
	result   Result
	released atomic.Bool
}

// Acquire takes a slot of a client and one token of each limit, or nothing. The policy has
// [InFlight].
//
// If [Slot.Result] allows it, do the work and call Release. A denial comes with a Slot that holds
// nothing, an error without one; for errors see [Policy]. With [WithQueue] it waits for
// what is missing. A policy without InFlight has a slot for everybody.
func (p *Policy) Acquire(ctx context.Context, client string) (*Slot, error) {
	q, err := p.observed(ctx, client, 1)
	if err != nil {
		return nil, err
	}
	defer q.putBack()
	slot, kept := &Slot{limiter: p.limiter}, false
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
func (p *Policy) acquire(ctx context.Context, q *question, slot *Slot) error {
	q.asks[0].Scope = rules.All
	d := decision{limits: q.set, asks: q.asks[:], answers: q.answers[:]}
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
	if s != nil && s.limiter != nil && !s.released.Swap(true) {
		s.limiter.engine.Release(&s.charge)
	}
}

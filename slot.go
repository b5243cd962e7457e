package ginlimit

import (
	"context"
	"sync/atomic"

	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// Slot is one of the slots of [WithConcurrency], or a refusal.
type Slot struct {
	engine   *engine.Engine
	charge   engine.Charge
	result   Result
	released atomic.Bool
}

// Acquire takes a slot of a client and one token of each limit, or nothing. The policy has [WithConcurrency].
//
// If [Slot.Result] allows it, do the work and call Release. A refusal comes with a Slot that holds nothing, an error
// without one; errors are those of [Limiter.Allow]. With [WithQueue] it waits for a slot. A policy without WithConcurrency has a slot
// for everybody.
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
		d := decision{own: 1}
		d.add(p.trial.limits, p.trial.askOf(&q.asks[0]))
		d.add(q.set, q.asks[0])
		err := d.take(ctx, p, 1)
		q.answers[0].Err, q.answers[0].Waited = d.failure(), d.answers[1].Waited
		if err == nil {
			slot.result, slot.charge = d.result(slot.engine), d.answers[0].Charge
		}
		return err
	}
	q.asks[0].Scope = rules.All
	d := decision{asks: q.asks[:], answers: q.answers[:]}
	if err := d.take(ctx, p, 1); err != nil {
		return err
	}
	slot.result, slot.charge = q.result(), q.answers[0].Charge
	return nil
}

// Result returns the decision; that of a nil Slot is zero.
func (s *Slot) Result() Result {
	if s == nil {
		return Result{}
	}
	return s.result
}

// Release gives the slot back, without waiting for Redis. More than once is once.
func (s *Slot) Release() {
	if s != nil && s.charge.HasSlot() && !s.released.Swap(true) {
		s.engine.Release(&s.charge)
	}
}

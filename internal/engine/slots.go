package engine

import (
	"context"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/inflight"
)

// slotRetry is after how long a client that finds no slot may try again.
const slotRetry = bucket.SlotRetry * time.Millisecond

// HasSlot reports whether a slot was taken.
func (c *Charge) HasSlot() bool { return c.attempt > 0 }

// Release gives the slot of a charge back, if it holds one, without waiting for Redis. It is called
// once.
func (e *Engine) Release(charge *Charge) {
	if !charge.HasSlot() {
		return
	}
	key := e.key(&charge.of)
	e.slots.Release(key, charge.attempt)
	if !charge.tried {
		e.wake(key, false)
	}
}

// keepsSlot ends the attempt of a call that Redis has granted. It is false if this process has all slots already; then
// the states say that none is left.
func (e *Engine) keepsSlot(c *dispatch.Call) bool {
	if c.Attempt.Number == 0 {
		return true
	}
	slots := c.Layout.Slots
	b, s, outcome := &c.Buckets[slots], &c.States[slots], inflight.Granted
	if b.Remaining(s.Level) > 1 {
		outcome = inflight.Spare
	}
	defer e.replica.HoldOthers()()
	if e.slots.Answer(c.Key, c.Attempt.Number, outcome, newsOf(c), b.Capacity-e.replica.HeldByOthers(c.Key)) {
		return true
	}
	s.Level = max(s.Level, b.Capacity)
	return false
}

// newsOf returns what an answer of Redis says of the slots of others.
func newsOf(c *dispatch.Call) inflight.News {
	return inflight.News{Others: c.States[c.Layout.Slots].Others(), Sent: c.Sent}
}

// beginAttempt numbers a call's attempt to take a slot, if it makes one.
func (e *Engine) beginAttempt(c *dispatch.Call, ask *Ask) {
	if !ask.attempts() {
		return
	}
	e.releaseAbandoned()
	if c.Op.Waits = ask.turn.Milliseconds(); c.Op.Charges > 0 {
		c.Attempt = e.slots.Begin(c.Key)
	} else {
		c.Attempt = e.slots.Look(c.Key)
	}
}

// loseAttempt ends the attempt of a call unless it has ended.
func (e *Engine) loseAttempt(c *dispatch.Call) {
	if c.Attempt.Number > 0 {
		e.slots.End(c.Key, c.Attempt.Number, inflight.Lost)
	}
}

// endAttempt ends the attempt of a call that Redis has not granted.
func (e *Engine) endAttempt(c *dispatch.Call, answer *Answer) {
	if slots := c.Layout.Slots; slots >= 0 && answer.Source == FromStore {
		answer.place = c.States[slots].Place()
	}
	switch {
	case c.Attempt.Number == 0:
	case answer.Granted > 0: // without the store
		answer.attempt = c.Attempt.Number
		e.slots.End(c.Key, c.Attempt.Number, inflight.Local)
	case answer.Source == FromStore:
		e.slots.Answer(c.Key, c.Attempt.Number, inflight.Denied, newsOf(c), 0)
	default:
		e.slots.End(c.Key, c.Attempt.Number, inflight.Denied)
	}
}

// report reports to Redis which slots this process holds. Redis forgets the slots of a dropped engine by
// expiry, as it forgets an ended process' slots.
func (e *Engine) report(ctx context.Context, updates []inflight.Update) (reached []bool) {
	if e.dropped.Load() {
		return nil
	}
	e.releaseAbandoned()
	return e.redis.Report(ctx, updates)
}

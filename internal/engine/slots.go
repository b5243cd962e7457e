package engine

import (
	"context"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// slotRetry is after how long a client that finds no slot may try again.
const slotRetry = bucket.SlotRetry * time.Millisecond

// HasSlot reports whether the decision took a slot.
func (a *Answer) HasSlot() bool { return a.attempt > 0 }

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

// attempts reports whether a decision on an Ask takes a slot.
func (a *Ask) attempts() bool { return a.scope == rules.All && a.Set.Slots() >= 0 }

// slots returns how many slots an Ask's key has, if it attempts to take one.
func (a *Ask) slots() int64 { return a.Set.Buckets(rules.All)[a.Set.Slots()].Capacity }

// whichBan returns which denials of an Ask ban the client. While a request waits none does, and with a queue
// none for want of a slot, also in a dry run, which does not wait.
func (a *Ask) whichBan() bucket.Bans {
	switch {
	case !a.Set.Bans() || a.UpTo || a.waits():
		return bucket.NoBans
	case a.queues() || a.Queue.Wait > 0:
		return bucket.LimitBans
	}
	return bucket.AllBans
}

// decideGuarded decides on a call on a ban, slots or both.
func (e *Engine) decideGuarded(ctx context.Context, c *dispatch.Call, ask *Ask, answer *Answer) error {
	c.Op.Bans = ask.whichBan()
	if ask.attempts() {
		if !e.background.Begin() { // Close reports how the attempt ends
			return errClosed()
		}
		defer e.background.Done()
		defer func() { // a hook of the client may panic
			if !answer.recalled {
				e.loseAttempt(c)
			}
		}()
		e.beginAttempt(c, ask)
	}
	err := e.decide(ctx, c, ask, answer)
	if err == nil {
		e.noteBan(c, ask, answer)
	}
	switch {
	case answer.recalled:
	case err == nil && answer.Source == FromStore && answer.Granted > 0:
		e.endGranted(c, ask, answer)
	default:
		e.endAttempt(c, answer, err)
	}
	return err
}

// endGranted ends the attempt of a call that Redis has granted. If this process has all slots already, as it took
// some without Redis meanwhile, the answer denies, and what Redis took is given back.
func (e *Engine) endGranted(c *dispatch.Call, ask *Ask, answer *Answer) {
	if e.keepsSlot(c) {
		answer.attempt = c.Attempt.Number
		return
	}
	surplus := Charge{of: ask.Subject, n: answer.Granted, receipt: newReceipt(e.Timeout)}
	surplus.receipt.fill(c.Sent, c.States)
	e.background.Go(func() { e.giveBackAll(context.Background(), []Charge{surplus}) })
	answer.Statuses = answer.Statuses[:0]
	answer.judge(c, ask, FromStore)
}

// keepsSlot ends the attempt of a call that Redis has granted. It is false if this process has all slots already; then
// the states say that none is left.
func (e *Engine) keepsSlot(c *dispatch.Call) bool {
	if c.Attempt.Number == 0 {
		return true
	}
	slots := bucket.At(c.Buckets, bucket.Slots)
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
	return inflight.News{Others: c.States[bucket.At(c.Buckets, bucket.Slots)].Others(), Sent: c.Sent}
}

// beginAttempt numbers a call's attempt to take a slot, if it makes one.
func (e *Engine) beginAttempt(c *dispatch.Call, ask *Ask) {
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

// noteBan keeps for how long a client that is denied is banned.
func (e *Engine) noteBan(c *dispatch.Call, ask *Ask, answer *Answer) {
	if ask.Set.Bans() && !answer.Allowed && answer.Source == FromStore {
		e.bans.note(c.Hash, ask.Set.Banned(rules.All, c.States))
	}
}

// endAttempt ends the attempt of a call that Redis has not granted.
func (e *Engine) endAttempt(c *dispatch.Call, answer *Answer, err error) {
	if err == nil && answer.Source == FromStore && len(c.States) > 0 {
		if slots := bucket.At(c.Buckets, bucket.Slots); slots >= 0 {
			answer.place = c.States[slots].Place()
		}
	}
	if c.Attempt.Number == 0 {
		return
	}
	switch {
	case err != nil:
		e.slots.End(c.Key, c.Attempt.Number, inflight.Lost)
	case answer.Granted > 0: // without the store
		answer.attempt = c.Attempt.Number
		e.slots.End(c.Key, c.Attempt.Number, inflight.Local)
	case answer.Decided && answer.Source == FromStore:
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

// closeSlots reports to Redis which slots were released, and that this engine ends.
func (e *Engine) closeSlots() {
	e.releaseAbandoned()
	ctx, cancel := context.WithTimeout(context.Background(), e.Timeout)
	defer cancel()
	e.slots.Close(ctx)
	e.replica.Leave()
}

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

// Release gives the slot of a charge back, if it holds one, without waiting for Redis. It is called
// once.
func (e *Engine) Release(charge *Charge) {
	if charge.attempt == 0 {
		return
	}
	key := e.key(&charge.of)
	e.slots.Release(key, charge.attempt)
	e.wake(key, false)
}

// attempts reports whether a decision on an Ask takes a slot.
func (a *Ask) attempts() bool { return a.scope == rules.All && a.Set.Slots() >= 0 }

// whichBan returns which denials of an Ask ban the client. While a request waits none does, and with a queue
// none for want of a slot.
func (a *Ask) whichBan() bucket.Bans {
	switch {
	case !a.Set.Bans() || a.UpTo || a.waits():
		return bucket.NoBans
	case a.queues():
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
	if !answer.recalled {
		e.endAttempt(c, answer, err)
	}
	return err
}

// beginAttempt numbers a call's attempt to take a slot, if it makes one.
func (e *Engine) beginAttempt(c *dispatch.Call, ask *Ask) {
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

// endAttempt keeps whether the attempt of a call holds a slot.
func (e *Engine) endAttempt(c *dispatch.Call, answer *Answer, err error) {
	if err == nil && answer.Source == FromStore && len(c.States) > 0 {
		if slots := bucket.At(c.Buckets, bucket.Slots); slots >= 0 {
			answer.place = c.States[slots].Soon
		}
	}
	if c.Attempt.Number == 0 {
		return
	}
	outcome := inflight.Denied
	switch {
	case err != nil:
		outcome = inflight.Lost
	case answer.Granted > 0:
		answer.attempt, outcome = c.Attempt.Number, inflight.Granted
		if slots := bucket.At(c.Buckets, bucket.Slots); answer.withoutStore() {
			outcome = inflight.Local
		} else if c.Buckets[slots].Remaining(c.States[slots].Level) > answer.Granted {
			outcome = inflight.Spare
		}
	}
	e.slots.End(c.Key, c.Attempt.Number, outcome)
}

// report reports to Redis which slots this process holds. Redis forgets the slots of a dropped engine by
// expiry, as it forgets an ended process' slots.
func (e *Engine) report(ctx context.Context, updates []inflight.Update) (reached []bool) {
	if e.dropped.Load() {
		return nil
	}
	return e.redis.Report(ctx, updates)
}

// closeSlots reports to Redis which slots were released, and that this engine ends.
func (e *Engine) closeSlots() {
	ctx, cancel := context.WithTimeout(context.Background(), e.Timeout)
	defer cancel()
	e.slots.Close(ctx)
	e.leaveReplicas()
}

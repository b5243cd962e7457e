package engine

import (
	"bytes"
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
	ask := charge.ask()
	key := e.key(&ask)
	e.slots.Release(key, charge.attempt)
	e.wake(key, false)
}

// attempts reports whether a decision on an Ask takes a slot.
func (a *Ask) attempts() bool { return a.Scope == rules.All && a.Set.Slots() >= 0 }

// bans reports whether a denial of an Ask may ban the client.
func (a *Ask) bans() bool { return a.Scope != rules.Limits && a.Set.Bans() }

// beginAttempt numbers a call's attempt to take a slot. The function that it returns ends the
// attempt, unless that was done: a hook of the client may panic.
func (e *Engine) beginAttempt(c *dispatch.Call, ask *Ask) (end func()) {
	c.Op.Waits = ask.turn.Milliseconds()
	if c.Op.Charges == 0 {
		c.Attempt = e.slots.Look(c.Key)
		return func() {}
	}
	c.Attempt = e.slots.Begin(c.Key)
	key, number := bytes.Clone(c.Key), c.Attempt.Number
	return func() { e.slots.End(key, number, inflight.Lost) }
}

// noteBan keeps for how long a client that is denied is banned.
func (e *Engine) noteBan(c *dispatch.Call, ask *Ask, answer *Answer) {
	if ask.bans() && !answer.Allowed && answer.Source == FromStore {
		e.bans.note(c.Hash, ask.Set.Banned(ask.Scope, c.States))
	}
}

// endAttempt keeps whether the attempt of a call holds a slot.
func (e *Engine) endAttempt(c *dispatch.Call, answer *Answer, err error) {
	if err == nil && answer.Source == FromStore && len(c.States) > 0 {
		if slots := bucket.SlotsAt(c.Buckets); slots >= 0 {
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
		if answer.attempt = c.Attempt.Number; answer.withoutStore() {
			outcome = inflight.Local
		} else {
			outcome = inflight.Granted
		}
	}
	e.slots.End(c.Key, c.Attempt.Number, outcome)
}

// report reports to Redis which slots this process holds. Redis forgets the slots of a dropped engine by
// expiry, as those of a process that has ended.
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

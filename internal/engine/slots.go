package engine

import (
	"bytes"
	"context"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/fifo"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/rules"
)

const (
	// slotRetry is after how long a client that finds no slot may try again.
	slotRetry = bucket.SlotRetry * time.Millisecond
	// slotPause is after how long a caller that waits for a slot looks again: another process may
	// have released one.
	slotPause = 100 * time.Millisecond
	// maxLooks is how often a second an engine looks for slots of all clients together. If many
	// callers wait, each looks more seldom.
	maxLooks = 500
)

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
	if !e.waiting.Empty() {
		e.waiting.WakeOne(slotQueue(key))
	}
}

// slotQueue names the queue of the callers that wait for a slot of a key. No key has a line break,
// so callers that wait for tokens have other queues.
func slotQueue(key []byte) fifo.Name { return fifo.Name{Key: "slots\n" + string(key)} }

// TakeQueued is [Engine.Take] of one Ask. If there is no slot, the caller waits for one.
//
// At most length callers of this process wait for a slot of a client. Only the first of them tries;
// the others follow in order of arrival.
func (e *Engine) TakeQueued(ctx context.Context, n int64, ask *Ask, answer *Answer, length int,
	wait time.Duration) error {
	take := func() error {
		ask.Set = ask.Set.Now() // a calendar period may be over
		return e.takeOne(ctx, n, ask, answer)
	}
	ask.Bans = bucket.LimitBans // a caller that waits is not denied yet
	if _, static := ask.Set.Static(rules.All, n); n == 0 || static || n > ask.Set.Burst() {
		return take() // no slot would change the answer
	}
	start, key := time.Now(), e.key(ask)
	queue := slotQueue(key)
	if e.waiting.Len(queue) == 0 {
		if err := take(); err != nil || !answer.lacksSlot(ask) {
			return err
		}
	}
	within, cancel := context.WithDeadline(ctx, start.Add(wait))
	defer cancel()
	tried := time.Now()
	leave, wake, err := e.waiting.Join(within, e.closed, queue, length)
	answer.Waited += time.Since(tried)
	switch {
	case ctx.Err() != nil:
		if leave != nil {
			leave()
		}
		return ended(ctx)
	case err != nil: // it never had its turn
		e.noSlot(ask, answer, clientkey.Hash(key))
		return nil
	case leave == nil:
		return errClosed()
	}
	defer leave()
	e.looking.Add(1)
	defer e.looking.Add(-1)
	for {
		if err := take(); err != nil || !answer.lacksSlot(ask) {
			return err
		}
		pause := max(slotPause, time.Duration(e.looking.Load())*time.Second/maxLooks)
		if last := time.Until(start.Add(wait - e.Timeout)); last > 0 {
			pause = min(pause, last) // it looks once more before it leaves
		}
		err := e.sleep(within, answer, pause, wake)
		switch {
		case ctx.Err() != nil:
			return ended(ctx)
		case within.Err() != nil:
			return nil
		case err != nil:
			return err
		}
	}
}

// lacksSlot reports whether a client is denied for want of a slot.
func (a *Answer) lacksSlot(ask *Ask) bool {
	return !a.Allowed && a.Resource >= 0 && a.Resource == ask.Set.Slots() && a.RetryAfter == slotRetry
}

// noSlot is the denial of a client that finds no room to wait for a slot, or never had its turn. If
// it is known to be banned, its wait is until the ban ends.
func (e *Engine) noSlot(ask *Ask, answer *Answer, hash uint64) {
	answer.reset()
	ask.Set = ask.Set.Now() // a calendar period may be over
	wait, slots := max(slotRetry, e.bans.left(hash)), ask.Set.Slots()
	answer.Verdict = rules.Verdict{Resource: slots, RetryAfter: wait, ResetAfter: wait, Banned: wait > slotRetry}
	answer.Decided, answer.Hash = true, hash
	if ask.Report != rules.ReportNone {
		answer.Statuses = append(answer.Statuses, rules.Status{Resource: int32(slots), More: wait, Denies: true})
	}
	if answer.Source = FromCache; e.redis == nil {
		answer.Source = FromStore
	}
}

// beginAttempt numbers a call's attempt to take a slot. The function that it returns ends the
// attempt, unless that was done: a hook of the client may panic.
func (e *Engine) beginAttempt(c *dispatch.Call) (end func()) {
	if c.Op.Charges == 0 {
		c.Attempt = e.slots.Look(c.Key)
		return func() {}
	}
	c.Attempt = e.slots.Begin(c.Key)
	key, number := bytes.Clone(c.Key), c.Attempt.Number
	return func() { e.slots.End(key, number, inflight.Lost) }
}

// note keeps whether the attempt of a call holds a slot, and for how long a client that is denied
// is banned.
func (e *Engine) note(c *dispatch.Call, ask *Ask, answer *Answer, err error) {
	if ask.Set.Bans() && ask.Scope != rules.Limits && err == nil && !answer.Allowed && answer.Source == FromStore {
		e.bans.note(c.Hash, ask.Set.Banned(ask.Scope, c.States))
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
	case !answer.withoutStore() && c.Attempt.Doubt:
		outcome = inflight.Lost
	}
	e.slots.End(c.Key, c.Attempt.Number, outcome)
}

// closeSlots reports to Redis which slots were released.
func (e *Engine) closeSlots() {
	ctx, cancel := context.WithTimeout(context.Background(), e.Timeout)
	defer cancel()
	e.slots.Close(ctx)
}

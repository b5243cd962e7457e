package engine

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// Refund gives n tokens back.
func (e *Engine) Refund(ctx context.Context, n int64, ask *Ask) error {
	op := bucket.Op{Verb: bucket.Give, N: min(n, bucket.MaxUnits), Records: bucket.WithRecords}
	return e.change(ctx, ask, rules.Limits, op)
}

// Block denies every token for d.
func (e *Engine) Block(ctx context.Context, d time.Duration, ask *Ask) error {
	ask.Set = ask.Set.WithPeriods(time.Now().Add(d))
	op := bucket.Op{Verb: bucket.Block, N: bucket.CeilDiv(int64(d), int64(time.Millisecond))}
	return e.change(ctx, ask, rules.Limits, op)
}

// Reset fills the buckets up, and ends blocks and the ban. Of slots it removes only what cannot be read.
func (e *Engine) Reset(ctx context.Context, ask *Ask) error {
	ask.Set = ask.Set.WithPeriods(time.UnixMilli(math.MaxInt64 / 2)) // it ends a block of later periods too
	return e.change(ctx, ask, rules.All, bucket.Op{Verb: bucket.Reset, N: 1, Records: bucket.WithRecords})
}

// change makes a change that has no verdict.
//
// A block and a reset also hold in an outage, and a refund that Redis did not get does.
func (e *Engine) change(ctx context.Context, ask *Ask, scope rules.Scope, op bucket.Op) error {
	if err := e.Ready(ctx); err != nil || !ask.Set.Counts(scope) {
		return err
	}
	c := e.call(op, &ask.Subject, scope)
	defer e.release(c)
	within, cancel := context.WithTimeout(ctx, e.Timeout+e.Timeout/10)
	defer cancel()
	err := e.apply(within, c, true)
	if e.redis != nil && (err != nil || op.Verb != bucket.Give) {
		buckets := ask.Set.Share(e.replicas()).Buckets(scope)
		for i := range buckets {
			if op.Verb == bucket.Block {
				op.N = min(op.N, buckets[i].MaxBlock())
			}
		}
		op.Tenant = ask.Tenant
		e.applyLocally(c.Key, c.Hash, buckets, op)
	}
	if err != nil {
		return Unavailable(ctx, err)
	}
	return nil
}

// apply sends a change to the store. It ends what this process keeps of the key: denials; a reset or a
// block also ends leases, and a reset the ban. If it wakes, it wakes callers that wait.
func (e *Engine) apply(ctx context.Context, c *dispatch.Call, wakes bool) error {
	isReset := c.Op.Verb == bucket.Reset
	late, end := true, func(bool) {}
	if isReset || c.Op.Verb == bucket.Block {
		end = e.leases.End(c.Hash)
	}
	defer func() { end(late) }() // a hook of the client may end the goroutine
	err := e.store.Do(ctx, c)
	late = mayStillHappen(err)
	if isReset {
		e.bans.note(c.Hash, 0)
	}
	if e.denied.Forget(c.Key, c.Hash, mayStillHappen(err)); wakes {
		e.wake(c.Key, true)
	}
	return err
}

// applyLocally makes a change to the buckets that decide without Redis, and returns their states.
func (e *Engine) applyLocally(key []byte, hash uint64, buckets []bucket.Bucket, op bucket.Op) []bucket.State {
	states := make([]bucket.State, len(buckets))
	e.local.Do(key, buckets, op, states)
	e.denied.Forget(key, hash, false)
	e.wake(key, true)
	return states
}

// LimitsChanged has the first callers of all lines try again, or leave, as clients may have other limits.
func (e *Engine) LimitsChanged() {
	e.changes.Add(1) // before it looks who waits: see waitIn
	e.waiting.WakeAll()
}

// Waits reports whether callers wait for tokens or slots.
func (e *Engine) Waits() bool { return !e.waiting.Empty() }

// wake wakes the callers that wait for the slots of a key whose first one tries, and those that wait for
// its tokens.
func (e *Engine) wake(key []byte, tokens bool) {
	e.changes.Add(1) // before it looks who waits: see waitIn
	if e.waiting.Empty() {
		return
	}
	if tokens {
		e.waiting.Wake(string(key))
	}
	e.waiting.Wake(slotsOf(key))
}

// slotsOf is a key in the names of queues of those that want slots. No key has a line break, so others
// have other queues.
func slotsOf(key []byte) string { return "slots\n" + string(key) }

// loseLeases ends all leases after an error, unless Redis may be well.
func (e *Engine) loseLeases(ctx context.Context, err error) {
	if !left(ctx) && !redisstore.IsCommandError(err) && !errors.Is(err, dispatch.ErrQueueFull) {
		e.leases.Lose()
	}
}

package engine

import (
	"context"
	"math"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
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
	return e.change(ctx, ask, rules.Limits, bucket.Op{Verb: bucket.Block, N: bucket.CeilDiv(int64(d), int64(time.Millisecond))})
}

// Reset fills the buckets up, and ends blocks and the ban.
func (e *Engine) Reset(ctx context.Context, ask *Ask) error {
	ask.Set = ask.Set.WithPeriods(time.UnixMilli(math.MaxInt64 / 2)) // it ends a block of later periods too
	return e.change(ctx, ask, rules.Tokens, bucket.Op{Verb: bucket.Reset, N: 1, Records: bucket.WithRecords})
}

// change has an operation done that has no verdict.
//
// A block and a reset are also done in this process, to hold in an outage. In an outage a refund is
// too.
func (e *Engine) change(ctx context.Context, ask *Ask, scope rules.Scope, op bucket.Op) error {
	if err := e.ready(ctx); err != nil || !ask.Set.Counts(scope) {
		return err
	}
	c := e.call(op, ask, scope)
	defer e.release(c)
	within, cancel := context.WithTimeout(ctx, e.Timeout+e.Timeout/10)
	defer cancel()
	began := time.Now()
	err := e.do(within, c)
	if op.Verb == bucket.Reset {
		e.bans.note(c.Hash, 0)
		if err == nil {
			e.resets.Add(c.Hash, began, "", c.Buckets, c.States)
		}
	}
	e.changed(c.Key, c.Hash, err)
	if e.local != nil && (err != nil || op.Verb != bucket.Give) {
		e.changeLocally(c, ask, scope, op, began)
	}
	if err != nil {
		return Unavailable(ctx, err)
	}
	return nil
}

// changeLocally has a change made to the buckets that decide without Redis.
func (e *Engine) changeLocally(c *dispatch.Call, ask *Ask, scope rules.Scope, op bucket.Op, began time.Time) {
	buckets := ask.Set.Share(e.Replicas).Buckets(scope)
	for i := range buckets {
		if op.Verb == bucket.Block {
			op.N = min(op.N, buckets[i].MaxBlock())
		}
	}
	states := make([]bucket.State, len(buckets))
	e.local.Do(c.Key, buckets, op, states)
	if op.Verb == bucket.Reset {
		e.resets.Add(c.Hash, began, inOutage, buckets, states)
	}
}

// changed forgets the denials of a key and wakes the callers that wait for its tokens, as Redis was
// asked to change its buckets, or this process has.
func (e *Engine) changed(key []byte, hash uint64, err error) {
	e.denied.Forget(key, hash, mayStillHappen(err))
	if !e.waiting.Empty() {
		e.waiting.Wake(string(key))
	}
}

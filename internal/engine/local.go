package engine

import (
	"context"
	"errors"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/memory"
)

// localStore is a store in this process.
type localStore struct {
	*memory.Store
	slots *inflight.Counts
}

func (s localStore) Do(_ context.Context, c *dispatch.Call) error {
	c.Sent = time.Now()
	doLocally(s.Store, s.slots, 0, c, c.Buckets, c.Op, c.States, false)
	return nil
}

func (localStore) Close() {}

// doLocally applies an operation in this process. If there are slots, of which others may hold some,
// it takes one too. If the call was sent, it may have taken one in Redis.
func doLocally(store *memory.Store, slots *inflight.Counts, others int64, c *dispatch.Call, buckets []bucket.Bucket,
	op bucket.Op, states []bucket.State, sent bool) {
	last := bucket.At(buckets, bucket.Slots)
	if last < 0 {
		store.Do(c.Key, buckets, op, states)
		return
	}
	if c.Attempt.Number == 0 {
		states[last] = bucket.State{Level: others + slots.Held(c.Key)}
		store.Do(c.Key, buckets, op, states)
		return
	}
	slots.Try(c.Key, c.Attempt.Number, sent, func(held int64) bool {
		states[last] = bucket.State{Level: others + held}
		store.Do(c.Key, buckets, op, states)
		for i := range buckets {
			if buckets[i].Fits(states[i], 1, op.N) == 0 {
				return false
			}
		}
		return true
	})
}

// fallBack decides on a call on which the store has not decided. The call may still be on its way:
// of it, only what its caller has set is read.
func (e *Engine) fallBack(ctx context.Context, c *dispatch.Call, ask *Ask, answer *Answer, err error) error {
	e.loseLeases(ctx, err)
	answer.Err = err
	if left(ctx) || e.local == nil || ask.Failure == FailClosed || errors.Is(err, dispatch.ErrClosed) {
		return Unavailable(ctx, err)
	}
	op, set, states := c.Op, ask.Set, make([]bucket.State, len(c.Buckets))
	if answer.Source = FromOpen; ask.Failure == FailLocal {
		answer.Source = FromLocal
		set = ask.Set.Share(e.replicas())
		answer.share = set
		if op.Charges > 1 {
			op.Charges = min(op.Charges, set.Burst())
		}
		sent, mayBeTaken := time.Now(), mayStillHappen(err) && !errors.Is(err, dispatch.ErrOpen)
		others := int64(0)
		if e.replica != nil && ask.attempts() {
			e.replica.slots.Lock()
			defer e.replica.slots.Unlock()
			others = e.replica.heldByOthers(e, c.Key)
		}
		doLocally(e.local, e.slots, others, c, set.Buckets(ask.scope), op, states, mayBeTaken)
		answer.receipt.Fill(sent, states)
	}
	answer.Verdict, answer.Statuses = set.Judge(ask.scope, states, op, ask.Report, answer.Statuses)
	answer.Decided = true
	if answer.RetryAfter < 0 && ask.Failure == FailLocal && op.N <= ask.Set.Burst() {
		answer.RetryAfter = set.RetryAfterPeriods(ask.scope, states, op.N)
	}
	return nil
}

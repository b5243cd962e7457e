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
	doLocally(s.Store, s.slots, c, c.Buckets, c.Op, c.States, false, func(h inflight.Holders) int64 { return h.Own })
	return nil
}

func (localStore) Close() {}

// doLocally applies an operation in this process. If there are slots, it takes one too; used says how many are in use.
// If the call was sent, it may have taken one in Redis.
func doLocally(store *memory.Store, slots *inflight.Counts, c *dispatch.Call, buckets []bucket.Bucket, op bucket.Op,
	states []bucket.State, sent bool, used func(inflight.Holders) int64) {
	last := bucket.At(buckets, bucket.Slots)
	if last < 0 {
		store.Do(c.Key, buckets, op, states)
		return
	}
	if c.Attempt.Number == 0 {
		states[last] = bucket.State{Level: used(slots.Holders(c.Key))}
		store.Do(c.Key, buckets, op, states)
		return
	}
	slots.Try(c.Key, c.Attempt.Number, sent, func(h inflight.Holders) bool {
		states[last] = bucket.State{Level: used(h)}
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
		slots := slotsAlone{replicas: e.replicas(), away: errors.Is(err, dispatch.ErrOpen)}
		if set = ask.Set.Share(slots.replicas); ask.attempts() {
			siblings, unlock := e.siblings(c.Key)
			defer unlock()
			slots.n, slots.siblings = ask.slots(), siblings
			if !slots.away && e.slots.Holders(c.Key).Age < inflight.Renewal {
				set = set.WithSlotsOf(ask.Set)
			}
		}
		answer.share = set
		if op.Charges > 1 {
			op.Charges = min(op.Charges, set.Burst())
		}
		sent, mayBeTaken := time.Now(), mayStillHappen(err) && !errors.Is(err, dispatch.ErrOpen)
		doLocally(e.local, e.slots, c, set.Buckets(ask.scope), op, states, mayBeTaken, slots.inUse)
		answer.receipt.Fill(sent, states)
	}
	answer.Verdict, answer.Statuses = set.Judge(ask.scope, states, op, ask.Report, answer.Statuses)
	answer.Decided = true
	if answer.RetryAfter < 0 && ask.Failure == FailLocal && op.N <= ask.Set.Burst() {
		answer.RetryAfter = set.RetryAfterPeriods(ask.scope, states, op.N)
	}
	return nil
}

// slotsAlone are the slots of a key on which this process decides.
type slotsAlone struct {
	n        int64
	replicas int64 // that may have some
	siblings int64 // slots that other engines of this process hold
	away     bool  // Redis is away, and not just late
}

// inUse returns how many slots are in use. While Redis is late, what others held when it said so last counts until Redis
// would have forgotten it. For a [inflight.Renewal] the slots are not divided: the replicas share what was free then, at
// least one for each. If others have some, they may have got what this process has released since.
func (s *slotsAlone) inUse(h inflight.Holders) int64 {
	held, others := h.Own+s.siblings, max(h.Others, s.siblings)
	switch free := s.n - others - h.Then; {
	case s.away || h.Age >= inflight.Life:
		return held
	case h.Own+others >= s.n:
		return max(held, s.n)
	case h.Age >= inflight.Renewal:
		return held
	default:
		part := max(min(free, 1), free/s.replicas)
		if h.Own >= h.Then+part || others > 0 && h.Alone >= part {
			return max(held, s.n)
		}
		return h.Own + others
	}
}

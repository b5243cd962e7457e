package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/replicas"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// joinReplica makes the engine a member of the replica of its buckets.
func (e *Engine) joinReplica() *replicas.Member {
	slots, set := bucket.NewSlots(replicas.Max), new(rules.Set)
	set.Guard(nil, &slots)
	slot := Subject{Client: replicas.Key, Set: set}
	return replicas.Join(fmt.Sprintf("%s%s", e.redis, e.key(&slot)), replicas.Config{
		Background: &e.background, Dropped: e.dropped.Load, Held: e.slots.Held,
		Take: func(a bucket.Attempt) (int64, error) { return e.takeReplica(&slot, a) },
		Free: func(ended int64, doubt bool) {
			ctx, cancel := context.WithTimeout(context.Background(), e.Timeout)
			defer cancel()
			e.redis.Report(ctx, []inflight.Update{{Key: string(e.key(&slot)), Ended: ended, Doubt: doubt}})
		},
	})
}

// takeReplica takes a slot of the replicas' key, and returns how many others have one.
func (e *Engine) takeReplica(slot *Subject, a bucket.Attempt) (others int64, err error) {
	c := e.call(bucket.Op{Verb: bucket.Take, Charges: 1, N: 1}, slot, rules.All)
	defer e.release(c)
	c.Attempt = a
	ctx, cancel := context.WithTimeout(context.Background(), e.Timeout)
	defer cancel()
	if err = e.store.Do(ctx, c); errors.Is(err, redis.ErrClosed) {
		err = replicas.ErrEnded
	}
	if err != nil {
		return 0, err
	}
	return c.States[0].Level, nil
}

// replicas returns how many replicas share the limits without Redis: as many as were configured, or were last
// counted.
func (e *Engine) replicas() int64 {
	if e.Config.Replicas > 0 {
		return e.Config.Replicas
	}
	return e.replica.Count()
}

// describeOutage returns what the log line of an outage says beside its cause.
func (e *Engine) describeOutage() []any { return []any{"replicas", e.replicas()} }

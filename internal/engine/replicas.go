package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// replicaCount counts the engines that have the same buckets in Redis. Each holds one slot of a key that
// no client has, takes it anew every [replicaRenewal], and finds how many others hold one.
//
// The first decision starts that. A dead engine is counted for [inflight.Life].
type replicaCount struct {
	started atomic.Bool
	count   atomic.Int64 // 0 until Redis has answered

	mu       sync.Mutex // guards the fields below
	attempts int64      // to take the slot
	counts   []int64    // the newest ones that Redis returned, at most replicaCounts
}

const (
	// replicaKey is the key of the slots. A client's key has its policy's name and a separator before it.
	replicaKey = "replicas"

	// replicaRenewal is how often an engine takes its slot anew, and replicaCounts how many counts are
	// those of one [inflight.Life]. The largest of them holds: after Redis has lost its memory, or was
	// away for longer than slots last, the first engines to return find few others.
	replicaRenewal = inflight.Life / 4
	replicaCounts  = 4

	maxReplicas = 1 << 20
)

var replicaAsk = func() Ask {
	slots, set := bucket.NewSlots(maxReplicas), new(rules.Set)
	set.Guard(nil, &slots)
	return Ask{Client: replicaKey, Set: set, Scope: rules.All}
}()

// replicas returns how many engines share the limits without Redis: as many as were configured, or
// were last counted. It is 1 before the first count.
func (e *Engine) replicas() int64 {
	if e.Config.Replicas > 0 {
		return e.Config.Replicas
	}
	return max(1, e.counted.count.Load())
}

// countReplicas starts counting, unless that was done or the number is known.
func (e *Engine) countReplicas() {
	if r := &e.counted; e.redis != nil && e.Config.Replicas == 0 && !r.started.Load() && r.started.CompareAndSwap(false, true) {
		go e.countAgain()
	}
}

// countAgain takes the slot anew and counts, now and after each [replicaRenewal], until Close.
func (e *Engine) countAgain() {
	if !e.background.Begin() {
		return
	}
	defer e.background.Done()
	defer time.AfterFunc(replicaRenewal, e.countAgain) // also if a hook of the client ends this goroutine
	r, ask := &e.counted, replicaAsk
	c := e.call(bucket.Op{Verb: bucket.Take, Charges: 1, N: 1}, &ask, rules.All)
	defer e.release(c)
	r.mu.Lock()
	r.attempts++
	c.Attempt = bucket.Attempt{Number: r.attempts, Ended: r.attempts - 1} // and what these held is given back
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), e.Timeout)
	defer cancel()
	err := e.store.Do(ctx, c)
	if err == nil {
		r.note(c.States[0].Level + 1)
	}
}

// note notes a count of Redis.
func (r *replicaCount) note(count int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts = append(r.counts, count)
	r.counts = r.counts[max(0, len(r.counts)-replicaCounts):]
	r.count.Store(slices.Max(r.counts))
}

// leaveReplicas gives the slot back, within a context: others have a larger share then.
func (e *Engine) leaveReplicas(ctx context.Context) {
	r := &e.counted
	r.mu.Lock()
	attempts := r.attempts
	r.mu.Unlock()
	if attempts > 0 {
		e.redis.Report(ctx, []inflight.Update{{Key: string(e.key(&replicaAsk)), Ended: attempts}})
	}
}

// describeOutage returns what the log line of an outage says beside its cause.
func (e *Engine) describeOutage() []any { return []any{"replicas", e.replicas()} }

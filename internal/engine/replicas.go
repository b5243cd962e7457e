package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// replicaCount counts the engines that have the same buckets in Redis. Each holds one slot of a key
// that no client has, takes it anew every [replicaRenewal], and finds how many others hold one.
//
// The first decision starts that, and Close ends it. A dead engine is counted for [inflight.Life].
type replicaCount struct {
	ask     Ask // for the slot
	started atomic.Bool
	count   atomic.Int64 // 0 until Redis has answered

	mu       sync.Mutex // guards the fields below
	attempts int64      // to take the slot
	late     bool       // Redis has not answered the last attempt, and may still grant it
	counts   []int64    // the newest ones that Redis returned, at most replicaCounts
}

const (
	// replicaKey is the key of the slots. A client's key begins with its policy's name and a separator.
	replicaKey = "replicas"
	// maxReplicas is how many engines can be counted.
	maxReplicas = 1 << 20
	// replicaRenewal is how often an engine takes its slot anew.
	replicaRenewal = inflight.Life / 4
	// firstRenewal is the time until the second count, as engines often start together.
	firstRenewal = replicaRenewal / 10
	// replicaCounts is how many of the newest counts matter, which take about one [inflight.Life]. The
	// largest of them is used, because after an outage or a loss of memory in Redis the first engines
	// to return find few others.
	replicaCounts = 4
)

func newReplicaAsk() Ask {
	slots, set := bucket.NewSlots(maxReplicas), new(rules.Set)
	set.Guard(nil, &slots)
	return Ask{Client: replicaKey, Set: set, Scope: rules.All}
}

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
	r := &e.counted
	if r.started.Load() || e.redis == nil || e.Config.Replicas > 0 {
		return
	}
	if r.started.CompareAndSwap(false, true) {
		go e.countAgain()
	}
}

// countAgain takes the slot anew and counts, now and after each [replicaRenewal]. It ends when the
// engine or the client is closed, or nobody holds the engine any more.
func (e *Engine) countAgain() {
	if !e.background.Begin() {
		return
	}
	defer e.background.Done()
	r := &e.counted
	number := r.begin()
	pause, err := replicaRenewal, error(nil)
	if number == 1 {
		pause = firstRenewal
	}
	defer func() { // also if a hook of the client ends this goroutine
		if errors.Is(err, redis.ErrClosed) {
			return
		}
		dropped := weak.Make(e)
		time.AfterFunc(pause, func() {
			if e := dropped.Value(); e != nil {
				e.countAgain()
			}
		})
	}()
	c := e.call(bucket.Op{Verb: bucket.Take, Charges: 1, N: 1}, &r.ask, rules.All)
	defer e.release(c)
	c.Attempt = bucket.Attempt{Number: number, Ended: number - 1} // and what these held is given back
	ctx, cancel := context.WithTimeout(context.Background(), e.Timeout)
	defer cancel()
	if err = e.store.Do(ctx, c); err == nil {
		r.note(c.States[0].Level + 1)
	}
}

// begin returns the number of a new attempt to take the slot.
func (r *replicaCount) begin() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempts++
	r.late = true
	return r.attempts
}

// note notes a count of Redis.
func (r *replicaCount) note(count int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late = false
	r.counts = append(r.counts, count)
	r.counts = r.counts[max(0, len(r.counts)-replicaCounts):]
	r.count.Store(slices.Max(r.counts))
}

// leaveReplicas gives the slot back: others have a larger share then.
func (e *Engine) leaveReplicas() {
	r := &e.counted
	r.mu.Lock()
	attempts, late := r.attempts, r.late
	r.counts = nil
	r.count.Store(0)
	r.mu.Unlock()
	if attempts > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), e.Timeout)
		defer cancel()
		e.redis.Report(ctx, []inflight.Update{{Key: string(e.key(&r.ask)), Ended: attempts, Doubt: late}})
	}
}

// describeOutage returns what the log line of an outage says beside its cause.
func (e *Engine) describeOutage() []any { return []any{"replicas", e.replicas()} }

package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/memory"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// replica is what the engines of this process that have the same buckets in Redis are together: one
// of the replicas that share the limits without Redis, and one store that decides then.
//
// One of the engines, the counter, holds a slot of a key that no client has, takes it anew every
// [replicaRenewal], and finds how many other replicas hold one. Another engine goes on when that one
// ends. A dead process is counted for [inflight.Life].
type replica struct {
	name  string
	slot  Subject       // of whose slots it holds one
	local *memory.Store // decides if Redis does not
	count atomic.Int64  // of replicas; 0 until Redis has answered

	several atomic.Bool // there are further engines
	slots   sync.Mutex  // held while one of several engines takes a slot of a client
	mu      sync.Mutex  // guards the fields below
	engines []weak.Pointer[Engine]
	counter weak.Pointer[Engine] // one of them
	counts  []int64              // the newest ones that Redis returned, at most replicaCounts
}

// attempts are an engine's attempts to take the slot of its replica. The replica's mutex guards them.
type attempts struct {
	number int64
	late   bool // Redis has not answered the last one, and may still grant it
}

// inProcess are the replicas of this process. Only the process knows which limiters it has, so they
// are no field of anything.
var inProcess struct {
	sync.Mutex
	replicas map[string]weak.Pointer[replica]
}

const (
	// replicaKey is the key of the slots. A client's key begins with its policy's name and a separator.
	replicaKey = "replicas"
	// maxReplicas is how many can be counted.
	maxReplicas = 1 << 20
	// replicaRenewal is how often a replica takes its slot anew.
	replicaRenewal = inflight.Life / 4
	// firstRenewal is the time until the second count, as processes often start together.
	firstRenewal = replicaRenewal / 10
	// replicaCounts is how many of the newest counts matter, which take about one [inflight.Life]. The
	// largest of them is used, because after an outage or a loss of memory in Redis the first replicas
	// to return find few others.
	replicaCounts = 4
)

// joinReplica returns the replica of an engine's buckets.
func (e *Engine) joinReplica() *replica {
	slots, set := bucket.NewSlots(maxReplicas), new(rules.Set)
	set.Guard(nil, &slots)
	slot := Subject{Client: replicaKey, Set: set}
	name := fmt.Sprintf("%s%s", e.redis, e.key(&slot))
	inProcess.Lock()
	defer inProcess.Unlock()
	r := inProcess.replicas[name].Value()
	if r == nil {
		r = &replica{name: name, slot: slot, local: memory.New(memory.MaxBuckets)}
		maps.DeleteFunc(inProcess.replicas, func(_ string, r weak.Pointer[replica]) bool { return r.Value() == nil })
		if inProcess.replicas == nil {
			inProcess.replicas = map[string]weak.Pointer[replica]{}
		}
		inProcess.replicas[name] = weak.Make(r)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.engines = slices.DeleteFunc(r.engines, func(e weak.Pointer[Engine]) bool { return e.Value() == nil })
	r.engines = append(r.engines, weak.Make(e))
	r.several.Store(len(r.engines) > 1)
	return r
}

// replicas returns how many replicas share the limits without Redis: as many as were configured, or
// were last counted. It is 1 before the first count.
func (e *Engine) replicas() int64 {
	switch {
	case e.Config.Replicas > 0:
		return e.Config.Replicas
	case e.replica == nil:
		return 1
	}
	return max(1, e.replica.count.Load())
}

// countReplicas starts counting, unless that was done or the number is known.
func (e *Engine) countReplicas() {
	if e.replica != nil && !e.counts.Load() && e.counts.CompareAndSwap(false, true) {
		go e.countAgain()
	}
}

// countAgain takes the slot anew and counts, if no other engine does, now and after each
// [replicaRenewal]. It ends when the engine is closed or dropped, or the client is closed.
func (e *Engine) countAgain() {
	r := e.replica
	if e.dropped.Load() {
		r.resign(e)
		return
	}
	if !e.background.Begin() {
		return
	}
	defer e.background.Done()
	number := r.begin(e)
	pause, err := replicaRenewal, error(nil)
	if number == 1 {
		pause = firstRenewal
	}
	defer func() { // also if a hook of the client ends this goroutine
		if errors.Is(err, redis.ErrClosed) {
			r.resign(e)
			return
		}
		time.AfterFunc(pause, e.countAgain)
	}()
	if number == 0 {
		return
	}
	c := e.call(bucket.Op{Verb: bucket.Take, Charges: 1, N: 1}, &r.slot, rules.All)
	defer e.release(c)
	c.Attempt = bucket.Attempt{Number: number, Ended: number - 1} // and what these held is given back
	ctx, cancel := context.WithTimeout(context.Background(), e.Timeout)
	defer cancel()
	if err = e.store.Do(ctx, c); err == nil {
		r.note(e, c.States[0].Level+1)
	}
}

// begin returns the number of an engine's new attempt to take the slot, or 0 if another engine counts.
func (r *replica) begin(e *Engine) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counter.Value() == nil {
		r.counter = weak.Make(e)
	}
	if r.counter.Value() != e {
		return 0
	}
	e.attempts.number++
	e.attempts.late = true
	return e.attempts.number
}

// note notes a count of Redis.
func (r *replica) note(e *Engine, count int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.attempts.late = false
	r.counts = append(r.counts, count)
	r.counts = r.counts[max(0, len(r.counts)-replicaCounts):]
	r.count.Store(slices.Max(r.counts))
}

// resign has another engine count.
func (r *replica) resign(e *Engine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counter.Value() == e {
		r.counter = weak.Pointer[Engine]{}
	}
}

// leave forgets an engine that has ended.
func (r *replica) leave(e *Engine) attempts {
	r.resign(e)
	inProcess.Lock()
	defer inProcess.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.engines = slices.DeleteFunc(r.engines, func(other weak.Pointer[Engine]) bool {
		return other.Value() == e || other.Value() == nil
	})
	r.several.Store(len(r.engines) > 1)
	if len(r.engines) == 0 && inProcess.replicas[r.name].Value() == r {
		delete(inProcess.replicas, r.name)
	}
	return e.attempts
}

// leaveReplicas gives the slot back: others have a larger share then.
func (e *Engine) leaveReplicas() {
	if e.replica == nil {
		return
	}
	if left := e.replica.leave(e); left.number > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), e.Timeout)
		defer cancel()
		e.redis.Report(ctx, []inflight.Update{{Key: string(e.key(&e.replica.slot)), Ended: left.number, Doubt: left.late}})
	}
}

// holdSiblings keeps the other engines of this process from taking slots, until the function that it returns is called.
func (e *Engine) holdSiblings() (unlock func()) {
	if e.replica == nil || !e.replica.several.Load() {
		return func() {}
	}
	e.replica.slots.Lock()
	return e.replica.slots.Unlock
}

// heldBySiblings returns how many slots of a key the other engines of this process hold.
func (e *Engine) heldBySiblings(key []byte) int64 {
	if e.replica == nil || !e.replica.several.Load() {
		return 0
	}
	return e.replica.heldByOthers(e, key)
}

// heldByOthers returns how many slots of a key the other engines of an engine's replica hold.
func (r *replica) heldByOthers(e *Engine, key []byte) (held int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.engines {
		if other := r.engines[i].Value(); other != nil && other != e {
			held += other.slots.Held(key)
		}
	}
	return held
}

// describeOutage returns what the log line of an outage says beside its cause.
func (e *Engine) describeOutage() []any { return []any{"replicas", e.replicas()} }

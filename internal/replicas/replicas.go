// Package replicas counts the processes that use the same buckets, as each enforces its share of the limits while
// Redis does not decide.
//
// It owns the count, which of a process' limiters counts, and what they have in common without Redis. It never knows
// how a call travels, nor what a share is.
package replicas

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/goroutine"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/memory"
)

const (
	// Key is the key of the slots. A client's key begins with its policy's name and a separator.
	Key = "replicas"
	// Max is how many can be counted.
	Max = 1 << 20
	// renewal is how often a replica takes its slot anew.
	renewal = inflight.Life / 4
	// firstRenewal is the time until the second count, as processes often start together.
	firstRenewal = renewal / 10
	// kept is how many of the newest counts matter, which take about one [inflight.Life]. The largest of them is
	// used, because after an outage or a loss of memory in Redis the first replicas to return find few others.
	kept = 4
)

// ErrEnded says that a limiter can count no more, as its client is closed.
var ErrEnded = errors.New("the client is closed")

// replica is what the limiters of this process that have the same buckets in Redis are together: one
// of the replicas that share the limits without Redis, and one store that decides then.
//
// One of them, the counter, holds a slot of a key that no client has, takes it anew every [renewal], and
// finds how many other replicas hold one. Another one goes on when that one ends. A dead process is counted
// for [inflight.Life]. An idle process counts as often as a busy one: in an outage a load balancer may send it
// requests, and the others have left it its share.
type replica struct {
	name  string
	local *memory.Store // decides if Redis does not
	count atomic.Int64  // of replicas; 0 until Redis has answered

	several  atomic.Bool // there are further members
	slots    sync.Mutex  // held while one of several members takes a slot of a client
	mu       sync.Mutex  // guards the fields below
	members  []weak.Pointer[Member]
	counter  weak.Pointer[Member] // one of them
	counting bool                 // again and again
	counts   []int64              // the newest ones that Redis returned, at most kept
}

// inProcess are the replicas of this process. Only the process knows which limiters it has, so they
// are no field of anything.
var inProcess struct {
	sync.Mutex
	replicas map[string]weak.Pointer[replica]
}

// Config is what a limiter does for its replica.
type Config struct {
	Background *goroutine.Background // where it counts
	Dropped    func() bool           // nobody has the limiter any more
	// Take takes a slot of [Key] by an attempt, and returns how many other replicas have one.
	Take func(a bucket.Attempt) (others int64, err error)
	// Free gives the slots of all attempts up to one back. If in doubt, Redis may still grant one.
	Free func(ended int64, doubt bool)
	// Held returns how many slots of a client's key the limiter holds.
	Held func(key []byte) int64
}

// Member is a limiter of a replica. A nil Member is a replica without others.
type Member struct {
	Config
	replica *replica
	Started atomic.Bool // Start was called, and does nothing more
	ended   atomic.Bool // its limiter has ended, or its client is closed
	number  int64       // of its attempts to take the slot. The replica's mutex guards it and late
	late    bool        // Redis has not answered the last attempt, and may still grant it
}

// Join returns the member of a limiter, whose buckets have a name.
func Join(name string, c Config) *Member {
	inProcess.Lock()
	defer inProcess.Unlock()
	r := inProcess.replicas[name].Value()
	if r == nil {
		r = &replica{name: name, local: memory.New(memory.MaxBuckets)}
		maps.DeleteFunc(inProcess.replicas, func(_ string, r weak.Pointer[replica]) bool { return r.Value() == nil })
		if inProcess.replicas == nil {
			inProcess.replicas = map[string]weak.Pointer[replica]{}
		}
		inProcess.replicas[name] = weak.Make(r)
	}
	m := &Member{Config: c, replica: r}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.members = append(r.members, weak.Make(m))
	r.forget(nil)
	return m
}

// Local returns the store that decides for all members without Redis.
func (m *Member) Local() *memory.Store { return m.replica.local }

// Count returns how many replicas were counted last. It is 1 before the first count.
func (m *Member) Count() int64 {
	if m == nil {
		return 1
	}
	return max(1, m.replica.count.Load())
}

// Start has the replica count, unless it does.
func (m *Member) Start() {
	if m == nil || m.Started.Swap(true) {
		return
	}
	m.replica.mu.Lock()
	defer m.replica.mu.Unlock()
	if !m.replica.counting {
		m.replica.counting = true
		go m.replica.countAgain()
	}
}

// countAgain has a member take the slot anew and count, now and after each [renewal]. It ends when no member is left
// that has begun to decide and can count.
func (r *replica) countAgain() {
	m, number := r.begin()
	if m == nil {
		return
	}
	defer m.Background.Done()
	pause := renewal
	if number == 1 {
		pause = firstRenewal
	}
	// Also if a hook of the client ends this goroutine.
	defer func() { time.AfterFunc(pause, r.countAgain) }()
	others, err := m.Take(bucket.Attempt{Number: number, Ended: number - 1}) // and what these held is given back
	switch {
	case err == nil:
		m.note(others + 1)
	case errors.Is(err, ErrEnded):
		m.ended.Store(true)
	}
}

// begin returns the member that counts, at work in its background, and the number of its new attempt to take the slot.
func (r *replica) begin() (m *Member, number int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m = r.counter.Value(); m == nil || !m.works() {
		m = nil
		for i := range r.members {
			if other := r.members[i].Value(); other != nil && other.works() {
				m = other
				break
			}
		}
	}
	if r.counting = m != nil; !r.counting {
		return nil, 0
	}
	r.counter = weak.Make(m)
	m.number++
	m.late = true
	return m, m.number
}

// works reports whether the member can count, and has begun to in its background.
func (m *Member) works() bool {
	return m.Started.Load() && !m.ended.Load() && !m.Dropped() && m.Background.Begin()
}

// note notes a count of Redis.
func (m *Member) note(count int64) {
	r := m.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	m.late = false
	r.counts = append(r.counts, count)
	r.counts = r.counts[max(0, len(r.counts)-kept):]
	r.count.Store(slices.Max(r.counts))
}

// Leave ends a member, whose limiter has ended, and gives its slot back: others have a larger share then.
func (m *Member) Leave() {
	if m == nil {
		return
	}
	m.ended.Store(true)
	if number, late := m.leave(); number > 0 {
		m.Free(number, late)
	}
}

// leave has the replica forget a member, and returns its last attempt.
func (m *Member) leave() (number int64, late bool) {
	r := m.replica
	inProcess.Lock()
	defer inProcess.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(m)
	if len(r.members) == 0 && inProcess.replicas[r.name].Value() == r {
		delete(inProcess.replicas, r.name)
	}
	return m.number, m.late
}

// forget forgets a member, and those that nobody has any more. The caller holds the mutex.
func (r *replica) forget(m *Member) {
	r.members = slices.DeleteFunc(r.members, func(other weak.Pointer[Member]) bool {
		return other.Value() == m || other.Value() == nil
	})
	r.several.Store(len(r.members) > 1)
}

// HoldOthers keeps the other members from taking slots of clients, until the function that it returns is called.
func (m *Member) HoldOthers() (unlock func()) {
	if m == nil || !m.replica.several.Load() {
		return func() {}
	}
	m.replica.slots.Lock()
	return m.replica.slots.Unlock
}

// HeldByOthers returns how many slots of a client's key the other members hold.
func (m *Member) HeldByOthers(key []byte) (held int64) {
	if m == nil || !m.replica.several.Load() {
		return 0
	}
	m.replica.mu.Lock()
	defer m.replica.mu.Unlock()
	for i := range m.replica.members {
		if other := m.replica.members[i].Value(); other != nil && other != m {
			held += other.Held(key)
		}
	}
	return held
}

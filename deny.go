package ginlimit

import (
	"math/bits"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// DefaultDenyMemory is how many refusals a limiter remembers at most.
	DefaultDenyMemory = 1 << 16
	// maxDenials keeps the table allocatable.
	maxDenials = 1 << 22
	// denialLife is how long a refusal is believed.
	denialLife = time.Second
	// denyWays is how many entries a key may be in.
	denyWays = 4
	// denyStripes is over how many clocks the keys are spread that tell when one was changed.
	denyStripes = 64
	// pacePeriod is how long a bucket is watched at least to learn that Redis' clock runs.
	pacePeriod = 3 * time.Millisecond
	// paceSure is how many buckets that drained as they should outweigh one that did not, twice.
	paceSure = 4
)

// denyMemory remembers refusals, and refuses for as long as Redis would.
//
// Once Redis says no, the level that it found can only fall by what drains, and rise by what others take.
// Redis read it between the time when it was asked and the time when it answered: counted from the former,
// the level is at least so high, by which a further request is refused; counted from the latter, at most, by
// which the client is told when to come back. So nobody is refused whom Redis would admit, but for tokens
// that another process gave back within denialLife.
//
// It takes its time from this process, and the level from Redis. By default it refuses nobody until it has
// seen levels fall at the pace of its own clock, more often than faster: that of a server whose clock is set,
// as tests do it, it does not know.
//
// It is a table of fixed size in which a key has denyWays places, read and written without a lock.
type denyMemory struct {
	sets  int // a power of two
	table atomic.Pointer[[]atomic.Pointer[denial]]
	eager bool         // Redis' clock is taken to run like this one
	paced atomic.Int32 // above 0: it was seen to

	start   time.Time
	changed [denyStripes]atomic.Int64 // when this process last changed a key of the stripe, since start
}

// denial is a refusal by Redis. It is not changed.
type denial struct {
	hash           uint64
	key            string
	buckets        []bucket
	states         []state
	n              int64
	sent, received time.Time
}

// newDenyMemory returns nil, a memory of nothing, for no entries.
func newDenyMemory(entries int, eager bool) *denyMemory {
	if entries <= 0 {
		return nil
	}
	m := &denyMemory{sets: 1 << bits.Len(uint((entries-1)/denyWays)), eager: eager, start: time.Now()}
	if eager {
		m.paced.Store(paceSure)
	}
	return m
}

// places returns where the hash of a key may be, nil if nothing was ever remembered.
func (m *denyMemory) places(hash uint64) []atomic.Pointer[denial] {
	table := m.table.Load()
	if table == nil {
		return nil
	}
	i := int(hash&uint64(m.sets-1)) * denyWays
	return (*table)[i : i+denyWays]
}

// knows reports whether an ask is known to be refused, and if so sets its states.
func (m *denyMemory) knows(a *ask) bool {
	if m == nil || a.charges <= 0 || m.paced.Load() <= 0 {
		return false
	}
	d := find(m.places(a.hash), a)
	if d == nil {
		return false
	}
	now := time.Now()
	age := now.Sub(d.sent)
	if age >= denialLife {
		return false
	}
	longest := int64((age + time.Millisecond - 1) / time.Millisecond)
	refused := false
	for i := range a.buckets {
		refused = refused || a.buckets[i].refuses(d.states[i], longest, a.n)
	}
	if refused {
		shortest := now.Sub(d.received).Milliseconds()
		for i := range a.buckets {
			a.states[i] = a.buckets[i].passed(d.states[i], shortest)
		}
	}
	return refused
}

// find returns what is remembered of an ask's key and limits.
func find(places []atomic.Pointer[denial], a *ask) *denial {
	for i := range places {
		d := places[i].Load()
		if d == nil || !d.of(a) || !sameLimits(d.buckets, a.buckets) {
			continue
		}
		if d.n == a.n || a.buckets[0].algorithm == TokenBucket { // a window's waits are those of n tokens
			return d
		}
	}
	return nil
}

func (d *denial) of(a *ask) bool { return d.hash == a.hash && d.key == string(a.key) }

// remember keeps that Redis refused an ask.
func (m *denyMemory) remember(a *ask) {
	if m == nil || a.charges <= 0 || m.changedSince(a) {
		return
	}
	if m.table.Load() == nil {
		table := make([]atomic.Pointer[denial], m.sets*denyWays)
		m.table.CompareAndSwap(nil, &table)
	}
	places := m.places(a.hash)
	if !m.eager {
		if before := find(places, a); before != nil && !m.watch(before, a) {
			return
		}
	}
	d := &denial{hash: a.hash, key: string(a.key), buckets: a.buckets, states: slices.Clone(a.states), n: a.n, sent: a.sent, received: a.received}
	place, old := leastOf(places, d)
	if place.CompareAndSwap(old, d) && m.changedSince(a) {
		place.CompareAndSwap(d, nil)
	}
}

// watch learns from two refusals whether Redis' clock runs like this one. It is false if that is too soon to tell.
func (m *denyMemory) watch(before *denial, a *ask) bool {
	shortest, longest := a.sent.Sub(before.received), a.received.Sub(before.sent)
	b := &a.buckets[0]
	fell, paced := b.full(before.states[0])-b.full(a.states[0]), m.paced.Load()
	switch {
	case fell > longest.Milliseconds()+2:
		m.paced.CompareAndSwap(paced, max(-2, paced-2))
	case shortest < pacePeriod:
		return paced > 0
	case fell >= shortest.Milliseconds()-1:
		m.paced.CompareAndSwap(paced, min(paceSure, paced+1))
	}
	return true
}

// leastOf returns the place for a refusal, and what is there: one of the same key, none, or the oldest one.
func leastOf(places []atomic.Pointer[denial], d *denial) (place *atomic.Pointer[denial], old *denial) {
	for i := range places {
		this := places[i].Load()
		switch {
		case this == nil || this.hash == d.hash && this.key == d.key:
			return &places[i], this
		case old == nil || this.sent.Before(old.sent):
			place, old = &places[i], this
		}
	}
	return place, old
}

// forget forgets a key that this process has changed, and what it asked about it before. Where the change
// failed, Redis may still make it: nothing is remembered of the key until a denial of now has no life left.
func (m *denyMemory) forget(a *ask, failed bool) {
	if m == nil {
		return
	}
	at := time.Since(m.start)
	if failed {
		at += denialLife
	}
	changed := &m.changed[a.hash%denyStripes]
	for was := changed.Load(); was < int64(at) && !changed.CompareAndSwap(was, int64(at)); was = changed.Load() {
	}
	m.drop(a)
}

// drop forgets what is remembered of an ask's key. A charge does so: the level is higher than was known.
func (m *denyMemory) drop(a *ask) {
	if m == nil {
		return
	}
	places := m.places(a.hash)
	for i := range places {
		if d := places[i].Load(); d != nil && d.of(a) {
			places[i].CompareAndSwap(d, nil)
		}
	}
}

// changedSince reports whether a key of the ask's stripe was changed since the ask was sent.
func (m *denyMemory) changedSince(a *ask) bool {
	changed := m.changed[a.hash%denyStripes].Load()
	return changed > 0 && int64(a.sent.Sub(m.start)) <= changed
}

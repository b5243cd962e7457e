// Package denycache remembers denials, and denies for as long as Redis would.
package denycache

import (
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clocktrust"
)

const (
	// MaxEntries keeps the table allocatable.
	MaxEntries = 1 << 22
	// life is how long a denial is believed.
	life = time.Second
	// ways is how many entries a key may be in.
	ways = 4
	// stripes is over how many clocks the keys are spread that tell when one was changed.
	stripes = 64
	// shares is how many sets of buckets are kept for denials to share. More may be remembered, in
	// more memory.
	shares = 64
)

// Cache remembers denials. A nil Cache remembers nothing.
//
// A level that Redis found falls only by what drains. Redis read it after it was asked and before
// it answered. Counted from the former, the level is a lower bound, by which a request is denied;
// from the latter an upper one, by which the client is told when to come back. So it denies no
// client that Redis would admit, but for tokens that another process gave back within a second, and
// for a second at most a call of several tokens after a block under a limit that was raised during
// the block.
//
// Its clock is that of this process. It denies nobody until Redis' clock is trusted, and watches
// how levels fall to learn that.
//
// It is a table of fixed size in which a key has a few places, read and written without a lock.
//
// A change in this process, such as a refund, leaves no older denial behind. Forget sets the clock
// of the key's stripe, then empties the key's places. Remember writes its entry, then removes it if
// the clock has passed the time at which its call was sent. If Forget empties the places before the
// entry is written, it has set the clock before, and Remember sees it.
type Cache struct {
	clock  *clocktrust.Clock
	sets   int // a power of two
	table  atomic.Pointer[[]atomic.Pointer[entry]]
	shared [shares]atomic.Pointer[[]bucket.Bucket]

	start   time.Time
	changed [stripes]atomic.Int64 // when this process last changed a key of the stripe, since start
}

// Subject is whose denial it is: a key, with its hash, and the buckets of its limits.
type Subject struct {
	Key     []byte
	Hash    uint64
	Buckets []bucket.Bucket
	N       int64 // tokens of a charge
}

// Denial is what Redis found when it denied.
type Denial struct {
	States         []bucket.State
	Sent, Received time.Time // when Redis was asked, and had answered
}

// entry is a denial by Redis. It is not changed.
type entry struct {
	hash    uint64
	key     string
	buckets []bucket.Bucket
	n       int64
	Denial
}

// New returns a cache of so many entries, rounded up, and nil for none.
func New(entries int, clock *clocktrust.Clock) *Cache {
	if entries <= 0 {
		return nil
	}
	return &Cache{clock: clock, sets: 1 << bits.Len(uint((entries-1)/ways)), start: time.Now()}
}

// places returns where the hash of a key may be, nil if nothing was ever remembered.
func (c *Cache) places(hash uint64) []atomic.Pointer[entry] {
	table := c.table.Load()
	if table == nil {
		return nil
	}
	i := int(hash&uint64(c.sets-1)) * ways
	return (*table)[i : i+ways]
}

// Lookup reports whether a charge is known to be denied, and if so sets the states of its buckets.
func (c *Cache) Lookup(s Subject, states []bucket.State) bool {
	if c == nil || !c.clock.Trusted() && bucket.Timed(s.Buckets) >= 0 {
		return false
	}
	e := find(c.places(s.Hash), s)
	if e == nil {
		return false
	}
	now := time.Now()
	age := now.Sub(e.Sent)
	if age >= life {
		return false
	}
	longest := int64((age + time.Millisecond - 1) / time.Millisecond)
	refused := false
	for i := range s.Buckets {
		refused = refused || s.Buckets[i].Denies(e.States[i], longest, s.N)
	}
	if refused {
		shortest := now.Sub(e.Received).Milliseconds()
		for i := range s.Buckets {
			states[i] = s.Buckets[i].After(e.States[i], shortest)
		}
	}
	return refused
}

// find returns what is remembered of a subject.
func find(places []atomic.Pointer[entry], s Subject) *entry {
	for i := range places {
		e := places[i].Load()
		if e != nil && e.of(s.Hash, s.Key) && bucket.Same(e.buckets, s.Buckets) &&
			(e.n == s.N || bucket.Tokens(s.Buckets)) { // a window's waits are those of n tokens
			return e
		}
	}
	return nil
}

func (e *entry) of(hash uint64, key []byte) bool { return e.hash == hash && e.key == string(key) }

// Remember keeps that Redis refused a charge.
func (c *Cache) Remember(s Subject, r Denial) {
	if c == nil || c.changedSince(s.Hash, r.Sent) {
		return
	}
	if c.table.Load() == nil {
		table := make([]atomic.Pointer[entry], c.sets*ways)
		c.table.CompareAndSwap(nil, &table)
	}
	places := c.places(s.Hash)
	if !c.clock.Always() {
		if before := find(places, s); before != nil && !c.watch(before, s.Buckets, r) {
			return
		}
	}
	e := &entry{hash: s.Hash, key: string(s.Key), buckets: c.share(s.Buckets), n: s.N, Denial: r}
	e.States = slices.Clone(r.States)
	place, old := choose(places, e)
	if place.CompareAndSwap(old, e) && c.changedSince(s.Hash, r.Sent) {
		place.CompareAndSwap(e, nil)
	}
}

// share returns the same buckets from where other denials have them too: an application that passes
// limits with each call makes new ones each time.
func (c *Cache) share(buckets []bucket.Bucket) []bucket.Bucket {
	first := &buckets[0]
	place := &c.shared[(uint64(first.Kind)+3*uint64(first.Burst)+5*uint64(first.Period))%shares]
	if known := place.Load(); known != nil && bucket.Same(*known, buckets) {
		return *known
	}
	own := slices.Clone(buckets) // the caller may use its memory again
	place.Store(&own)
	return own
}

// watch learns from two denials whether Redis' clock runs like this one. It is false if that is too
// soon to tell. Calendar periods say nothing of it.
func (c *Cache) watch(before *entry, buckets []bucket.Bucket, r Denial) bool {
	i := bucket.Timed(buckets)
	if i < 0 {
		return true
	}
	fell := buckets[i].ResetAfter(before.States[i]) - buckets[i].ResetAfter(r.States[i])
	return c.clock.Saw(fell, r.Sent.Sub(before.Received), r.Received.Sub(before.Sent)) || c.clock.Trusted()
}

// choose returns the place for an entry, and what is there: one of the same key, none, or the
// oldest one.
func choose(places []atomic.Pointer[entry], e *entry) (place *atomic.Pointer[entry], old *entry) {
	for i := range places {
		this := places[i].Load()
		switch {
		case this == nil || this.hash == e.hash && this.key == e.key:
			return &places[i], this
		case old == nil || this.Sent.Before(old.Sent):
			place, old = &places[i], this
		}
	}
	return place, old
}

// Forget forgets a key that this process has changed, and what it asked about it before. If the
// change failed, Redis may still make it: nothing is remembered of the key until a denial of now
// has no life left.
func (c *Cache) Forget(key []byte, hash uint64, failed bool) {
	if c == nil {
		return
	}
	at := time.Since(c.start)
	if failed {
		at += life
	}
	changed := &c.changed[hash%stripes]
	for was := changed.Load(); was < int64(at) && !changed.CompareAndSwap(was, int64(at)); was = changed.Load() {
	}
	c.Drop(key, hash)
}

// Drop forgets what is remembered of a key. A charge does so: the level is higher than was known.
func (c *Cache) Drop(key []byte, hash uint64) {
	if c == nil {
		return
	}
	places := c.places(hash)
	for i := range places {
		if e := places[i].Load(); e != nil && e.of(hash, key) {
			places[i].CompareAndSwap(e, nil)
		}
	}
}

// changedSince reports whether a key of the hash's stripe was changed since a time.
func (c *Cache) changedSince(hash uint64, sent time.Time) bool {
	changed := c.changed[hash%stripes].Load()
	return changed > 0 && int64(sent.Sub(c.start)) <= changed
}

// Len returns how many denials may be told without Redis. It looks through the whole table.
func (c *Cache) Len() int {
	if c == nil {
		return 0
	}
	table, n, now := c.table.Load(), 0, time.Now()
	if table == nil {
		return 0
	}
	for i := range *table {
		if e := (*table)[i].Load(); e != nil && now.Sub(e.Sent) < life {
			n++
		}
	}
	return n
}

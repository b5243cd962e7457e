package lease

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clocktrust"
)

const (
	// MaxKeys is how many keys are watched for their usage, and may have leases.
	MaxKeys = sets * ways
	sets    = 1024 // a power of two
	// ways is how many entries a key may be in.
	ways = 4
	// visitors is how many recent keys are remembered. A key is watched from its second visit on.
	visitors = 4096 // a power of two
	// stripes is how many groups of keys record their changes together.
	stripes = 1024
	// failedLife is how long a failed change may still be made.
	failedLife = time.Second
	// quietTime is how long no tokens of a key are taken ahead after two changes within that time.
	// Each of many refunds would void the leased tokens, which nobody could use then.
	quietTime = 5 * time.Second
	// maxWatch limits the age of readings from which the pace of Redis' clock is derived.
	maxWatch = 10 * time.Second
)

// Cache holds a process's leases. A nil Cache has none.
//
// It is a table of fixed size. Each key has a few places in it, which are read and written without
// a lock.
type Cache struct {
	clock   *clocktrust.Clock
	start   time.Time
	table   atomic.Pointer[[sets * ways]atomic.Pointer[entry]]
	seen    [visitors]atomic.Uint64 // hashes of keys
	outages atomic.Uint64           // of Redis

	// changes are this process' changes, by their keys' hashes. They are not in the entries,
	// because an entry may be replaced during a change.
	changes   [stripes]change
	giveBacks [stripes]change // of this process' own charges: they void nothing

	admitted atomic.Uint64
}

// change records the changes to the keys of a stripe. Its times count from the cache's start.
type change struct {
	running  atomic.Int32 // changes in flight
	ended    atomic.Int64 // when the last one ended, or may have at the latest
	repeated atomic.Int64 // the last begin within quietTime after another change
}

// New returns an empty cache. It makes no lease until the clock is trusted.
func New(clock *clocktrust.Clock) *Cache { return &Cache{clock: clock, start: time.Now()} }

// Subject identifies an owner of tokens: a key, its hash, and the buckets of its limits.
type Subject struct {
	Key     []byte
	Hash    uint64
	Buckets []bucket.Bucket
}

// entry is a watched key.
type entry struct {
	hash    uint64
	key     string
	buckets []bucket.Bucket
	usage   usage
	watch   watch
	lease   atomic.Pointer[lease] // replaced with mu held
	mu      sync.Mutex

	prefetching atomic.Int64 // when a call began to take tokens ahead, since the cache's start; or 0
	room        atomic.Int64 // tokens left in the bucket after the last decision
	last        atomic.Int64 // when the last decision was received, since the cache's start
}

func (e *entry) matches(s *Subject) bool {
	return e.hash == s.Hash && e.key == string(s.Key) && bucket.Same(e.buckets, s.Buckets)
}

// now returns the time since the cache's start. It is never 0.
func (c *Cache) now() time.Duration { return max(1, time.Since(c.start)) }

// places returns the places for a hash, or nil before any key is watched.
func (c *Cache) places(hash uint64) []atomic.Pointer[entry] {
	table := c.table.Load()
	if table == nil {
		return nil
	}
	i := int(hash&(sets-1)) * ways
	return table[i : i+ways]
}

// find returns the entry of a key under these limits.
func (c *Cache) find(s *Subject) *entry {
	places := c.places(s.Hash)
	for i := range places {
		if e := places[i].Load(); e != nil && e.matches(s) {
			return e
		}
	}
	return nil
}

// visited reports whether a key was visited lately, and remembers the visit.
func (c *Cache) visited(hash uint64) bool {
	place := &c.seen[(hash>>20)&(visitors-1)]
	return place.Load() == hash || place.Swap(hash) == hash
}

// add begins to watch a key. If the key has no free place, it replaces the entry whose last
// decision is oldest among those without usable tokens.
func (c *Cache) add(s *Subject) *entry {
	if c.table.Load() == nil {
		c.table.CompareAndSwap(nil, new([sets * ways]atomic.Pointer[entry]))
	}
	now := c.now()
	e := &entry{hash: s.Hash, key: string(s.Key), buckets: slices.Clone(s.Buckets)}
	var place *atomic.Pointer[entry]
	var old *entry
	for i, places := 0, c.places(s.Hash); i < len(places); i++ {
		this := places[i].Load()
		if this == nil {
			place, old = &places[i], nil
			break
		}
		if this.matches(s) { // another call has just added it
			return this
		}
		if c.usable(this) > 0 {
			continue
		}
		if place == nil || this.last.Load() < old.last.Load() {
			place, old = &places[i], this
		}
	}
	e.last.Store(int64(now))
	if place == nil || !place.CompareAndSwap(old, e) {
		return nil
	}
	return e
}

// remove forgets a key.
func (c *Cache) remove(e *entry) {
	places := c.places(e.hash)
	for i := range places {
		places[i].CompareAndSwap(e, nil)
	}
}

// changed reports whether this process is changing a key of the stripe, or has changed one since a
// time.
func (c *Cache) changed(hash uint64, since time.Time) bool {
	return c.changes[hash%stripes].since(c, since)
}

// changedOften reports whether this process has lately changed keys of the stripe repeatedly.
func (c *Cache) changedOften(hash uint64) bool {
	repeated := time.Duration(c.changes[hash%stripes].repeated.Load())
	return repeated > 0 && c.now()-repeated < quietTime
}

// gaveBackSince reports whether the key's levels may have fallen since a time because this process
// gave tokens back.
func (c *Cache) gaveBackSince(hash uint64, since time.Time) bool {
	return c.changed(hash, since) || c.giveBacks[hash%stripes].since(c, since)
}

func (change *change) since(c *Cache, since time.Time) bool {
	return change.running.Load() > 0 || change.ended.Load() >= int64(max(1, since.Sub(c.start)))
}

// current returns an entry's lease, or nil if there is none or if an outage or a change has voided
// it.
func (c *Cache) current(e *entry) *lease {
	l := e.lease.Load()
	if l == nil || l.era != c.era() || c.changed(e.hash, l.sent) {
		return nil
	}
	return l
}

// usable returns how many tokens of a key may be used.
func (c *Cache) usable(e *entry) int64 {
	l := c.current(e)
	if l == nil {
		return 0
	}
	return l.usable(e.buckets, time.Since(l.sent))
}

// trusted reports whether the clock that returns the tokens is trusted. Calendar periods use this
// process' clock.
func (c *Cache) trusted(buckets []bucket.Bucket) bool {
	return c.clock.Trusted() || bucket.Timed(buckets) < 0
}

// Take uses n leased tokens, all or none. It returns how many usable tokens remain and when the
// lease's last decision was sent, and sets the buckets' states as far as this process knows them.
func (c *Cache) Take(s Subject, n int64, states []bucket.State) (left int64, sent time.Time, ok bool) {
	if c == nil || !c.trusted(s.Buckets) {
		return left, sent, false
	}
	e := c.find(&s)
	if e == nil {
		return left, sent, false
	}
	l := c.current(e)
	if l == nil {
		return left, sent, false
	}
	now := time.Now()
	if left, ok = l.take(e.buckets, now.Sub(l.sent), n); !ok {
		return left, sent, false
	}
	passed := max(0, now.Sub(l.received).Milliseconds())
	for i := range e.buckets {
		states[i] = e.buckets[i].After(l.after[i], passed)
	}
	e.usage.add(n)
	c.admitted.Add(1)
	return left, l.sent, true
}

// Forget voids the leases of a key's stripe until done is called. A caller that gives tokens back
// or blocks calls it before the change, and done after it. If the change failed, Redis may still
// make it, and there is no lease for that long.
func (c *Cache) Forget(hash uint64) (done func(failed bool)) {
	if c == nil {
		return func(bool) {}
	}
	return c.changes[hash%stripes].begin(c)
}

// Returns records that this process gives back its own charges to a key's buckets until done is
// called. The buckets seem to drain faster during that time.
func (c *Cache) Returns(hash uint64) (done func(failed bool)) {
	if c == nil {
		return func(bool) {}
	}
	return c.giveBacks[hash%stripes].begin(c)
}

func (change *change) begin(c *Cache) (done func(failed bool)) {
	now := c.now()
	if ended := time.Duration(change.ended.Load()); ended > 0 && now-ended < quietTime {
		change.repeated.Store(int64(now))
	}
	change.running.Add(1)
	return func(failed bool) {
		at := c.now()
		if failed {
			at += failedLife
		}
		ended := &change.ended
		for was := ended.Load(); was < int64(at) && !ended.CompareAndSwap(was, int64(at)); was = ended.Load() {
		}
		change.running.Add(-1)
	}
}

// era counts outages and jumps of Redis' clock. Leases of an earlier era are void.
func (c *Cache) era() uint64 { return c.outages.Load() + c.clock.Jumps() }

// Lose voids all leases after an outage of Redis.
func (c *Cache) Lose() {
	if c != nil {
		c.outages.Add(1)
	}
}

// Unused holds unused tokens of a key.
type Unused struct {
	Subject
	Tokens int64
	Marks  []int64       // set if there are windows
	Age    time.Duration // since the lease's last decision was sent
}

// Op returns the Op that gives the tokens back.
func (u *Unused) Op() bucket.Op {
	claims, age := make([]bucket.Claim, len(u.Buckets)), (u.Age+u.Age/1024).Milliseconds()+1
	for i := range claims {
		units := u.Tokens * u.Buckets[i].Cost // as far as not void
		claims[i] = bucket.Claim{Sure: units, Behind: units, Age: age, Resets: age}
		if u.Marks != nil {
			claims[i].Mark = u.Marks[i]
		}
	}
	return bucket.Op{Verb: bucket.Return, N: u.Tokens, Claims: claims, Records: bucket.WithRecords}
}

// Drain voids all leases, and returns the tokens that may be given back within a time.
func (c *Cache) Drain(within time.Duration) []Unused {
	if c == nil {
		return nil
	}
	table := c.table.Load()
	if table == nil {
		return nil
	}
	var all []Unused
	for i := range table {
		e := table[i].Swap(nil)
		if e == nil {
			continue
		}
		e.mu.Lock()
		u, ok := c.reclaimLocked(e, within)
		e.mu.Unlock()
		if ok {
			all = append(all, u)
		}
	}
	return all
}

// unused returns tokens of the entry's key to give back to Redis.
func (e *entry) unused(n int64, marks []int64, age time.Duration) Unused {
	u := Unused{Subject: Subject{[]byte(e.key), e.hash, e.buckets}, Tokens: n, Age: age}
	if !bucket.Tokens(e.buckets) {
		u.Marks = marks
	}
	return u
}

// reclaimLocked ends an entry's lease, and returns the tokens that may be given back within a time.
func (c *Cache) reclaimLocked(e *entry, within time.Duration) (back Unused, ok bool) {
	l := c.current(e)
	if l == nil {
		return back, false
	}
	e.lease.Store(nil)
	age := time.Since(l.sent) + within
	n := l.void(e.buckets, age)
	if n <= 0 {
		return back, false
	}
	var marks []int64
	for i := range l.after {
		marks = append(marks, l.after[i].Mark)
	}
	return e.unused(n, marks, age), true
}

// Stats are the statistics of a cache.
type Stats struct {
	Keys     int    // keys with usable tokens
	Admitted uint64 // calls admitted from leases
}

// Stats returns the current statistics. It scans the whole table.
func (c *Cache) Stats() Stats {
	if c == nil {
		return Stats{}
	}
	s := Stats{Admitted: c.admitted.Load()}
	if table := c.table.Load(); table != nil {
		for i := range table {
			if e := table[i].Load(); e != nil && c.usable(e) > 0 {
				s.Keys++
			}
		}
	}
	return s
}

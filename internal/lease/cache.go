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
	// MaxKeys is how many keys are watched for how much they are used, and may have leases.
	MaxKeys = sets * ways
	sets    = 1024 // a power of two
	// ways is how many entries a key may be in.
	ways = 4
	// visitors is how many keys are remembered that have been asked about lately. A key is watched
	// from its second visit on.
	visitors = 4096 // a power of two
	// stripes is how many groups of keys there are, each of which notes its changes together.
	stripes = 1024
	// failedLife is for how long a change may still be made that has failed.
	failedLife = time.Second
	// quiet is for how long nothing is taken ahead of a key after two changes within that time:
	// each of many refunds would void what is leased, and so take it from others.
	quiet = 5 * time.Second
	// maxWatch is how long a reading of a level is of use to learn how fast Redis' clock runs.
	maxWatch = 10 * time.Second
)

// Cache is the leases of a process. A nil Cache has none.
//
// It is a table of fixed size in which a key has a few places, read and written without a lock.
type Cache struct {
	clock *clocktrust.Clock
	start time.Time
	table atomic.Pointer[[sets * ways]atomic.Pointer[entry]]
	seen  [visitors]atomic.Uint64 // hashes
	epoch atomic.Uint64           // how often Redis was lost

	// changes by this process, by their keys' hashes. They are not in the entries: an entry may be
	// replaced while its key is being changed, and the next one must know.
	changes [stripes]change
	returns [stripes]change // what gives back no more than this process' own charges: they void nothing

	admitted atomic.Uint64
}

// change is what is known of the changes to the keys of a stripe.
type change struct {
	going atomic.Int32 // changes on their way
	ended atomic.Int64 // when the last one had ended, or may have, since the cache's start
	again atomic.Int64 // when one last began within the time quiet after another, since the cache's start
}

// New returns an empty cache. It makes no lease until the clock is trusted.
func New(clock *clocktrust.Clock) *Cache { return &Cache{clock: clock, start: time.Now()} }

// Subject is whose tokens they are: a key, with its hash, and the buckets of its limits.
type Subject struct {
	Key     []byte
	Hash    uint64
	Buckets []bucket.Bucket
}

// entry is a key that is used often.
type entry struct {
	hash    uint64
	key     string
	buckets []bucket.Bucket
	usage   usage
	watch   watch
	lease   atomic.Pointer[lease] // replaced behind mu
	mu      sync.Mutex

	prefetching atomic.Int64 // since when a call takes tokens ahead, since the cache's start; 0 is not
	room        atomic.Int64 // tokens left in the bucket when Redis was last asked
	last        atomic.Int64 // when Redis was last asked, since the cache's start
}

func (e *entry) of(s *Subject) bool {
	return e.hash == s.Hash && e.key == string(s.Key) && bucket.Same(e.buckets, s.Buckets)
}

// now returns the time since the cache's start, which is never 0.
func (c *Cache) now() time.Duration { return max(1, time.Since(c.start)) }

// places returns where a hash may be, nil if no key was ever watched.
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
		if e := places[i].Load(); e != nil && e.of(s) {
			return e
		}
	}
	return nil
}

// visited reports whether a key was asked about lately, and remembers that it was.
func (c *Cache) visited(hash uint64) bool {
	place := &c.seen[(hash>>20)&(visitors-1)]
	return place.Load() == hash || place.Swap(hash) == hash
}

// add has a key be watched, in the place of another if there is none left: of one without a lease
// if there is one, of those the one that was not asked about for longest.
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
		if this.of(s) { // another call has just added it
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

// changed reports whether this process changes the key, or one of its stripe, or has since a time.
func (c *Cache) changed(hash uint64, since time.Time) bool {
	return c.changes[hash%stripes].since(c, since)
}

// restless reports whether this process has lately changed the key, or one of its stripe, again and
// again.
func (c *Cache) restless(hash uint64) bool {
	again := time.Duration(c.changes[hash%stripes].again.Load())
	return again > 0 && c.now()-again < quiet
}

// fell reports whether the key's levels may have fallen since a time because this process gave
// back.
func (c *Cache) fell(hash uint64, since time.Time) bool {
	return c.changed(hash, since) || c.returns[hash%stripes].since(c, since)
}

func (change *change) since(c *Cache, since time.Time) bool {
	return change.going.Load() > 0 || change.ended.Load() >= int64(max(1, since.Sub(c.start)))
}

// current returns the lease of an entry, or nil if there is none, or Redis was lost or the key
// changed since.
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

// trusted reports whether the clock is trusted by which tokens come back. Those of calendar periods
// come back by that of this process.
func (c *Cache) trusted(buckets []bucket.Bucket) bool {
	return c.clock.Trusted() || bucket.Timed(buckets) < 0
}

// Take uses n leased tokens, all or none. It returns how many are left to be used, and when Redis
// was asked for them, and sets the states of the buckets to what they are, as far as this process
// knows.
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

// Forget voids what is leased of a key, and of the others of its stripe, until the function that it
// returns is called: before and after this process gives tokens back to the key's buckets, or
// blocks them. That function is told whether the change failed: then Redis may still make it, and
// for that long there is no lease.
func (c *Cache) Forget(hash uint64) (done func(failed bool)) {
	if c == nil {
		return func(bool) {}
	}
	return c.changes[hash%stripes].begin(c)
}

// Returns notes that this process gives back to a key's buckets what it has charged, until the
// function that it returns is called: the buckets seem to drain faster then. That function is told
// whether it failed.
func (c *Cache) Returns(hash uint64) (done func(failed bool)) {
	if c == nil {
		return func(bool) {}
	}
	return c.returns[hash%stripes].begin(c)
}

func (change *change) begin(c *Cache) (done func(failed bool)) {
	now := c.now()
	if ended := time.Duration(change.ended.Load()); ended > 0 && now-ended < quiet {
		change.again.Store(int64(now))
	}
	change.going.Add(1)
	return func(failed bool) {
		at := c.now()
		if failed {
			at += failedLife
		}
		for was := change.ended.Load(); was < int64(at) && !change.ended.CompareAndSwap(was, int64(at)); was = change.ended.Load() {
		}
		change.going.Add(-1)
	}
}

// era counts how often Redis was lost and its clock seen to be set forward: leases of an earlier
// one are void.
func (c *Cache) era() uint64 { return c.epoch.Load() + c.clock.Jumps() }

// Lose voids all leases, as Redis is lost.
func (c *Cache) Lose() {
	if c != nil {
		c.epoch.Add(1)
	}
}

// Unused are tokens of a key that were not used.
type Unused struct {
	Subject
	Tokens int64
	Marks  []int64       // of windows
	Age    time.Duration // since Redis was last asked
}

// Op returns the Op that gives the tokens back.
func (u *Unused) Op() bucket.Op {
	claims, age := make([]bucket.Claim, len(u.Buckets)), (u.Age+u.Age/1024).Milliseconds()+1
	for i := range claims {
		units := u.Tokens * u.Buckets[i].Cost // as far as they are not void
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

// Stats are the figures of a cache.
type Stats struct {
	Keys     int    // that have leased tokens
	Admitted uint64 // calls
}

// Stats returns the figures of now. It looks through the whole table.
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

package lease

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/table"
)

const (
	// MaxKeys is how many keys are watched for their usage, and may have leases.
	MaxKeys = 4096
	// visitors is how many recent keys are remembered. A key is watched from its second visit on.
	visitors = 4096 // a power of two
	// stripes is how many groups of keys record their changes together.
	stripes = 1024
	// failedLife is how long a failed change may still be made.
	failedLife = time.Second
)

// Cache holds a process's leases.
type Cache struct {
	start   time.Time
	table   table.Table[entry]
	seen    atomic.Pointer[[visitors]atomic.Uint64] // hashes of keys
	outages atomic.Uint64                           // of Redis

	// changes are this process' resets and blocks, by their keys' hashes. They are not in the
	// entries, because an entry may be replaced during a change.
	changes [stripes]change

	send     func(Unused)
	closing  atomic.Bool // Drain gives back what leases leave
	admitted atomic.Uint64
}

// change records the changes to the keys of a stripe. Its times count from the cache's start.
type change struct {
	running atomic.Int32 // changes in flight
	ended   atomic.Int64 // when the last one ended, or may have at the latest
}

// New returns an empty cache. It calls send to give tokens back, which must not wait for Redis.
func New(send func(Unused)) *Cache {
	return &Cache{table: table.New[entry](MaxKeys), start: time.Now(), send: send}
}

// Subject identifies an owner of tokens: a key, its hash, and the buckets of its limits.
type Subject struct {
	Key     []byte
	Hash    uint64
	Buckets []bucket.Bucket // of a set, which does not change
	Ahead   *bucket.Bucket  // the lease bucket; nil for windows
}

// entry is a watched key.
type entry struct {
	hash    uint64
	key     string
	buckets []bucket.Bucket
	usage   usage
	lease   atomic.Pointer[lease] // replaced with mu held
	mu      sync.Mutex
	ending  *time.Timer // gives back what a lease that has ended leaves; mu guards it

	prefetch    atomic.Pointer[Prefetch] // the call in flight that takes tokens ahead
	room        atomic.Int64             // tokens left in the bucket after the last decision
	pausedUntil atomic.Int64             // since the cache's start; until then others hold all that may be held
	last        atomic.Int64             // when the last decision was received, since the cache's start
}

func (e *entry) matches(s *Subject) bool {
	return e.hash == s.Hash && e.key == string(s.Key) && bucket.Same(e.buckets, s.Buckets)
}

// now returns the time since the cache's start. It is never 0.
func (c *Cache) now() time.Duration { return max(1, time.Since(c.start)) }

// find returns the entry of a key under these limits.
func (c *Cache) find(s *Subject) *entry {
	places := c.table.Places(s.Hash)
	for i := range places {
		if e := places[i].Load(); e != nil && e.matches(s) {
			return e
		}
	}
	return nil
}

// visited reports whether a key was visited lately, and remembers the visit.
func (c *Cache) visited(hash uint64) bool {
	seen := c.seen.Load()
	if seen == nil {
		c.seen.CompareAndSwap(nil, new([visitors]atomic.Uint64))
		seen = c.seen.Load()
	}
	place := &seen[(hash>>20)&(visitors-1)]
	return place.Load() == hash || place.Swap(hash) == hash
}

// add begins to watch a key. If the key has no free place, it replaces the entry whose last
// decision is oldest among those without usable tokens.
func (c *Cache) add(s *Subject) *entry {
	c.table.Grow()
	now := c.now()
	e := &entry{hash: s.Hash, key: string(s.Key), buckets: s.Buckets}
	place, old := table.Choose(c.table.Places(s.Hash), func(o *entry) bool { return o.matches(s) },
		func(o *entry) (at int64, kept bool) {
			l := o.lease.Load()
			return o.last.Load(), l != nil && l.held(time.Since(l.sent)) > 0
		})
	if old != nil && old.matches(s) { // another call has just added it
		return old
	}
	e.last.Store(int64(now))
	if place == nil || !place.CompareAndSwap(old, e) {
		return nil
	}
	if old != nil { // nobody finds it any more
		c.giveBack(c.reclaim(old, false)...)
	}
	return e
}

// changed reports whether this process is changing a key of the stripe, or has changed one since a
// time.
func (c *Cache) changed(hash uint64, since time.Time) bool {
	change := &c.changes[hash%stripes]
	return change.running.Load() > 0 || change.ended.Load() >= int64(max(1, since.Sub(c.start)))
}

// current returns an entry's lease, or nil if there is none or if an outage or a change has ended
// it.
func (c *Cache) current(e *entry) *lease { return c.unbroken(e, e.lease.Load()) }

func (c *Cache) unbroken(e *entry, l *lease) *lease {
	if l == nil || l.era != c.outages.Load() || c.changed(e.hash, l.sent) {
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
	return l.usable(time.Since(l.sent))
}

// Usable returns how many leased tokens of a key may be used.
func (c *Cache) Usable(s Subject) int64 {
	if e := c.find(&s); e != nil {
		return c.usable(e)
	}
	return 0
}

// Take uses n leased tokens, or what there is of them if that is at least least. It returns how many it uses, and
// how many usable tokens remain, and sets the buckets' states as far as this process knows them. A caller that tries
// again says so.
func (c *Cache) Take(s Subject, n, least int64, again bool, states []bucket.State) (taken, left int64) {
	e := c.find(&s)
	if e == nil {
		return 0, 0
	}
	tokens := bucket.Tokens(e.buckets)
	if tokens && !again {
		e.usage.add(n)
	}
	l, now := c.current(e), time.Now()
	for taken == 0 {
		if l == nil {
			return 0, 0
		}
		if taken, left = l.take(now.Sub(l.sent), n, least); taken == 0 {
			before := l
			if l = c.current(e); l == before { // else another lease has just replaced it
				return 0, 0
			}
		}
	}
	passed := max(0, now.Sub(l.received).Milliseconds())
	for i := range e.buckets {
		states[i] = e.buckets[i].After(l.after[i], passed)
	}
	if !tokens {
		e.usage.add(taken)
	}
	c.admitted.Add(1)
	return taken, left
}

// End ends the leases of a key's stripe until done is called. A caller that resets or blocks calls
// it before the change, and done after it. If the change failed, Redis may still make it, and there
// is no lease for that long.
func (c *Cache) End(hash uint64) (done func(failed bool)) {
	change := &c.changes[hash%stripes]
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

// Lose ends all leases after an outage of Redis.
func (c *Cache) Lose() { c.outages.Add(1) }

// Close leaves it to Drain to give tokens back.
func (c *Cache) Close() { c.closing.Store(true) }

// Drain ends all leases, and returns the tokens to give back.
func (c *Cache) Drain() (all []Unused) {
	places := c.table.All()
	for i := range places {
		if e := places[i].Swap(nil); e != nil {
			all = append(all, c.reclaim(e, false)...)
		}
	}
	return all
}

// Stats are the statistics of a cache.
type Stats struct {
	Keys     int    // keys with usable tokens
	Admitted uint64 // calls admitted from leases
}

// Stats returns the current statistics. It scans the whole table.
func (c *Cache) Stats() Stats {
	s := Stats{Admitted: c.admitted.Load()}
	places := c.table.All()
	for i := range places {
		if e := places[i].Load(); e != nil && c.usable(e) > 0 {
			s.Keys++
		}
	}
	return s
}

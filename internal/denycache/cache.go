// Package denycache remembers denials, and denies for as long as Redis would.
//
// It owns the denials of the last second. It never asks Redis, and never knows who is denied or what for: keys,
// buckets and states are all that it sees.
package denycache

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/table"
)

const (
	// MaxEntries keeps the table allocatable.
	MaxEntries = 1 << 22
	// life is how long a denial is used.
	life = time.Second
	// stripes is how many stripes of keys record their last change.
	stripes = 1024
)

// Cache remembers denials. A nil Cache remembers nothing.
//
// The level that Redis found falls only by what drains. Redis read it between the request and the
// answer. Counted from the request, the level is a lower bound; it decides whether to deny. Counted
// from the answer, the level is an upper bound; it sets the wait that the client is given. So the
// cache denies no client that Redis would admit, with three exceptions, each for a second at most.
// Another process may have given tokens back. A limit may have been raised during a block, and the
// call takes several tokens. A denial may be held: see Denial and Holds.
//
// The cache uses this process' clock: a test that sets Redis' clock makes none.
//
// After a change in this process, such as a refund, no older denial remains. Forget sets the time
// of the key's stripe, then empties the key's places. Remember writes its entry, then removes it if
// its call was sent before that time. If Forget empties the places before the entry is written, it
// has already set the time, and Remember sees it.
type Cache struct {
	table table.Table[entry]
	start time.Time
	// changed is when this process last changed a key of a stripe, or charged it for a tenant, since start.
	changed [stripes]atomic.Int64
}

// Subject identifies a denial: a key, its hash, the buckets of its limits and the cost.
type Subject struct {
	Key     []byte
	Hash    uint64
	Buckets []bucket.Bucket // of a set, which does not change
	N       int64           // tokens of one charge
	Waits   bool            // for tokens: it is denied for no longer than the states say
	Shared  uint64          // the hash of the key whose changes end the denial, if that is another: of a tenant of it
}

// changes returns the hash of the key whose changes end the denial.
func (s *Subject) changes() uint64 { return cmp.Or(s.Shared, s.Hash) }

// Denial is what Redis found when it denied a request.
type Denial struct {
	States         []bucket.State
	Sent, Received time.Time // when the request was sent, and the answer received
	// AtLeast is for how long token buckets deny what they deny now, if that Holds. So processes ask
	// Redis seldom when tokens are leased and the limit has no more. 0 is as long as the states say.
	AtLeast time.Duration
	// Beside is what was looked at together with this one lately, and does not deny.
	Beside [2]Beside
}

// Beside identifies subjects, for each of which some tokens were wanted at least. The zero Beside is none.
type Beside struct {
	Of uint64
	N  int64
}

// entry is a remembered denial. It is immutable.
type entry struct {
	hash    uint64
	key     string
	buckets []bucket.Bucket
	n       int64
	Denial
}

// New returns a cache of at least the given number of entries, or nil for none.
func New(entries int) *Cache {
	if entries <= 0 {
		return nil
	}
	return &Cache{table: table.New[entry](entries), start: time.Now()}
}

// Lookup reports whether Redis would deny a charge. If so, it sets the states of the buckets.
func (c *Cache) Lookup(s Subject, states []bucket.State) bool {
	e := c.find(s)
	if e == nil || s.Shared != 0 && c.changedSince(s.Shared, e.Sent) {
		return false
	}
	now := time.Now()
	age, held := now.Sub(e.Sent), e.AtLeast > 0
	if age >= life || held && (age >= e.AtLeast || s.Waits) {
		return false
	}
	maxAge := int64(0)
	if held = held && Holds(s.Buckets, e.States, s.N, e.AtLeast); !held {
		maxAge = bucket.CeilDiv(int64(age), int64(time.Millisecond))
	}
	denied := false
	for i := range s.Buckets {
		b, found := &s.Buckets[i], e.States[i]
		denies := b.Denies(b.After(found, maxAge), s.N)
		denied = denied || denies
		states[i] = b.After(found, now.Sub(e.Received).Milliseconds())
		if held && denies {
			left := bucket.CeilDiv(int64(e.AtLeast-age), int64(time.Millisecond))
			few := b.Remaining(found.Level) // whoever wants more is denied, too
			states[i] = b.Hold(states[i], left, s.N, few)
		}
	}
	return denied
}

// Looked reports whether subjects were looked at together with a denial that is known, for as many tokens.
func (c *Cache) Looked(s Subject, b Beside) bool {
	e := c.find(s)
	return e != nil && slices.ContainsFunc(e.Beside[:], func(o Beside) bool { return o.Of == b.Of && o.N >= b.N })
}

// SetBeside notes what was looked at together with a denial, if that is known.
func (c *Cache) SetBeside(s Subject, b Beside) {
	e := c.find(s)
	if e == nil {
		return
	}
	places := c.table.Places(s.Hash)
	with := *e
	if with.Beside[0].Of != b.Of {
		with.Beside[1] = with.Beside[0]
	}
	with.Beside[0] = b
	for i := range places {
		if places[i].CompareAndSwap(e, &with) && c.changedSince(s.changes(), with.Sent) {
			places[i].CompareAndSwap(&with, nil)
		}
	}
}

// Holds reports whether a denial of n tokens may be held for a time.
//
// A client may have been denied before, and come back when it was told to, which is a second later
// at least, as a header rounds it. Nobody has taken the tokens that it was told of if they are still
// flowing back. So the hold must end within a second of the earliest time at which that client was
// denied. A bucket that is blocked or in debt, or was until now, tells clients a longer time.
func Holds(buckets []bucket.Bucket, states []bucket.State, n int64, atLeast time.Duration) bool {
	limit := (life - atLeast).Milliseconds()
	for i := range buckets {
		b := &buckets[i]
		if !b.Flows() || !b.Denies(states[i], n) {
			continue
		}
		if states[i].Level > b.Capacity || b.RegainTime(n) > limit {
			return false
		}
	}
	return true
}

// find returns the entry of a subject, or nil.
func (c *Cache) find(s Subject) *entry {
	if c == nil {
		return nil
	}
	places := c.table.Places(s.Hash)
	for i := range places {
		e := places[i].Load()
		if e != nil && e.matches(s.Hash, s.Key) && bucket.Same(e.buckets, s.Buckets) &&
			(e.n == s.N || bucket.Tokens(s.Buckets)) { // a window's waits depend on n
			return e
		}
	}
	return nil
}

func (e *entry) matches(hash uint64, key []byte) bool { return e.hash == hash && e.key == string(key) }

// Remember remembers a denial by Redis.
func (c *Cache) Remember(s Subject, r Denial) {
	if c == nil || c.changedSince(s.changes(), r.Sent) {
		return
	}
	c.table.Grow()
	places := c.table.Places(s.Hash)
	for i := range places {
		if before := places[i].Load(); before != nil && before.matches(s.Hash, s.Key) {
			if left := before.AtLeast - r.Sent.Sub(before.Sent); left > 0 { // clients were told of that one
				r.AtLeast = min(r.AtLeast, left)
			}
			if r.AtLeast > 0 && before.n == s.N && !Holds(before.buckets, before.States, s.N, r.AtLeast) {
				r.AtLeast = 0 // clients were told a longer time
			}
		}
	}
	e := &entry{hash: s.Hash, key: string(s.Key), buckets: s.Buckets, n: s.N, Denial: r}
	e.States = slices.Clone(r.States)
	place, old := table.Choose(places, func(o *entry) bool { return o.matches(s.Hash, s.Key) },
		func(o *entry) (at int64, kept bool) { return int64(o.Sent.Sub(c.start)), false })
	if place.CompareAndSwap(old, e) && c.changedSince(s.changes(), r.Sent) {
		place.CompareAndSwap(e, nil)
	}
}

// Forget forgets a key that this process has changed, and the denials of calls sent before. If the
// change failed, Redis may still make it. Then the key's denials are not remembered for a life.
func (c *Cache) Forget(key []byte, hash uint64, failed bool) {
	if c == nil {
		return
	}
	at := time.Since(c.start)
	if failed {
		at += life
	}
	c.change(hash, at)
	c.Charge(Subject{Key: key, Hash: hash})
}

// Charge forgets the denials of a key after Redis has charged it, as their waits are longer now. If tenants
// share the key, the denials of all its tenants are forgotten.
func (c *Cache) Charge(s Subject) {
	if c == nil {
		return
	}
	if s.Shared != 0 {
		c.change(s.Shared, time.Since(c.start))
	}
	places := c.table.Places(s.Hash)
	for i := range places {
		if e := places[i].Load(); e != nil && e.matches(s.Hash, s.Key) {
			places[i].CompareAndSwap(e, nil)
		}
	}
}

// change sets when the last change of a key's stripe was, unless that is later already.
func (c *Cache) change(hash uint64, since time.Duration) {
	t, at := &c.changed[hash%stripes], int64(max(1, since))
	for was := t.Load(); was < at && !t.CompareAndSwap(was, at); was = t.Load() {
	}
}

// changedSince reports whether this process changed a key of the stripe at a time or since.
func (c *Cache) changedSince(hash uint64, sent time.Time) bool {
	at := c.changed[hash%stripes].Load()
	return at > 0 && int64(sent.Sub(c.start)) <= at
}

// Len returns how many denials are usable. It scans the whole table.
func (c *Cache) Len() int {
	if c == nil {
		return 0
	}
	n, now, places := 0, time.Now(), c.table.All()
	for i := range places {
		if e := places[i].Load(); e != nil && now.Sub(e.Sent) < life {
			n++
		}
	}
	return n
}

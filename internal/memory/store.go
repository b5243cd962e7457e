// Package memory keeps buckets in this process: the scripts of Redis in Go, and the model that they
// are tested against.
package memory

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

const (
	// MaxBuckets is how many buckets and windows of all kinds a store is to have.
	MaxBuckets = 1 << 18
	// shards is how many locks they are spread over.
	shards = 32
	// sample is how many buckets are looked at to find one to forget.
	sample = 8
)

// Store keeps buckets. Milliseconds are counted from its start, by the monotonic clock.
type Store struct {
	seed   maphash.Seed
	start  time.Time
	shards [shards]shard
}

// shard holds all buckets of a key. Its mutex guards everything in it.
type shard struct {
	mu      sync.Mutex
	max     int // buckets
	buckets map[id]*entry
	logged  int    // the room of all logs
	spare   *entry // one that was forgotten, for its memory
}

type id struct{ key, bucket string }

// entry is what Redis keeps of a bucket or a window, in as few bytes. A full bucket has none.
type entry struct {
	full  int64 // the millisecond at which all is back: the key's expiry, without a block of a window
	kept  int64 // the key's value: what rounding up to that millisecond left over; of a window, tokens taken
	block int64 // the millisecond at which a block ends
	log   *log  // of a sliding window, unless all its tokens were taken a period before full

	record *record // of what was given back of a bucket; nil of a bucket itself
}

// ends returns when there is nothing to remember any more.
func (e *entry) ends() int64 { return max(e.full, e.block) }

// request is an Op on the buckets of a key, at a millisecond.
type request struct {
	bucket.Op
	key     []byte
	buckets []bucket.Bucket
	states  []bucket.State // to be set
	now     int64
}

func (r *request) id(i int) id { return id{string(r.key), r.buckets[i].ID} }

// New returns a store of so many buckets. Of more, it forgets those that are full soonest.
func New(buckets int) *Store {
	s := &Store{seed: maphash.MakeSeed(), start: time.Now()}
	for i := range s.shards {
		s.shards[i].max = max(1, buckets/shards)
		s.shards[i].buckets = make(map[id]*entry)
	}
	return s
}

// Do does what an Op says, to all buckets of a key or to none, and sets the states found. The
// caller counts slots, and has set their state.
func (s *Store) Do(key []byte, buckets []bucket.Bucket, op bucket.Op, states []bucket.State) {
	shard := s.shard(key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	r := request{op, key, buckets, states, time.Since(s.start).Milliseconds()}
	if op.Verb == bucket.Reset {
		for i := range buckets {
			shard.resetLocked(&r, i)
		}
		return
	}
	charges := op.Charges
	for i := range buckets {
		switch buckets[i].Kind {
		case bucket.Token:
			shard.findTokensLocked(&r, i)
		case bucket.Ban:
			shard.findBanLocked(&r, i)
		case bucket.Slots: // its state is the caller's
		default:
			shard.findWindowLocked(&r, i)
		}
		charges = buckets[i].Fit(states[i].Level, charges, max(1, op.N))
	}
	for i := range buckets {
		switch buckets[i].Kind {
		case bucket.Token:
			shard.changeTokensLocked(&r, i, charges)
		case bucket.Ban:
			shard.banLocked(&r, i, charges)
		case bucket.Slots:
		default:
			shard.changeWindowLocked(&r, i, charges)
		}
	}
}

func (s *Store) shard(key []byte) *shard { return &s.shards[maphash.Bytes(s.seed, key)%shards] }

// Len returns how many buckets are kept, full ones that are not forgotten yet among them.
func (s *Store) Len() int {
	n := 0
	for i := range s.shards {
		shard := &s.shards[i]
		shard.mu.Lock()
		n += len(shard.buckets)
		shard.mu.Unlock()
	}
	return n
}

// findTokensLocked sets the state of a token bucket.
func (s *shard) findTokensLocked(r *request, i int) {
	b, e := &r.buckets[i], s.buckets[r.id(i)]
	level := e.level(b, r.now)
	if r.Verb == bucket.Take && e != nil && e.block > r.now { // the limit may be a larger one by now
		level = max(level, b.BlockLevel(e.block-r.now))
	}
	r.states[i] = bucket.State{Level: level}
}

// changeTokensLocked takes from a token bucket in the state found, gives back, or blocks it.
func (s *shard) changeTokensLocked(r *request, i int, charges int64) {
	b, level := &r.buckets[i], r.states[i].Level
	switch {
	case r.Verb == bucket.Take && charges > 0:
		s.keepLocked(r, i, level+charges*b.Charge(r.N), 0)
	case r.Verb == bucket.Charge:
		var block int64
		if e := s.buckets[r.id(i)]; e != nil {
			block = e.block
		}
		if tokens := b.Debt(level, r.N); tokens > 0 {
			s.keepLocked(r, i, level+tokens*b.Cost, block)
		}
	case r.Verb == bucket.Block:
		s.blockLocked(r, i)
	case r.Verb != bucket.Take && level > 0 && level < bucket.MaxUnits:
		block := s.buckets[r.id(i)].block
		var least int64
		if block > r.now {
			least = b.BlockLevel(block - r.now)
		}
		back, drained := min(s.backLocked(r, i), level-min(level, least)), s.drainedLocked(r, i)
		if r.Verb == bucket.Give || back < level { // else nothing is left
			s.noteLocked(r, i, back, 0, drained)
		}
		s.keepLocked(r, i, level-back, block)
	}
}

// backLocked returns how many units the request gives back to a bucket.
func (s *shard) backLocked(r *request, i int) int64 {
	if r.Verb == bucket.Return {
		return s.claimedLocked(r, i)
	}
	b := &r.buckets[i]
	return min(r.N, bucket.MaxUnits/b.Cost) * b.Cost
}

// resetLocked fills a bucket up.
func (s *shard) resetLocked(r *request, i int) {
	b, e := &r.buckets[i], s.buckets[r.id(i)]
	r.states[i] = bucket.State{}
	if e != nil && e.full > r.now && b.IsLimit() {
		r.states[i].Level = 1                                            // at least: it is written down
		s.noteLocked(r, i, 0, b.Capacity+b.Floor, s.drainedLocked(r, i)) // as much as any call may claim
	}
	s.forgetLocked(r.id(i))
}

func (s *shard) blockLocked(r *request, i int) {
	b, e := &r.buckets[i], s.buckets[r.id(i)]
	block := r.now + r.N
	if e != nil {
		block = max(e.block, block)
	}
	if least := b.BlockLevel(r.N); e.level(b, r.now) < least {
		s.keepLocked(r, i, least, block)
	} else { // as it is: the level may be cut
		e.block = block
	}
}

// level returns the level of a token bucket.
func (e *entry) level(b *bucket.Bucket, now int64) int64 {
	if e == nil || e.full <= now {
		return 0
	}
	ttl := e.full - now
	if ttl > bucket.MaxUnits/b.Drain {
		return bucket.MaxUnits
	}
	if e.kept < b.Drain { // else it is another limit's
		return ttl*b.Drain - e.kept
	}
	return ttl * b.Drain
}

// keepLocked keeps the level of a token bucket, and when a block ends.
func (s *shard) keepLocked(r *request, i int, level, block int64) {
	if level == 0 {
		s.forgetLocked(r.id(i))
		return
	}
	ttl := bucket.CeilDiv(level, r.buckets[i].Drain)
	e := s.entryLocked(r, i)
	e.full, e.kept, e.block = r.now+ttl, ttl*r.buckets[i].Drain-level, block
}

// entryLocked returns what is kept of a bucket, which is made if there is none.
func (s *shard) entryLocked(r *request, i int) *entry {
	if e := s.buckets[r.id(i)]; e != nil {
		return e
	}
	return s.newEntryLocked(r, r.id(i))
}

// newEntryLocked makes an entry.
func (s *shard) newEntryLocked(r *request, id id) *entry {
	s.makeRoomLocked(r)
	e := s.spare
	if e == nil {
		e = new(entry)
	}
	s.spare = nil
	s.buckets[id] = e
	return e
}

// makeRoomLocked forgets the full ones of a sample of buckets and, if there is no room for another
// one, the one of the sample that is full soonest: whose client gains the least. It spares the
// buckets of the request's key.
func (s *shard) makeRoomLocked(r *request) {
	var (
		soonest id
		first   int64 // the soonest end
		looked  int
	)
	for id, e := range s.buckets { // in an order that Go makes random
		switch ends := e.ends(); {
		case id.key == string(r.key):
		case ends <= r.now:
			s.forgetLocked(id)
		case soonest.key == "" || ends < first:
			soonest, first = id, ends
		}
		if looked++; looked == sample {
			break
		}
	}
	if len(s.buckets) >= s.max {
		s.forgetLocked(soonest)
	}
}

// forgetLocked forgets a bucket, if there is one.
func (s *shard) forgetLocked(id id) {
	if e := s.buckets[id]; e != nil {
		s.logged -= e.log.room()
		delete(s.buckets, id)
		*e = entry{}
		s.spare = e
	}
}

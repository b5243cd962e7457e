// Package memory keeps buckets in this process, without Redis and while Redis is away.
//
// It owns their states, and bounds their memory. It is Redis' scripts in Go: a file for each kind,
// with the functions of the script of that name, and decide.go. It knows no policy, no time of day
// but the end of a calendar period, and not who asks.
package memory

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

const (
	// MaxBuckets is the default number of buckets and windows in a store.
	MaxBuckets = 1 << 18
	// shards is the number of locks.
	shards = 32
	// sample is how many entries are examined to find one to evict.
	sample = 8
)

// Store keeps buckets. It counts milliseconds from its start, by the monotonic clock.
type Store struct {
	seed   maphash.Seed
	start  time.Time
	shards [shards]shard
}

// shard holds all buckets of a key. Its mutex guards everything in it.
type shard struct {
	mu      sync.Mutex
	max     int // the most buckets it holds
	buckets map[id]*entry
	era     int64  // how many resets there have been, and Gives of all of a window
	spare   *entry // a removed entry, to reuse its memory
	request request

	logged   int // the room of all logs
	recorded int // the room of all records
	tenants  int // that hold something
}

type id struct{ key, bucket string }

// entry is the state of a bucket or a window. A full bucket has none.
type entry struct {
	// full is the millisecond at which the bucket is full or the window over: the key's expiry,
	// apart from a block of a window.
	full  int64
	value int64 // the key's value: the rounding rest of full; a window's tokens taken; a ban's ordinal
	block int64 // the millisecond at which a block ends
	born  int64 // the era when it was made or emptied
	log   *log  // a sliding window's; nil while all tokens were taken a period before full

	record  *record  // the give-backs of a bucket; nil in a bucket's own entry
	tenants *tenants // what tenants hold of a bucket; nil in a bucket's own entry
}

// ends returns when the entry expires.
func (e *entry) ends() int64 { return max(e.full, e.block) }

// request is an Op on a key's buckets at a millisecond.
type request struct {
	bucket.Op
	key     []byte
	buckets []bucket.Bucket
	states  []bucket.State // set by Do
	now     int64
	fits    int64     // charges, in the states found
	all     []request // of the same decision, if there are several
	done    bool      // its changes are made, in such a decision
}

// id returns the name of a bucket.
func (r *request) id(i int) id { return id{string(r.key), r.buckets[i].ID} }

// uses reports whether an entry is one that the request, or another of its decision, finds or changes.
func (r *request) uses(entry id) bool {
	for i := range r.all {
		if r.all[i].usesItself(entry) {
			return true
		}
	}
	return r.usesItself(entry)
}

func (r *request) usesItself(entry id) bool {
	if entry.key != string(r.key) {
		return false
	}
	for i := range r.buckets {
		if entry == r.id(i) || entry == r.recordID(i) {
			return true
		}
	}
	return false
}

// New returns a store for the given number of buckets. Beyond that, it evicts the buckets that are
// full soonest.
func New(buckets int) *Store {
	s := &Store{seed: maphash.MakeSeed(), start: time.Now()}
	for i := range s.shards {
		s.shards[i].max = max(1, buckets/shards)
		s.shards[i].buckets = make(map[id]*entry)
	}
	return s
}

func (s *Store) shard(key []byte) *shard { return &s.shards[s.shardOf(key)] }

func (s *Store) shardOf(key []byte) uint64 { return maphash.Bytes(s.seed, key) % shards }

// Len returns the number of entries, including expired ones that are not yet removed.
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

// entryLocked returns a bucket's entry, and makes one if there is none.
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
	e.born = s.era
	s.buckets[id] = e
	return e
}

// makeRoomLocked removes the expired entries of a sample. If there is still no room, it evicts the
// sample's entry that expires soonest, whose client gains the least. It spares what the request uses.
func (s *shard) makeRoomLocked(r *request) {
	var (
		soonest id
		first   int64 // its end
		sampled int
	)
	for id, e := range s.buckets { // in random order
		if r.uses(id) {
			continue
		}
		switch ends := e.ends(); {
		case ends <= r.now:
			s.forgetLocked(id)
		case soonest.key == "" || ends < first:
			soonest, first = id, ends
		}
		if sampled++; sampled == sample {
			break
		}
	}
	if len(s.buckets) >= s.max {
		s.forgetLocked(soonest)
	}
}

// largestLocked returns the entry of the largest size in a sample of those that have one, or nil.
func (s *shard) largestLocked(size func(*entry) int) (largest *entry) {
	most, sampled := 0, 0
	for _, e := range s.buckets {
		n := size(e)
		if n == 0 {
			continue
		}
		if n > most {
			largest, most = e, n
		}
		if sampled++; sampled == sample {
			break
		}
	}
	return largest
}

// forgetLocked removes an entry, if there is one.
func (s *shard) forgetLocked(id id) {
	if e := s.buckets[id]; e != nil {
		s.logged -= e.log.room()
		s.recorded -= e.record.room()
		s.tenants -= e.tenants.known()
		delete(s.buckets, id)
		*e = entry{}
		s.spare = e
	}
}

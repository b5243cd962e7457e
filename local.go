package ginlimit

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"time"
)

const (
	// LocalBuckets is how many buckets this process remembers at most.
	LocalBuckets = 1 << 18
	// localShards is how many locks they are spread over.
	localShards = 32
	// localSample is how many buckets are looked at to find one to forget.
	localSample = 8
)

// localStore keeps buckets in this process: script.lua in Go, and the model it is tested against.
type localStore struct {
	seed   maphash.Seed
	start  time.Time // milliseconds are counted from here, by the monotonic clock
	shards [localShards]localShard
}

// localShard holds all buckets of a key.
type localShard struct {
	mu      sync.Mutex
	most    int
	buckets map[bucketID]bucketState
}

type bucketID struct{ key, period string }

// bucketState is what Redis keeps of a bucket. A full bucket has none.
type bucketState struct {
	full    int64 // the millisecond at which the bucket is full: the key's expiry
	rest    int64 // what rounding up to that millisecond left over: the key's value
	blocked bool
}

func newLocalStore(most int) *localStore {
	s := &localStore{seed: maphash.MakeSeed(), start: time.Now()}
	for i := range s.shards {
		s.shards[i].most = max(1, most/localShards)
		s.shards[i].buckets = make(map[bucketID]bucketState)
	}
	return s
}

func (s *localStore) String() string { return fmt.Sprintf("%p", s) }

// lock returns the key's shard, locked, and the time.
func (s *localStore) lock(key string) (*localShard, int64) {
	shard := &s.shards[maphash.String(s.seed, key)%localShards]
	shard.mu.Lock()
	return shard, time.Since(s.start).Milliseconds()
}

func (s *localStore) close() {}

func (s *localStore) do(_ context.Context, a *ask) error {
	key := string(a.key)
	shard, now := s.lock(key)
	defer shard.mu.Unlock()
	switch a.op {
	case opBlock:
		shard.blockLocked(key, a, now)
	case opReset:
		for i := range a.buckets {
			delete(shard.buckets, bucketID{key, a.buckets[i].period})
		}
	default:
		shard.decideLocked(key, a, now)
	}
	return nil
}

func (s *localShard) decideLocked(key string, a *ask, now int64) {
	charges := a.charges
	for i := range a.buckets {
		b := &a.buckets[i]
		a.levels[i], _ = s.readLocked(key, b, now)
		if charges > 0 {
			charges = b.fit(a.levels[i], charges, a.n)
		}
	}
	for i := range a.buckets {
		b := &a.buckets[i]
		switch level, blocked := s.readLocked(key, b, now); {
		case charges > 0:
			s.writeLocked(key, b, now, level+charges*b.charge(a.n), false)
		case charges < 0 && level < maxUnits && !(blocked && level > b.capacity-b.cost):
			back := min(-charges, maxUnits/b.cost) * b.cost
			s.writeLocked(key, b, now, max(0, level-back), false)
		}
	}
}

func (s *localShard) blockLocked(key string, a *ask, now int64) {
	for i := range a.buckets {
		b := &a.buckets[i]
		if level, _ := s.readLocked(key, b, now); level < a.levels[i] {
			s.writeLocked(key, b, now, a.levels[i], true)
		} else if id := (bucketID{key, b.period}); level > 0 { // as it is, but marked: level may be cut
			state := s.buckets[id]
			state.blocked = true
			s.buckets[id] = state
		}
	}
}

// readLocked returns the level of a bucket and whether it was blocked since the last charge.
func (s *localShard) readLocked(key string, b *bucket, now int64) (level int64, blocked bool) {
	state, ok := s.buckets[bucketID{key, b.period}]
	ttl := state.full - now
	if !ok || ttl <= 0 {
		return 0, false
	}
	if ttl > maxUnits/b.drain {
		return maxUnits, state.blocked
	}
	level = ttl * b.drain
	if state.rest < b.drain { // else it is another limit's
		level -= state.rest
	}
	return level, state.blocked
}

func (s *localShard) writeLocked(key string, b *bucket, now, level int64, blocked bool) {
	id := bucketID{key, b.period}
	if level == 0 {
		delete(s.buckets, id)
		return
	}
	ttl := ceilDiv(level, b.drain)
	if _, ok := s.buckets[id]; !ok {
		s.makeRoomLocked(key, now)
	}
	s.buckets[id] = bucketState{full: now + ttl, rest: ttl*b.drain - level, blocked: blocked}
}

// makeRoomLocked forgets the full ones of a sample of buckets and, where there is no room for
// another one, the one of the sample that is full soonest: whose client gains the least.
func (s *localShard) makeRoomLocked(key string, now int64) {
	var (
		soonest bucketID
		full    int64
		looked  int
	)
	for id, state := range s.buckets { // in an order that Go makes random
		switch {
		case state.full <= now:
			delete(s.buckets, id)
		case id.key != key && (soonest.key == "" || state.full < full):
			soonest, full = id, state.full
		}
		if looked++; looked == localSample {
			break
		}
	}
	if len(s.buckets) >= s.most {
		delete(s.buckets, soonest)
	}
}

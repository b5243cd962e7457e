package ginlimit

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"time"
)

const (
	// LocalBuckets is how many buckets of an algorithm this process remembers at most.
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
	most    int // of each
	buckets map[bucketID]bucketState
	windows [len(algorithmNames)]map[bucketID]localWindow
	logged  int // entries in the windows' logs
}

type bucketID struct{ key, id string }

// bucketState is what Redis keeps of a bucket. A full bucket has none.
type bucketState struct {
	full    int64 // the millisecond at which the bucket is full: the key's expiry
	rest    int64 // what rounding up to that millisecond left over: the key's value
	blocked bool
}

func (b bucketState) ends() int64 { return b.full }

func newLocalStore(most int) *localStore {
	s := &localStore{seed: maphash.MakeSeed(), start: time.Now()}
	for i := range s.shards {
		s.shards[i].most = max(1, most/localShards)
		s.shards[i].buckets = make(map[bucketID]bucketState)
		for a := range s.shards[i].windows {
			s.shards[i].windows[a] = make(map[bucketID]localWindow)
		}
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
	switch {
	case a.buckets[0].algorithm != TokenBucket:
		shard.doWindowsLocked(key, a, now)
	case a.op == opBlock:
		shard.blockLocked(key, a, now)
	case a.op == opReset:
		for i := range a.buckets {
			delete(shard.buckets, bucketID{key, a.buckets[i].id})
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
		a.states[i].level, _ = s.readLocked(key, b, now)
		if charges > 0 {
			charges = b.fit(a.states[i].level, charges, a.n)
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
		if level, _ := s.readLocked(key, b, now); level < a.states[i].level {
			s.writeLocked(key, b, now, a.states[i].level, true)
		} else if id := (bucketID{key, b.id}); level > 0 { // as it is, but marked: level may be cut
			state := s.buckets[id]
			state.blocked = true
			s.buckets[id] = state
		}
	}
}

// readLocked returns the level of a bucket and whether it was blocked since the last charge.
func (s *localShard) readLocked(key string, b *bucket, now int64) (level int64, blocked bool) {
	state, ok := s.buckets[bucketID{key, b.id}]
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
	id := bucketID{key, b.id}
	if level == 0 {
		delete(s.buckets, id)
		return
	}
	ttl := ceilDiv(level, b.drain)
	if _, ok := s.buckets[id]; !ok {
		makeRoom(s.buckets, key, now, s.most, nil)
	}
	s.buckets[id] = bucketState{full: now + ttl, rest: ttl*b.drain - level, blocked: blocked}
}

// makeRoom forgets the full ones of a sample of buckets and, where there is no room for another one, the one of the
// sample that is full soonest: whose client gains the least. It spares the buckets of a key.
func makeRoom[B interface{ ends() int64 }](buckets map[bucketID]B, key string, now int64, most int, forget func(B)) {
	var (
		soonest bucketID
		first   int64 // the soonest end
		looked  int
	)
	for id, b := range buckets { // in an order that Go makes random
		switch ends := b.ends(); {
		case id.key == key:
		case ends <= now:
			delete(buckets, id)
			if forget != nil {
				forget(b)
			}
		case soonest.key == "" || ends < first:
			soonest, first = id, ends
		}
		if looked++; looked == localSample {
			break
		}
	}
	if b, ok := buckets[soonest]; ok && len(buckets) >= most {
		delete(buckets, soonest)
		if forget != nil {
			forget(b)
		}
	}
}

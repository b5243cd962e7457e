package memory

import "github.com/ginlimit/ginlimit/internal/bucket"

// readToken sets the state of a token bucket.
func readToken(s *shard, r *request, i int) {
	b, e := &r.buckets[i], s.buckets[r.id(i)]
	level := e.level(b, r.now)
	if r.Verb == bucket.Take && e != nil && e.block > r.now { // the limit may have been raised
		level = max(level, b.BlockLevel(e.block-r.now))
	}
	r.states[i] = bucket.State{Level: level}
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
	if e.value < b.Drain { // else it is from another limit
		return ttl*b.Drain - e.value
	}
	return ttl * b.Drain
}

// writeLevelLocked sets the level of a token bucket.
func (s *shard) writeLevelLocked(r *request, i int, level int64) {
	if level == 0 {
		s.forgetLocked(r.id(i))
		return
	}
	e, ttl := s.entryLocked(r, i), bucket.CeilDiv(level, r.buckets[i].Drain)
	e.full, e.value = r.now+ttl, ttl*r.buckets[i].Drain-level
}

func takeToken(s *shard, r *request, i int, charges, n int64) {
	s.writeLevelLocked(r, i, r.states[i].Level+charges*r.buckets[i].Charge(n))
}

// returnableToken leaves what a block has taken.
func returnableToken(s *shard, r *request, i int) int64 {
	level, e := r.states[i].Level, s.buckets[r.id(i)]
	switch {
	case level == bucket.MaxUnits:
		return 0
	case e != nil && e.block > r.now:
		return level - min(level, r.buckets[i].BlockLevel(e.block-r.now))
	}
	return level
}

func giveToken(s *shard, r *request, i int, units int64) {
	s.writeLevelLocked(r, i, r.states[i].Level-units)
}

// blockToken raises the level so that the first token comes when the block ends.
func blockToken(s *shard, r *request, i int) {
	b, e := &r.buckets[i], s.entryLocked(r, i)
	e.block = max(e.block, r.now+r.N)
	if lowest := b.BlockLevel(r.N); e.level(b, r.now) < lowest {
		s.writeLevelLocked(r, i, lowest)
	}
}

package memory

import "github.com/ginlimit/ginlimit/internal/bucket"

// findTokensLocked sets the state of a token bucket.
func (s *shard) findTokensLocked(r *request, i int) {
	b, e := &r.buckets[i], s.buckets[r.id(i)]
	level := e.level(b, r.now)
	if r.Verb == bucket.Take && e != nil && e.block > r.now { // the limit may have been raised
		level = max(level, b.BlockLevel(e.block-r.now))
	}
	r.states[i] = bucket.State{Level: level}
}

// changeTokensLocked takes from, gives back to, or blocks a token bucket in the state found.
func (s *shard) changeTokensLocked(r *request, i int, charges int64) {
	b, level := &r.buckets[i], r.states[i].Level
	switch {
	case r.Verb == bucket.Take && charges > 0:
		s.setLevelLocked(r, i, level+charges*b.Charge(r.Tokens(i)), 0)
	case r.Verb == bucket.Charge:
		var block int64
		if e := s.buckets[r.id(i)]; e != nil {
			block = e.block
		}
		if tokens := b.Debt(level, r.N); tokens > 0 {
			s.setLevelLocked(r, i, level+tokens*b.Cost, block)
		}
	case r.Verb == bucket.Block:
		s.blockLocked(r, i)
	case r.Verb != bucket.Take && level > 0 && level < bucket.MaxUnits:
		block := s.buckets[r.id(i)].block
		var minLevel int64
		if block > r.now {
			minLevel = b.BlockLevel(block - r.now)
		}
		back, drained := min(s.backLocked(r, i), level-min(level, minLevel)), s.drainTimeLocked(r, i)
		if r.Verb == bucket.Give || back < level { // else the bucket is empty of charges
			s.recordLocked(r, i, back, drained)
		}
		s.setLevelLocked(r, i, level-back, block)
	}
}

// backLocked returns how many units the request gives back.
func (s *shard) backLocked(r *request, i int) int64 {
	if r.Verb == bucket.Return {
		return s.claimedLocked(r, i)
	}
	b := &r.buckets[i]
	return min(r.N, bucket.MaxUnits/b.Cost) * b.Cost
}

func (s *shard) blockLocked(r *request, i int) {
	b, e := &r.buckets[i], s.buckets[r.id(i)]
	block := r.now + r.N
	if e != nil {
		block = max(e.block, block)
	}
	if minLevel := b.BlockLevel(r.N); e.level(b, r.now) < minLevel {
		s.setLevelLocked(r, i, minLevel, block)
	} else { // unchanged: the level may have been capped
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
	if e.value < b.Drain { // else it is from another limit
		return ttl*b.Drain - e.value
	}
	return ttl * b.Drain
}

// setLevelLocked sets the level of a token bucket, and when its block ends.
func (s *shard) setLevelLocked(r *request, i int, level, block int64) {
	if level == 0 {
		s.forgetLocked(r.id(i))
		return
	}
	ttl := bucket.CeilDiv(level, r.buckets[i].Drain)
	e := s.entryLocked(r, i)
	e.full, e.value, e.block = r.now+ttl, ttl*r.buckets[i].Drain-level, block
}

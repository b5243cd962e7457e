package lease

import (
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// now is the server's time, of which it knows the milliseconds.
func (s *simulation) now() int64 {
	passed := time.Since(s.start) + s.phase
	if s.fast > 0 {
		passed += passed / time.Duration(s.fast)
	}
	return 1 + int64(passed/ms)
}

// levels returns the levels of buckets.
func levels(all []simBucket) (levels []int64) {
	for i := range all {
		levels = append(levels, all[i].level)
	}
	return levels
}

// advance brings all buckets to now. A window of uses ends with the server's.
func (s *simulation) advance() {
	now := s.now()
	drain := func(b *simBucket, drain int64) {
		if drain > 0 {
			b.level = max(0, b.level-drain*(now-b.at))
		}
		b.at = now
	}
	for i := range s.server {
		b := &s.server[i]
		drain(b, s.buckets[i].Drain)
		drain(&s.reference[i], s.buckets[i].Drain)
		if b.end != 0 && now >= b.end {
			b.level, b.end, s.reference[i].level = 0, 0, 0
			if len(s.server) == 1 {
				s.extra = 0
			}
		}
	}
	if s.ahead != nil {
		drain(&s.lent, s.ahead.Drain)
	}
}

// use charges the reference with tokens that are used now.
func (s *simulation) use(tokens int64, how string) {
	s.advance()
	for i := range s.reference {
		s.reference[i].level += tokens * s.buckets[i].Cost
	}
	s.note("%d tokens used %s: the server is at %d, uses are at %d", tokens, how, levels(s.server), levels(s.reference))
	for i := range s.buckets {
		used, full := s.reference[i].level, s.full[i]+s.extra*s.buckets[i].Cost
		if used > full {
			s.violated("%d tokens used %s: bucket %d is at %d of %d", tokens, how, i, used, full)
		}
		if floor := s.buckets[i].Floor; floor > 0 && s.extra == 0 {
			s.slack = min(s.slack, float64(full-used)/float64(floor))
		}
		if s.ahead == nil && used > s.server[i].level+s.extra {
			s.violated("%d tokens used %s: window %d has %d taken, %d used", tokens, how, i, s.server[i].level, used)
		}
	}
}

// decide is the server's script (see lease.lua): it charges as many of the charges as fit, of
// which the caller uses its own at once. Of a window, the others are taken ahead.
func (s *simulation) decide(op bucket.Op, own int64) []bucket.State {
	s.advance()
	s.trips++
	found := make([]bucket.State, len(s.server), len(s.server)+1)
	ahead, held := op.Charges-own+op.Ahead, op.Held
	for i := range s.server {
		b := &s.server[i]
		found[i] = bucket.State{Level: b.level, Mark: s.buckets[i].Period}
		if b.end != 0 {
			found[i].Reset = b.end - b.at
			found[i].Mark = found[i].Reset
		}
		if b.level > s.buckets[i].Capacity {
			held = 0
		}
	}
	if s.ahead != nil && op.Ahead+op.Held > 0 {
		room := max(0, s.ahead.Capacity-s.lent.level) / s.ahead.Cost
		held = min(held, room)
		ahead = min(ahead, (room-held)/op.N)
		found = append(found, bucket.State{Level: s.lent.level})
	}
	charges := own + ahead
	for i := range s.server {
		charges = s.buckets[i].Fit(s.server[i].level, charges, op.N)
	}
	taken := max(0, charges-own) * op.N
	s.lentTokens(held + taken)
	s.outstanding += taken
	s.renewed += held
	s.note("the server is at %d, and charges %d × %d tokens, %d ahead, %d for longer", levels(s.server), charges, op.N,
		taken, held)
	if charges > 0 {
		for i := range s.server {
			b := &s.server[i]
			b.level += charges * op.N * s.buckets[i].Cost
			if s.buckets[i].Kind == bucket.FixedWindow && b.end == 0 {
				b.end = b.at + s.buckets[i].Period
			}
		}
		s.use(min(own, charges)*op.N, "at the server")
	}
	return found
}

func (s *simulation) lentTokens(n int64) {
	if s.ahead != nil {
		s.lent.level += n * s.ahead.Cost
	}
}

// reset is a Reset.
func (s *simulation) reset() {
	s.note("a reset")
	s.advance()
	for i := range s.server {
		b, limit := &s.server[i], &s.buckets[i]
		if b.level > 0 || b.record.until > b.at {
			lasts := limit.Period
			if limit.Kind == bucket.Token {
				lasts = 2 * bucket.CeilDiv(whole(limit), limit.Drain)
			}
			b.record = simRecord{until: b.at + lasts, reset: b.at + 1}
		}
		*b = simBucket{at: b.at, record: b.record}
		s.reference[i].level = 0
	}
	if s.ahead == nil {
		s.extra += s.outstanding // what others hold is used on top
	}
	for _, p := range s.processes {
		p.blocked = 0
	}
}

// block is a Block of a token bucket. A window keeps its blocks apart.
func (s *simulation) block(ms int64) {
	s.advance()
	s.note("the key is blocked for %d ms", ms)
	for i := range s.server {
		b := &s.server[i]
		b.blocked = max(b.blocked, b.at+ms)
		b.level = max(b.level, s.buckets[i].BlockLevel(ms))
	}
}

// restart makes the server begin anew, without what it held. For a while, processes hold what they
// held before too.
func (s *simulation) restart() {
	s.note("the server begins anew")
	s.reset()
	for i := range s.server {
		s.server[i].record = simRecord{}
	}
	s.lent.level = 0
	if s.losses++; s.ahead == nil {
		return
	}
	s.extra = s.buckets[0].Floor / s.buckets[0].Cost
	losses := s.losses
	s.at(s.life+latestBack+ms, func() { // they are used within a life, or given back later
		if s.losses == losses {
			s.extra = 0
			for i := range s.reference {
				s.reference[i].level = 0 // of spans from now on
			}
		}
	})
}

package lease

import (
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// latestBack is how long a give-back may be on its way, at most.
const latestBack = 3 * time.Second

// simRecord is a bucket's record of what left it other than by draining (see decide.lua).
type simRecord struct {
	until int64 // when it expires
	reset int64 // the time of the latest reset and 1; 0 if it has none
	times []simBack
}

// simBack is an entry of a record: its time, the units given back, and the age of the oldest of them.
type simBack struct{ at, given, age int64 }

// merge adds a later entry to one.
func (b simBack) merge(later simBack) simBack {
	oldest := min(b.at-b.age, later.at-later.age)
	return simBack{later.at, b.given + later.given, later.at - oldest}
}

// whole returns the units of a bucket's whole burst.
func whole(b *bucket.Bucket) int64 { return b.Capacity + b.Floor }

// drainTime returns how many milliseconds bucket i takes to drain.
func (s *simulation) drainTime(i int) int64 {
	b, limit := &s.server[i], &s.buckets[i]
	if limit.Kind == bucket.Token {
		return bucket.CeilDiv(min(b.level, whole(limit)), limit.Drain)
	}
	return max(0, b.end-b.at)
}

// record records what leaves bucket i now.
func (s *simulation) record(i int, given, age int64) {
	b, limit, drained := &s.server[i], &s.buckets[i], s.drainTime(i)
	if given <= 0 {
		return
	}
	if b.record.until <= b.at {
		b.record = simRecord{until: b.at}
	}
	r, horizon := &b.record, 2*drained
	if limit.Kind == bucket.Token {
		horizon = 2 * bucket.CeilDiv(whole(limit), limit.Drain)
	}
	r.times = slices.DeleteFunc(r.times, func(t simBack) bool { return b.at-t.at > horizon })
	now, span := simBack{b.at, given, age}, max(1, horizon/bucket.RecordSpans)
	if n := len(r.times); n > 0 && r.times[n-1].at/span == b.at/span {
		r.times[n-1] = r.times[n-1].merge(now)
	} else if r.times = append(r.times, now); len(r.times) > bucket.MaxRecordTimes {
		r.times[1] = r.times[0].merge(r.times[1])
		r.times = r.times[1:]
	}
	if limit.Kind == bucket.Token {
		units := int64(0)
		for _, t := range r.times {
			units += t.given
		}
		drained = min(drained+bucket.CeilDiv(units, limit.Drain), horizon)
	}
	r.until = max(r.until, b.at+drained)
}

// claimed returns how many units of bucket i a Return may give back.
func (s *simulation) claimed(i int, op *bucket.Op) int64 {
	b, limit, claim := &s.server[i], &s.buckets[i], &op.Claims[i]
	given := int64(0)
	if b.record.until > b.at {
		if b.record.reset > 0 && b.at-(b.record.reset-1) <= claim.Resets {
			return 0
		}
		for _, t := range b.record.times {
			if ago := b.at - t.at; ago <= claim.Age && ago+t.age >= claim.Made {
				given += t.given
			}
		}
	}
	all, units := op.N*limit.Cost, claim.Left(limit, op.N, given)
	if limit.Kind != bucket.Token || units == 0 || units == all {
		return units
	}
	rest, hundredth := b.level-units, limit.Cost/100
	switch {
	case all-units <= hundredth:
		units = all
	case 0 < rest && rest <= max(hundredth, limit.Drain*(2+claim.Age/1000)):
		units += min(rest, all-units)
	}
	return units
}

// lower gives units back to bucket i, but none of a block, and returns how many.
func (s *simulation) lower(i int, units, age int64, always bool) int64 {
	b := &s.server[i]
	least := int64(0)
	if b.blocked > b.at {
		least = s.buckets[i].BlockLevel(b.blocked - b.at)
	}
	units = min(units, max(0, b.level-least))
	if always || units < b.level { // else the bucket is empty of charges
		s.record(i, units, age)
	}
	b.level -= units
	if b.level == 0 && b.end != 0 { // a window without tokens ends
		b.end, s.reference[i].level, s.extra = 0, 0, s.extra+s.outstanding
	}
	return units
}

// refund is a Refund.
func (s *simulation) refund(tokens int64) {
	s.note("%d tokens are refunded", tokens)
	s.advance()
	for i := range s.server {
		units := s.lower(i, tokens*s.buckets[i].Cost, bucket.MaxAge, true)
		s.reference[i].level -= units
		if s.ahead != nil {
			s.reference[i].level = max(0, s.reference[i].level)
		}
	}
}

// takeBack gives leased tokens back that nobody has used, as far as they are left.
func (s *simulation) takeBack(op bucket.Op) {
	s.advance()
	s.outstanding -= op.N
	s.returned += op.N
	before := levels(s.server)
	for i := range s.server {
		b, claim := &s.server[i], &op.Claims[i]
		if s.rule.allBack {
			claim.Sure, claim.Behind = op.N*s.buckets[i].Cost, bucket.MaxUnits
		}
		if b.level == 0 || b.end != 0 && b.end-b.at > claim.Mark {
			continue
		}
		back := s.lower(i, s.claimed(i, &op), claim.Age, false)
		s.left += back / s.buckets[i].Cost
	}
	s.note("%d leased tokens are given back: the server was at %d, and is at %d", op.N, before, levels(s.server))
}

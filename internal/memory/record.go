package memory

import (
	"slices"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// recordSuffix ends the ID of a bucket's record.
const recordSuffix = ":back"

// record is what has left a bucket lately other than by draining: see decide.lua. Its entry ends
// when no call from before has tokens to give back.
type record struct {
	start int64 // the millisecond from which its times count
	drain int64
	times []returned
}

// returned is what was given back at a millisecond, how long before the oldest of it was taken, and
// what a reset took away, in units.
type returned struct{ at, given, age, reset int64 }

func (r *request) recordID(i int) id { return id{string(r.key), r.buckets[i].ID + recordSuffix} }

// drainOf returns the units by which a record counts.
func drainOf(b *bucket.Bucket) int64 { return max(1, b.Drain) }

// sinceLocked returns what was given back of a bucket, and what a reset took away, since a claim.
func (s *shard) sinceLocked(r *request, i int) (given, reset int64) {
	e, drain, claim := s.buckets[r.recordID(i)], drainOf(&r.buckets[i]), &r.Claims[i]
	if e == nil || e.full <= r.now {
		return 0, 0
	}
	for _, one := range e.record.times {
		if ago := r.now - e.record.start - one.at; ago <= claim.Age && ago+one.age >= claim.Made {
			given += convert(one.given, e.record.drain, drain)
		}
		if r.now-e.record.start-one.at <= claim.Resets {
			reset += convert(one.reset, e.record.drain, drain)
		}
	}
	return given, reset
}

// convert returns units under a limit of another drain, rounded up.
func convert(units, from, to int64) int64 {
	if from == to {
		return units
	}
	return int64(min(float64(bucket.MaxUnits), float64(units)/float64(from)*float64(to))) + 1
}

// noteLocked writes down what is given back now. What was in the bucket is drained after so many
// milliseconds.
func (s *shard) noteLocked(r *request, i int, given, reset, drained int64) {
	if r.Records != bucket.WithRecords || given+reset <= 0 {
		return
	}
	id, drain := r.recordID(i), drainOf(&r.buckets[i])
	e := s.buckets[id]
	if e == nil {
		e = s.newEntryLocked(r, id)
	}
	if e.record == nil || e.full <= r.now {
		e.full, e.record = r.now, &record{start: r.now, drain: drain}
	}
	c := e.record
	if c.drain != drain {
		for j := range c.times {
			one := &c.times[j]
			one.given, one.reset = convert(one.given, c.drain, drain), convert(one.reset, c.drain, drain)
		}
		c.drain = drain
	}
	horizon, token := 2*drained, r.buckets[i].Kind == bucket.Token
	if token {
		horizon = 2 * bucket.CeilDiv(r.buckets[i].Capacity+r.buckets[i].Floor, drain)
	}
	c.times = slices.DeleteFunc(c.times, func(one returned) bool { return r.now-c.start-one.at > horizon }) // it matters to no call any more
	age := int64(bucket.MaxAge)
	if r.Verb == bucket.Return {
		age = r.Claims[i].Age
	} else if r.Verb == bucket.Reset {
		age = 0
	}
	c.add(returned{r.now - c.start, given, age, reset}, max(1, horizon/bucket.RecordSpans))
	if token {
		units := int64(0)
		for _, one := range c.times {
			units = min(units+one.given+one.reset, bucket.MaxUnits)
		}
		drained = min(drained+bucket.CeilDiv(units, drain), horizon)
	}
	e.full = max(e.full, r.now+drained)
}

// add adds a time. Those in one span are one, the latest.
func (c *record) add(one returned, span int64) {
	if n := len(c.times); n > 0 && c.times[n-1].at/span == one.at/span && c.times[n-1].reset+one.reset == 0 {
		last := &c.times[n-1]
		oldest := min(last.at-last.age, one.at-one.age)
		*last = returned{one.at, last.given + one.given, one.at - oldest, last.reset + one.reset}
		return
	}
	if c.times = append(c.times, one); len(c.times) <= bucket.MaxRecordTimes {
		return
	}
	first, second := c.times[0], &c.times[1]
	oldest := min(first.at-first.age, second.at-second.age)
	*second = returned{second.at, first.given + second.given, second.at - oldest, first.reset + second.reset}
	c.times = slices.Delete(c.times, 0, 1)
}

// claimedLocked returns how many units of a call a bucket may still give back.
func (s *shard) claimedLocked(r *request, i int) int64 {
	b := &r.buckets[i]
	if r.Records == bucket.NoRecords {
		return min(r.N, bucket.MaxUnits/b.Cost) * b.Cost
	}
	claim := &r.Claims[i]
	given, reset := s.sinceLocked(r, i)
	all, units := min(r.N, bucket.MaxUnits/b.Cost)*b.Cost, claim.Left(b, r.N, given, reset)
	if b.Kind != bucket.Token || units == 0 || units == all {
		return units
	}
	rest, hundredth := r.states[i].Level-units, b.Cost/100
	switch { // what clocks differ by, or less than a token's hundredth
	case all-units <= hundredth:
		units = all
	case 0 < rest && rest <= max(hundredth, b.Drain*(2+claim.Age/1000)):
		units += min(rest, all-units)
	}
	return units
}

// drainedLocked returns in how many milliseconds nothing is left of what is in a bucket.
func (s *shard) drainedLocked(r *request, i int) int64 {
	b, e := &r.buckets[i], s.buckets[r.id(i)]
	if e == nil || e.full <= r.now {
		return 0
	}
	if b.Kind == bucket.Token {
		return min(e.full-r.now, bucket.CeilDiv(b.Capacity+b.Floor, b.Drain))
	}
	return e.full - r.now
}

package memory

import (
	"slices"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

const (
	// recordSuffix ends the ID of a bucket's record.
	recordSuffix = ":back"
	// maxRecords limits the memory of all records of a store, in give-backs of 24 bytes: 12 MiB. When it
	// is used up, the longest of a few records merges its give-backs in pairs, so that less may be given
	// back later. That is two for each bucket, so a record keeps one.
	maxRecords = 2 * MaxBuckets
)

// record notes what left a bucket other than by draining; see decide.lua. It expires when no
// earlier call has tokens left to give back.
type record struct {
	start int64 // its times are milliseconds since then
	drain int64
	times []giveBack
}

// giveBack is what was given back in a millisecond: its units, and the age of the oldest of them.
type giveBack struct{ at, given, age int64 }

// room returns a record's part of maxRecords.
func (c *record) room() int {
	if c == nil {
		return 0
	}
	return cap(c.times)
}

func (r *request) recordID(i int) id { return id{string(r.key), r.buckets[i].ID + recordSuffix} }

// recordDrain returns the drain that defines a record's units.
func recordDrain(b *bucket.Bucket) int64 { return max(1, b.Drain) }

// returnedSinceLocked returns the units given back since a claim.
func (s *shard) returnedSinceLocked(r *request, i int) (given int64) {
	e, drain, claim := s.buckets[r.recordID(i)], recordDrain(&r.buckets[i]), &r.Claims[i]
	if e == nil || e.full <= r.now {
		return 0
	}
	for _, g := range e.record.times {
		if ago := r.now - e.record.start - g.at; ago <= claim.Age && ago+g.age >= claim.Made {
			given += convert(g.given, e.record.drain, drain)
		}
	}
	return given
}

// convert converts units to a limit of another drain, rounded up.
func convert(units, from, to int64) int64 {
	if from == to {
		return units
	}
	return int64(min(float64(bucket.MaxUnits), float64(units)/float64(from)*float64(to))) + 1
}

// recordLocked records what is given back to a token bucket now. drained is how many milliseconds its
// contents take to drain.
func (s *shard) recordLocked(r *request, i int, given, drained int64) {
	if r.Records != bucket.WithRecords || given <= 0 {
		return
	}
	id, drain := r.recordID(i), recordDrain(&r.buckets[i])
	e := s.buckets[id]
	if e == nil {
		e = s.newEntryLocked(r, id)
	}
	s.recorded -= e.record.room()
	if e.record == nil || e.full <= r.now {
		e.full, e.record = r.now, &record{start: r.now, drain: drain}
	}
	c := e.record
	if c.drain != drain {
		for j := range c.times {
			c.times[j].given = convert(c.times[j].given, c.drain, drain)
		}
		c.drain = drain
	}
	horizon := 2 * bucket.CeilDiv(r.buckets[i].Capacity+r.buckets[i].Floor, drain)
	// drop what is too old to matter to any call
	c.times = slices.DeleteFunc(c.times, func(g giveBack) bool { return r.now-c.start-g.at > horizon })
	age := int64(bucket.MaxAge)
	if r.Verb == bucket.Return {
		age = r.Claims[i].Age
	}
	c.add(giveBack{r.now - c.start, given, age}, max(1, horizon/bucket.RecordSpans))
	for s.recorded += c.room(); s.recorded > maxRecords/shards; {
		longest := s.largestLocked(func(e *entry) int { return e.record.room() }).record
		s.recorded -= longest.room()
		longest.merge()
		s.recorded += longest.room()
	}
	units := int64(0)
	for _, g := range c.times {
		units = min(units+g.given, bucket.MaxUnits)
	}
	e.full = max(e.full, r.now+min(drained+bucket.CeilDiv(units, drain), horizon))
}

// add adds a give-back. Give-backs in one span are merged into the latest.
func (c *record) add(g giveBack, span int64) {
	if n := len(c.times); n > 0 && c.times[n-1].at/span == g.at/span {
		c.times[n-1] = c.times[n-1].with(g)
		return
	}
	if c.times = append(c.times, g); len(c.times) <= bucket.MaxRecordTimes {
		return
	}
	c.times[1] = c.times[0].with(c.times[1])
	c.times = slices.Delete(c.times, 0, 1)
}

// with returns a give-back and a later one as one, at the time of the later.
func (g giveBack) with(later giveBack) giveBack {
	oldest := min(g.at-g.age, later.at-later.age)
	return giveBack{later.at, g.given + later.given, later.at - oldest}
}

// merge merges each two give-backs into the later one.
func (c *record) merge() {
	merged := make([]giveBack, 0, (len(c.times)+1)/2)
	for pair := range slices.Chunk(c.times, 2) {
		g := pair[0]
		if len(pair) == 2 {
			g = g.with(pair[1])
		}
		merged = append(merged, g)
	}
	c.times = merged
}

// claimedLocked returns how many units of a call may still be given back.
func (s *shard) claimedLocked(r *request, i int) int64 {
	b := &r.buckets[i]
	if r.Claims[i].Mark == bucket.NoMark {
		return 0
	}
	if r.Records == bucket.NoRecords {
		return min(r.N, bucket.MaxUnits/b.Cost) * b.Cost
	}
	claim := &r.Claims[i]
	if e := s.buckets[r.id(i)]; e == nil || e.born > claim.Era {
		return 0
	}
	all, units := min(r.N, bucket.MaxUnits/b.Cost)*b.Cost, claim.Left(b, r.N, s.returnedSinceLocked(r, i))
	if !b.Flows() || units == 0 || units == all {
		return units
	}
	rest, hundredth := r.states[i].Level-units, b.Cost/100
	switch { // give back a difference of clocks or of a hundredth of a token
	case all-units <= hundredth:
		units = all
	case 0 < rest && rest <= max(hundredth, b.Drain*(2+claim.Age/1000)):
		units += min(rest, all-units)
	}
	return units
}

// drainTimeLocked returns how many milliseconds a token bucket takes to drain.
func (s *shard) drainTimeLocked(r *request, i int) int64 {
	b, e := &r.buckets[i], s.buckets[r.id(i)]
	if e == nil || e.full <= r.now {
		return 0
	}
	return min(e.full-r.now, bucket.CeilDiv(b.Capacity+b.Floor, b.Drain))
}

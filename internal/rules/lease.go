package rules

import (
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// The fewest tokens that it pays to take ahead, and the shortest time that it pays to hold them.
const (
	leastAhead = 2
	leastLife  = 5 * time.Millisecond
)

// lease is how tokens of a set may be taken ahead. The zero lease takes none.
type lease struct {
	life    time.Duration   // for how long a process holds them
	buckets []bucket.Bucket // the limits and what is taken ahead of them; nil for windows
	layout  *bucket.Layout  // of the buckets
}

// AllowLeases lets processes hold tokens that they have taken ahead, for a time at most. It comes after
// Leave and Guard, and has no effect for sliding windows, limits of several kinds, a ban or slots,
// nor if there would be hardly a token to hold.
//
// The package lease says why no more is admitted. Let h be what all processes may take ahead at
// once: a quarter of the smallest burst at most, and what the fastest limit regains within the life.
// Then they take ahead 2h tokens in a life, and each bucket is decided by 2h tokens less. If a limit
// holds no more above the floor, which other policies need whole, the set prohibits and counts
// nothing; first is the index of that limit, else -1.
func (s *Set) AllowLeases(life time.Duration) (first int) {
	limits := s.Buckets(Limits)
	if life <= 0 || !s.MayLease() {
		return -1
	}
	if !limits[0].Flows() {
		s.lease.life = life
		s.note()
		return -1
	}
	fastest, ahead := &limits[0], int64(bucket.MaxUnits)
	for i := range limits {
		ahead = min(ahead, (limits[i].Burst+s.floor)/4) // the same for policies that leave other floors
		if fastest.Slower(&limits[i]) {
			fastest = &limits[i]
		}
	}
	ahead = min(ahead, fastest.Regained(life.Milliseconds()))
	// Redis drains by whole milliseconds, and its clock may be a little faster.
	ms := ahead * fastest.Cost / fastest.Drain
	life = min(life, time.Duration(ms-ms/1024-2)*time.Millisecond)
	if ahead < leastAhead || life < leastLife {
		return -1
	}
	bounds := bucket.NewAhead(fastest, ahead)
	if first = s.leave(2 * ahead); first < 0 {
		s.lease = lease{life: life, buckets: append(limits, bounds)}
		s.lease.layout = bucket.NewLayout(s.lease.buckets)
		s.note()
	}
	return first
}

// MayLease reports whether tokens of the set's limits may be taken ahead.
func (s *Set) MayLease() bool {
	limits := s.Buckets(Limits)
	if s.prohibits || s.Guarded || s.Divided || len(limits) == 0 {
		return false
	}
	for i := range limits {
		if limits[i].Kind != limits[0].Kind || (limits[i].Ends == 0) != (limits[0].Ends == 0) || !limits[i].Leasable() {
			return false
		}
	}
	return true
}

// Ahead returns the limits' buckets with what else a call uses that takes tokens ahead, and their layout.
func (s *Set) Ahead() ([]bucket.Bucket, *bucket.Layout) {
	if s.lease.buckets != nil {
		return s.lease.buckets, s.lease.layout
	}
	return s.Buckets(Limits), s.layouts[Limits]
}

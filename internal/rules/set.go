// Package rules says what a decision is about, and what the answer is.
//
// A [Set] is an ordered array of resources: limits, then a ban, then requests in flight; or one limit and
// what tenants hold of it. An operation uses the first of them, as its [Scope] says. A [Verdict] refers to
// a resource by its index. It must know no name, text, client or header field, nor where a bucket is kept.
package rules

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/calendar"
)

// Scope is how many resources of a set an operation uses.
type Scope uint8

const (
	All    Scope = iota // to take, peek and reset
	Tokens              // not requests in flight: to look, while others wait for a slot
	Limits              // and what tenants hold of one: to give back, charge, and block
)

// Set is what a decision is about. Once it is made, it does not change.
//
// With calendar quotas it holds until a period ends. [Set.Now] returns the current one. The zero
// Set counts nothing.
type Set struct {
	Facts
	resources []bucket.Bucket // limits, then the ban, then the slots; or a limit and what tenants hold of it
	limits    int             // how many of the resources are limits
	tenants   int             // how many are what tenants hold: 0 or 1
	bans      int             // how many are a ban: 0 or 1
	calendars []calendar.Rule // of the limits; nil if none has one
	floor     int64           // tokens that stay in each bucket
	lease     lease
	layouts   [Limits + 1]*bucket.Layout // of the buckets in each scope

	prohibits  bool          // a limit denies everything
	prohibited calendar.Rule // of that limit, if it has one

	begins, ends int64                // the time in which its periods last, in Unix ms; ends is 0 without a calendar
	later        *atomic.Pointer[Set] // the current set, once a period has ended; nil without a calendar

	share    *atomic.Pointer[Set] // the latest that Share has returned; nil if it is computed each time
	replicas int64                // of a share: the processes that share the limits
	whole    *Set                 // of a share: what is shared
}

// Facts are what is known of a set, whatever is asked of it, so that no request finds it out again.
type Facts struct {
	Counted bool          // there is something to count, and nothing prohibits
	Guarded bool          // there is a ban or slots
	Divided bool          // tenants share the limit
	Burst   int64         // the most tokens that one decision can take, if any are counted
	Life    time.Duration // for how long tokens that are taken ahead may be held; 0 if none may
}

// note notes the facts of a set that has changed.
func (s *Set) note() {
	s.Facts = Facts{
		Counted: len(s.resources) > 0 && !s.prohibits, Guarded: len(s.resources) > s.limits+s.tenants,
		Divided: s.tenants > 0, Burst: math.MaxInt64, Life: s.lease.life,
	}
	for i := range s.resources[:s.limits] {
		s.Burst = min(s.Burst, s.resources[i].Burst)
	}
}

// Add adds a limit that is no calendar quota. Limits come before all else.
func (s *Set) Add(b bucket.Bucket) {
	s.resources = append(s.resources, b)
	s.limits++
	if s.calendars != nil {
		s.calendars = append(s.calendars, calendar.Rule{})
	}
	s.lay()
}

// AddCalendar adds a quota of n for each period of a calendar. It is false if n is too large.
func (s *Set) AddCalendar(rule calendar.Rule, n int64) bool {
	b, begins, ok := calendarBucket(rule, n, time.Now())
	if !ok {
		return false
	}
	if s.calendars == nil {
		s.calendars = make([]calendar.Rule, s.limits)
	}
	s.holdUntil(begins, b.Ends)
	s.resources, s.calendars = append(s.resources, b), append(s.calendars, rule)
	s.limits++
	s.lay()
	return true
}

// Prohibit makes the set deny everything. The rule is the calendar of the limit that does, or zero.
func (s *Set) Prohibit(rule calendar.Rule) {
	s.prohibits, s.prohibited = true, rule
	s.note()
	if rule != (calendar.Rule{}) {
		s.holdPeriod(rule)
	}
}

// Leave reserves tokens of each limit for others. If a limit holds no more, the set prohibits and
// counts nothing; first is the index of that limit, else -1.
func (s *Set) Leave(floor int64) (first int) {
	if floor == 0 || s.prohibits {
		return -1
	}
	s.floor = floor
	return s.leave(floor)
}

// leave reserves tokens of each limit, the only resources as yet. See [Set.Leave].
func (s *Set) leave(tokens int64) (first int) {
	for i := range s.resources {
		if s.resources[i].Burst <= tokens {
			var rule calendar.Rule
			if s.calendars != nil {
				rule = s.calendars[i]
			}
			s.resources, s.calendars, s.limits = nil, nil, 0
			s.lay()
			s.begins, s.ends, s.later = 0, 0, nil
			s.Prohibit(rule)
			return i
		}
	}
	for i := range s.resources {
		s.resources[i].Leave(tokens)
	}
	s.note()
	return -1
}

// Divide lets tenants share the only limit, a token bucket, if it is counted. It comes after Leave, and nothing
// after it.
func (s *Set) Divide() {
	if s.limits > 0 {
		s.resources, s.tenants = append(s.resources, bucket.NewTenants(&s.resources[0])), 1
		s.lay()
	}
}

// Guard adds a ban and slots of requests in flight, each if it is not nil, unless the set
// prohibits.
func (s *Set) Guard(ban, slots *bucket.Bucket) {
	if s.prohibits {
		return
	}
	if ban != nil {
		s.resources, s.bans = append(s.resources, *ban), 1
	}
	if slots != nil {
		s.resources = append(s.resources, *slots)
	}
	s.lay()
}

// KeepShare makes the set keep its latest share, so that it is not computed again.
func (s *Set) KeepShare() { s.share = new(atomic.Pointer[Set]) }

// Share returns the set of one of several processes that share it evenly.
func (s *Set) Share(replicas int64) *Set {
	if replicas <= 1 { // of a limiter without Redis too
		return s
	}
	if s.share != nil {
		if kept := s.share.Load(); kept != nil && kept.replicas == replicas {
			return kept
		}
	}
	share := *s
	share.share, share.replicas, share.whole, share.later, share.lease = nil, replicas, s, nil, lease{}
	share.resources = make([]bucket.Bucket, len(s.resources))
	for i := range s.resources {
		share.resources[i] = s.resources[i].Share(replicas)
	}
	share.note()
	if s.Divided {
		share.resources[1] = bucket.NewTenants(&share.resources[0])
	}
	if s.share != nil {
		s.share.Store(&share)
	}
	return &share
}

// WithSlotsOf returns the share of a set, whose slots are not shared.
func (s *Set) WithSlotsOf(whole *Set) *Set {
	if s == whole {
		return s
	}
	share := *s
	share.resources = slices.Clone(s.resources)
	share.resources[s.Slots()] = whole.resources[whole.Slots()]
	return &share
}

// Buckets returns the resources in a scope.
func (s *Set) Buckets(scope Scope) []bucket.Bucket {
	switch scope {
	case Limits:
		n := s.limits + s.tenants
		return s.resources[:n:n]
	case Tokens:
		n := s.limits + s.tenants + s.bans
		return s.resources[:n:n]
	}
	return s.resources
}

// lay notes the layouts and the facts of a set whose resources have changed.
func (s *Set) lay() {
	s.note()
	for scope := range s.layouts {
		s.layouts[scope] = bucket.NewLayout(s.Buckets(Scope(scope)))
	}
}

// Call returns the buckets in a scope, of which there is at least one, and their layout.
func (s *Set) Call(scope Scope) ([]bucket.Bucket, *bucket.Layout) {
	l := s.layouts[scope]
	return s.resources[:len(l.Integers):len(l.Integers)], l
}

// Counts reports whether there is anything to count in a scope.
func (s *Set) Counts(scope Scope) bool { return len(s.Buckets(scope)) > 0 }

// Bans reports whether there is a ban.
func (s *Set) Bans() bool { return s.bans > 0 }

// Ban returns the index of the ban, or -1.
func (s *Set) Ban() int {
	if s.bans == 0 {
		return -1
	}
	return s.limits
}

// Slots returns the index of the slots, or -1.
func (s *Set) Slots() int {
	if s.layouts[All] == nil {
		return -1
	}
	return s.layouts[All].Slots
}

// Prohibits reports whether the set denies everything.
func (s *Set) Prohibits() bool { return s.prohibits }

// Shares reports whether two sets have a bucket in common, for clients of one key.
func (s *Set) Shares(other *Set) bool {
	return slices.ContainsFunc(s.resources, func(b bucket.Bucket) bool {
		return slices.ContainsFunc(other.resources, func(o bucket.Bucket) bool { return b.ID == o.ID })
	})
}

package ginlimit

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/httpfields"
)

// never is the RetryAfter of what no waiting makes allowed.
const never time.Duration = -1

// limitSet is the limits of one decision, checked: those that are counted as buckets, and what needs none. It is not
// changed once it is made. With calendar quotas it holds until a period ends; [limitSet.now] returns the current one.
type limitSet struct {
	name       string   // of the policy or identity
	names      []string // of each bucket, where they differ
	buckets    []bucket.Bucket
	limits     []Limit            // of the buckets, as they were given
	policies   []httpfields.Limit // as RateLimit-Policy lists them: of the buckets, then of prohibited; nil outside a Policy
	unlimited  Limit              // one that is never counted, if there is one
	prohibited Limit              // one that always denies, if denies is set
	denies     bool
	failure    Failure // what happens if the store does not decide
	lease      time.Duration
	floor      int64     // tokens that are left in each bucket
	share      *limitSet // one process' share of the limits, if it was computed
	replicas   int       // how many processes share the limits

	guards    *guards   // in addition; nil outside a policy with some
	taking    *limitSet // with the policy's ban, for what takes tokens; nil without a ban
	acquiring *limitSet // with its slots too, for what takes one; nil without guards
	guarding  bool      // the last of the buckets are guards

	mixed        bool                      // with calendar periods and others
	begins, ends int64                     // the time in which all calendar periods are these, in Unix milliseconds; ends is 0 without one
	later        *atomic.Pointer[limitSet] // the current set, once a period of this one has ended; nil without a calendar
}

// newLimitSet checks limits and reports every fault in them.
func newLimitSet(a Algorithm, limits ...Limit) (limitSet, error) {
	var s limitSet
	err := s.add(a, limits)
	return s, err
}

// add adds limits to an empty set.
func (s *limitSet) add(a Algorithm, limits []Limit) error {
	if len(limits) == 0 {
		return fmt.Errorf("%w: no limit given", ErrInvalidLimit)
	}
	var errs []error
	for i, l := range limits {
		if err := l.validate(); err != nil {
			errs = append(errs, err)
			continue
		}
		switch {
		case l.Rate < 0:
			s.unlimited = l
			continue
		case l.Rate == 0:
			if s.prohibited, s.denies = l, true; l.Calendar != (Calendar{}) {
				s.holds(l)
			}
			continue
		}
		if a != TokenBucket && l.burst() != l.Rate {
			errs = append(errs, fmt.Errorf("%w: %s: a %s has no burst of its own", ErrInvalidLimit, l, a))
			continue
		}
		b, ok := s.newBucket(a, l)
		if !ok {
			errs = append(errs, fmt.Errorf("%w: %s is too large to be counted exactly", ErrInvalidLimit, l))
			continue
		}
		s.buckets, s.limits = append(s.buckets, b), append(s.limits, l)
		for _, other := range limits[:i] {
			if other.Period == l.Period && other.Calendar == l.Calendar && other.Rate > 0 {
				errs = append(errs, fmt.Errorf("%w: %s and %s have the same period", ErrInvalidLimit, other, l))
				break
			}
		}
		for j := range s.buckets[:len(s.buckets)-1] {
			if s.buckets[j].ID == b.ID && s.limits[j].Calendar != l.Calendar { // of zones that are not told apart
				errs = append(errs, fmt.Errorf("%w: %s and %s have the same period", ErrInvalidLimit, s.limits[j], l))
			}
		}
	}
	if s.ends != 0 {
		s.later = new(atomic.Pointer[limitSet])
		s.mixed = bucket.Timed(s.buckets) >= 0
	}
	return errors.Join(errs...)
}

// newBucket returns the bucket of a limit, of a calendar's that for the period of now.
func (s *limitSet) newBucket(a Algorithm, l Limit) (bucket.Bucket, bool) {
	if (l.Calendar == Calendar{}) {
		return bucket.New(kinds[a], periodText(l.Period)+idSuffixes[a], int64(l.Rate), int64(l.burst()), l.Period.Milliseconds())
	}
	b, begins, ok := l.calendarBucket(time.Now())
	s.holdsUntil(begins, b.Ends)
	return b, ok
}

// holds has the set hold for the present period of a calendar's limit, at most.
func (s *limitSet) holds(l Limit) {
	start, end := l.Calendar.rule.Period(time.Now())
	s.holdsUntil(start.UnixMilli(), end.UnixMilli())
}

// holdsUntil has the set hold for a time, at most.
func (s *limitSet) holdsUntil(begins, ends int64) {
	if s.begins = max(s.begins, begins); s.ends == 0 || s.ends > ends {
		s.ends = ends
	}
}

// calendarBucket returns the bucket of a calendar's period at a time, and when that begins, in Unix milliseconds.
func (l Limit) calendarBucket(at time.Time) (b bucket.Bucket, begins int64, ok bool) {
	start, end := l.Calendar.rule.Period(at)
	b, ok = bucket.NewCalendar(l.Calendar.bucketID(start), int64(l.Rate), end.Sub(start).Milliseconds(), end.UnixMilli())
	return b, start.UnixMilli(), ok
}

// maxLater is how many calendar periods after the present one a block may reach into.
const maxLater = 31

// withPeriods returns the set with the later calendar periods up to a time, at most maxLater of each limit. Blocks and resets
// change them too.
func (s *limitSet) withPeriods(t time.Time) *limitSet {
	if s.ends == 0 || t.UnixMilli() < s.ends {
		return s
	}
	all := *s
	all.buckets, all.limits, all.share = slices.Clone(s.buckets), slices.Clone(s.limits), nil
	for i, l := range s.limits {
		for n, ends := 0, s.buckets[i].Ends; ends != 0 && n < maxLater && ends <= t.UnixMilli(); n++ {
			b, _, _ := l.calendarBucket(time.UnixMilli(ends))
			b.Leave(s.floor)
			all.buckets, all.limits, ends = append(all.buckets, b), append(all.limits, l), b.Ends
		}
	}
	all.withGuards()
	return &all
}

// now returns the set of the calendar periods of now.
func (s *limitSet) now() *limitSet {
	if s.ends == 0 || s.covers(time.Now()) {
		return s
	}
	if later := s.later.Load(); later != nil && later.covers(time.Now()) {
		return later
	}
	later := s.renewed()
	s.later.Store(later)
	return later
}

func (s *limitSet) covers(t time.Time) bool {
	return s.begins <= t.UnixMilli() && t.UnixMilli() < s.ends
}

// renewed returns the set anew, with the calendar periods of now.
func (s *limitSet) renewed() *limitSet {
	later := *s
	later.begins, later.ends = 0, 0
	later.buckets, later.policies = slices.Clone(s.buckets), slices.Clone(s.policies)
	for i, l := range s.limits {
		if (l.Calendar == Calendar{}) {
			continue
		}
		later.buckets[i], _ = later.newBucket(TokenBucket, l) // it fitted before
		later.buckets[i].Leave(s.floor)
		if i < len(s.policies) {
			later.policies[i].Window = httpfields.Seconds(millis(later.buckets[i].Period))
		}
	}
	if s.denies && s.prohibited.Calendar != (Calendar{}) {
		if later.holds(s.prohibited); len(s.policies) > 0 {
			later.policies[len(s.limits)].Window = later.prohibitedWindow()
		}
	}
	if s.share != nil {
		later.share = nil
		later.share = later.shareOf(s.replicas)
	}
	later.withGuards()
	return &later
}

// The kinds of buckets of the algorithms, and what ends their keys so that no algorithm finds what another has counted.
var (
	kinds      = [...]bucket.Kind{TokenBucket: bucket.Token, FixedWindow: bucket.FixedWindow, SlidingWindow: bucket.SlidingWindow}
	idSuffixes = [...]string{TokenBucket: "", FixedWindow: ":fixed", SlidingWindow: ":sliding"}
)

// join appends the counted limits of another set, to decide on both at once.
func (s *limitSet) join(other *limitSet) {
	for range other.buckets {
		s.names = append(s.names, other.name)
	}
	s.buckets = append(s.buckets, other.buckets...)
	s.limits = append(s.limits, other.limits...)
	s.policies = append(s.policies, other.policies[:min(len(other.buckets), len(other.policies))]...)
}

// shareOf returns the limits of one of so many processes that share them evenly.
func (s *limitSet) shareOf(replicas int) *limitSet {
	if replicas <= 1 { // of a limiter without Redis too
		return s
	}
	if s.share != nil {
		return s.share
	}
	share := &limitSet{name: s.name, names: s.names, buckets: make([]bucket.Bucket, len(s.buckets)), limits: s.limits, policies: s.policies, guarding: s.guarding}
	for i := range s.buckets {
		share.buckets[i] = s.buckets[i].Share(int64(replicas))
	}
	return share
}

// burst returns the most tokens that one decision can ever take.
func (s *limitSet) burst() int64 {
	least := int64(math.MaxInt64)
	for i := range s.buckets {
		least = min(least, s.buckets[i].Burst)
	}
	return least
}

// static returns the Result that needs no bucket, if there is one, for a request of n tokens.
func (s *limitSet) static(n int) (Result, bool) {
	switch {
	case s.denies:
		return Result{Name: s.name, Limit: s.prohibited, RetryAfter: never, Source: FromPolicy}, true
	case len(s.buckets) == 0:
		return Result{Name: s.name, Allowed: true, Granted: n, Limit: s.unlimited, Remaining: math.MaxInt, Source: FromPolicy}, true
	}
	return Result{}, false
}

// checkBlock reports the limits that cannot be blocked for d, as it is too long.
func (s *limitSet) checkBlock(d time.Duration) error {
	var errs []error
	for i := range s.buckets {
		longest := s.buckets[i].MaxBlock()
		if s.buckets[i].Ends != 0 {
			longest = s.maxBlockEnd(i) - time.Now().UnixMilli()
		}
		if milliseconds(d) > longest {
			errs = append(errs, fmt.Errorf("%w: a block of %s is too long under %s: at most %s",
				ErrInvalidLimit, d, s.limits[i], millis(longest)))
		}
	}
	return errors.Join(errs...)
}

// setFloor leaves tokens in each bucket to others. The first limit that holds no more prohibits.
func (s *limitSet) setFloor(floor int64) {
	if floor == 0 || s.denies {
		return
	}
	s.floor = floor
	for i := range s.buckets {
		if s.buckets[i].Burst <= floor && !s.denies {
			s.prohibited, s.denies = s.limits[i], true
		}
	}
	if s.denies {
		s.buckets, s.limits = nil, nil // nothing is counted
		return
	}
	for i := range s.buckets {
		s.buckets[i].Leave(floor)
	}
}

// maxBlockEnd returns when the last calendar period ends that a block of a limit may reach into, in Unix milliseconds.
func (s *limitSet) maxBlockEnd(i int) int64 {
	ends := s.buckets[i].Ends
	for range maxLater {
		_, end := s.limits[i].Calendar.rule.Period(time.UnixMilli(ends))
		ends = end.UnixMilli()
	}
	return ends
}

// result derives the Result of an Op from the states that the store found, by the arithmetic by which the store decided.
// It adds to the status of each limit, if that is wanted.
func (s *limitSet) result(states []bucket.State, op bucket.Op, status *limitStatuses) Result {
	granted, allowed := op.Charges, true
	for i := range s.buckets {
		granted = s.buckets[i].Fit(states[i].Level, granted, op.N)
		allowed = allowed && s.buckets[i].Fit(states[i].Level, 1, op.N) == 1
	}
	var (
		closest Result
		found   bool
		banned  time.Duration
	)
	if !allowed {
		banned = s.banned(states)
	}
	for i := range s.buckets {
		b := &s.buckets[i]
		if b.Kind == bucket.Ban {
			continue
		}
		after := states[i]
		if granted > 0 {
			after = b.Charged(after, granted, op.N)
		}
		this := Result{
			Allowed:    allowed,
			Granted:    int(granted * op.N),
			Limit:      s.limits[i],
			Name:       s.name,
			Remaining:  int(b.Remaining(after.Level)),
			ResetAfter: millis(b.ResetAfter(after)),
		}
		if s.names != nil {
			this.Name = s.names[i]
		}
		if !allowed {
			this.RetryAfter = millis(b.RetryAfter(after, op.N))
		}
		if banned > 0 {
			this.Remaining, this.ResetAfter = 0, max(this.ResetAfter, banned)
			if this.RetryAfter >= 0 {
				this.RetryAfter = max(this.RetryAfter, banned)
			}
		}
		// A slot is free again when a request ends: it is the closest to exhaustion if there is none, or nothing else.
		if !found || this.closerThan(closest) && (b.Kind != bucket.Slots || this.RetryAfter > 0) {
			closest, found = this, true
		}
		if status != nil {
			status.add(s, i, states[i], after, op.N, banned)
		}
	}
	if !found { // there is nothing but a ban
		closest = Result{
			Allowed: allowed, Granted: int(granted * op.N), Limit: s.unlimited, Name: s.name, Remaining: math.MaxInt,
			RetryAfter: banned, ResetAfter: banned,
		}
		if !allowed {
			closest.Remaining = 0
		}
	}
	return closest
}

// leased returns the Result of n tokens that were leased, of which so many are left. That is all of each limit that this
// process can vouch for.
func (s *limitSet) leased(states []bucket.State, n, left int64, status *limitStatuses) Result {
	var closest Result
	for i := range s.buckets {
		b := &s.buckets[i]
		this := Result{
			Allowed: true, Granted: int(n), Limit: s.limits[i], Name: s.name,
			Remaining: int(left), ResetAfter: millis(b.ResetAfter(states[i])), Source: FromLease,
		}
		if i == 0 || this.closerThan(closest) {
			closest = this
		}
		if status != nil && status.all {
			status.limits = append(status.limits, limitStatus{&s.policies[i], httpfields.Status{
				Remaining: left, Full: b.Burst, More: httpfields.Seconds(millis(b.MoreAfter(states[i]))),
			}})
		}
	}
	return closest
}

// milliseconds returns a duration in whole milliseconds, rounded up.
func milliseconds(d time.Duration) int64 { return bucket.CeilDiv(int64(d), int64(time.Millisecond)) }

// millis returns ms milliseconds, [never] for [bucket.Never], or the longest Duration there is.
func millis(ms int64) time.Duration {
	switch {
	case ms < 0:
		return never
	case ms > math.MaxInt64/int64(time.Millisecond):
		return math.MaxInt64
	}
	return time.Duration(ms) * time.Millisecond
}

package rules

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/calendar"
)

// maxLater is how many calendar periods after the present one a block may reach into.
const maxLater = 31

// calendarBucket returns the bucket of the period at a time, and when that begins, in Unix ms.
func calendarBucket(rule calendar.Rule, n int64, at time.Time) (b bucket.Bucket, begins int64, ok bool) {
	start, end := rule.Period(at)
	b, ok = bucket.NewCalendar(rule.ID(start), n, end.Sub(start).Milliseconds(), end.UnixMilli())
	return b, start.UnixMilli(), ok
}

// holdPeriod limits the set to the present period of a calendar, at most.
func (s *Set) holdPeriod(rule calendar.Rule) {
	start, end := rule.Period(time.Now())
	s.holdUntil(start.UnixMilli(), end.UnixMilli())
}

// holdUntil has the set hold for a time, at most.
func (s *Set) holdUntil(begins, ends int64) {
	if s.begins = max(s.begins, begins); s.ends == 0 || s.ends > ends {
		s.ends = ends
	}
	if s.later == nil {
		s.later = new(atomic.Pointer[Set])
	}
}

// Now returns the set of the current calendar periods.
func (s *Set) Now() *Set {
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

func (s *Set) covers(t time.Time) bool {
	return s.begins <= t.UnixMilli() && t.UnixMilli() < s.ends
}

// renewed returns the set anew, with the current calendar periods.
func (s *Set) renewed() *Set {
	later := *s
	later.begins, later.ends, later.resources = 0, 0, slices.Clone(s.resources)
	for i, rule := range s.calendars {
		if rule == (calendar.Rule{}) {
			continue
		}
		b, begins, _ := calendarBucket(rule, s.quota(i), time.Now()) // it fitted before
		b.Leave(s.floor)
		later.holdUntil(begins, b.Ends)
		later.resources[i] = b
	}
	if s.prohibited != (calendar.Rule{}) {
		later.holdPeriod(s.prohibited)
	}
	if s.share != nil {
		later.KeepShare()
	}
	return &later
}

// quota returns the tokens of a calendar quota, including those that stay for others.
func (s *Set) quota(i int) int64 { return s.resources[i].Burst + s.floor }

// WithPeriods returns the set with the later calendar periods up to a time, at most 31 of each
// limit. Blocks and resets change them too.
func (s *Set) WithPeriods(t time.Time) *Set {
	if s.calendars == nil || t.UnixMilli() < s.ends {
		return s
	}
	all := *s
	all.share, all.resources = nil, slices.Clone(s.resources[:s.limits])
	for i, rule := range s.calendars {
		for n, ends := 0, s.resources[i].Ends; ends != 0 && n < maxLater && ends <= t.UnixMilli(); n++ {
			b, _, _ := calendarBucket(rule, s.quota(i), time.UnixMilli(ends))
			b.Leave(s.floor)
			all.resources, ends = append(all.resources, b), b.Ends
		}
	}
	all.limits = len(all.resources)
	all.resources = append(all.resources, s.resources[s.limits:]...)
	all.lay()
	return &all
}

// MaxBlock returns for how many milliseconds a limit can be blocked.
func (s *Set) MaxBlock(i int) int64 {
	b := &s.resources[i]
	if b.Ends == 0 {
		return b.MaxBlock()
	}
	ends := b.Ends
	for range maxLater {
		_, end := s.calendars[i].Period(time.UnixMilli(ends))
		ends = end.UnixMilli()
	}
	return ends - time.Now().UnixMilli()
}

// Ends returns when the first of the calendar periods ends, in Unix ms, or 0 without a calendar.
func (s *Set) Ends() int64 { return s.ends }

// Window returns how long a limit takes to regain all its tokens, those for others among them.
func (s *Set) Window(i int) time.Duration { return duration(s.resources[i].FillTime()) }

// ProhibitedWindow returns how long the current calendar period of the limit that prohibits is, or
// 0.
func (s *Set) ProhibitedWindow() time.Duration {
	if s.prohibited == (calendar.Rule{}) {
		return 0
	}
	start, end := s.prohibited.Period(time.UnixMilli(s.begins))
	return end.Sub(start)
}

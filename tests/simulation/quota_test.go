package simulation_test

import (
	"slices"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// simTold is what a caller is told of one limit. Some of it may last until the period ends, by the caller's clock.
type simTold struct {
	ginlimit.Result
	retry, reset bool
}

// tell returns the Result of what is told of each limit, at a time.
func (p *simPlan) tell(process int, told []simTold, periods []int, now time.Time) ginlimit.Result {
	var results []ginlimit.Result
	for i, t := range told {
		if p.calendarOf(t.Limit) != nil {
			left := testkit.Millis(max(1, p.ends(process, t.Limit, periods[i]).UnixMilli()-now.UnixMilli()))
			if t.retry && t.RetryAfter >= 0 {
				t.RetryAfter = max(t.RetryAfter, left)
			}
			if t.reset {
				t.ResetAfter = max(t.ResetAfter, left)
			}
		}
		results = append(results, t.Result)
	}
	return testkit.Closest(results)
}

// isTold reports whether an answer is what its caller is to be told. What lasts until a period ends
// is by the time of the answer, or somewhat earlier.
func (s *simulation) isTold(a *simAnswer, told []simTold, periods []int) bool {
	if len(told) == 0 {
		return false
	}
	r := a.result
	early, late := s.plan.tell(a.process, told, periods, a.start), s.plan.tell(a.process, told, periods, a.end)
	for _, want := range []ginlimit.Result{early, late} {
		most, least := want, want
		if early.Limit == late.Limit {
			most, least = early, late
		}
		if s.plan.calendarOf(want.Limit) != nil && r.RetryAfter <= most.RetryAfter && r.RetryAfter >= least.RetryAfter &&
			r.ResetAfter <= most.ResetAfter && r.ResetAfter >= least.ResetAfter {
			want.RetryAfter, want.ResetAfter = r.RetryAfter, r.ResetAfter
		}
		if want == r {
			return true
		}
	}
	return false
}

// isOf reports whether a script's call may be that of a caller who asked at a time: it is about the
// periods of that time.
func (e *simExecution) isOf(s *simulation, a *simAnswer) bool {
	for i, limit := range e.limits {
		if e.later != nil ||
			s.plan.period(a.process, s.plan.keys[e.key].versions[e.version][limit], a.start) != e.periods[i] {
			return false
		}
	}
	return true
}

// isOfNext reports whether an execution was about a period of an answer that had not begun when its
// caller was denied before: a process whose clock is ahead has taken of it.
func (s *simulation) isOfNext(e *simExecution, a *simAnswer) bool {
	for i, limit := range e.limits {
		l := s.plan.keys[e.key].versions[e.version][limit]
		if e.periods[i] == s.plan.period(a.process, l, a.start) &&
			e.periods[i] > s.plan.period(a.process, l, a.before.start) {
			return true
		}
	}
	return false
}

// periodOf returns the period of a limit that an execution was about.
func (e *simExecution) periodOf(limit int) int { return e.periods[slices.Index(e.limits, limit)] }

// checkArguments wants a calendar period's arguments to tell when it ends by the caller's clock,
// and that tokens are taken of a period that has begun by that clock, and was not over long ago.
func (v *simServer) checkArguments(process int, takes bool, b simBucketName, l ginlimit.Limit, left int64) {
	ends := v.plan.ends(process, l, b.period)
	if least, most := max(1, ends.UnixMilli()-time.Now().UnixMilli()), max(1,
		ends.UnixMilli()-v.start.UnixMilli()); left < least || left > most {
		v.violated("protocol: %s ends in %d ms, not in %d", v.name(b), least, left)
	}
	late := v.plan.timeout * 6 / 5
	if v.plan.faults != nil {
		late = 3 * time.Second
	}
	first, last := v.plan.period(process, l, time.Now().Add(-late)), v.plan.period(process, l, time.Now())
	if takes && (b.period < first || b.period > last) {
		v.violated("protocol: process %d takes of %s", process, v.name(b))
	}
}

// checkQuotas is guarantee 1 for calendar quotas, by what the server has admitted: no period admits
// more than its quota, and what was given back.
func (s *simulation) checkQuotas(key, limit int) {
	type counted struct{ period, version int }
	taken := map[counted]int64{}
	for _, e := range s.executionsOf(key, limit) {
		if e.fills() {
			clear(taken)
			continue
		}
		l := s.plan.keys[key].versions[e.version][limit]
		of := counted{e.periodOf(limit), e.version}
		if n := e.returned(); n > 0 {
			for _, version := range []int{0, 1} {
				one := counted{of.period, version}
				taken[one] = max(0, taken[one]-n)
			}
		}
		if taken[of] += e.granted; taken[of] > testkit.Burst(l) {
			s.violated("guarantee 1: %d tokens of client %d under %s were admitted in one period, until %s",
				taken[of], key, l, s.at(e.at))
			return
		}
	}
}

// checkQuotaPart is guarantee 1 for a calendar quota, by what callers were told.
func (s *simulation) checkQuotaPart(told []*simAnswer, limit int, l ginlimit.Limit) bool {
	type counted struct{ period, version int }
	sums := map[counted]int64{}
	for _, a := range told {
		if a.op == "Wait" {
			continue // it may have waited for another period
		}
		known, _ := s.charge(a)
		of := counted{s.plan.period(a.process, l, a.start), a.version}
		sums[of] += known
		if a.version == told[0].version && sums[of] > testkit.Burst(l)+s.returnedIn(a.key, limit, told[0].start, a.end) {
			s.complain(a, "guarantee 1: in one period, more was granted than "+l.String())
			return false
		}
	}
	return true
}

// checkQuotaShares is guarantee 1 for calendar quotas without Redis: in a period, a process admits
// no more than its share.
func (s *simulation) checkQuotaShares() {
	type counted struct{ process, key, limit, period, version int }
	if s.plan.strangers != nil { // beyond the bound, what is forgotten is full
		return
	}
	sums, last := map[counted]int{}, map[counted]time.Time{}
	for _, a := range s.answers { // in the order of their ends
		p := s.plan.processes[a.process]
		if p.failure != ginlimit.FailLocal || a.err != nil || a.result.Source != ginlimit.FromLocal || a.result.Granted == 0 {
			continue
		}
		for i, l := range s.plan.keys[a.key].versions[a.version] {
			if s.plan.calendarOf(l) == nil {
				continue
			}
			of := counted{a.process, a.key, i, s.plan.period(a.process, l, a.start), a.version}
			if s.filledLocally(a.process, a.key, last[of], a.end) {
				sums[of] = 0
			}
			last[of] = a.end
			if sums[of] += a.result.Granted; sums[of] > max(1, l.Rate/p.replicas) {
				s.complain(a, "guarantee 1: the process has admitted more than its share of "+l.String())
			}
		}
	}
}

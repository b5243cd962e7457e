package simulation_test

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Some plans have processes with leases, and keys so hot that they are worth it.

// drawLeases gives some processes leases, and larger limits to all keys, which some callers then ask about often.
func (p *simPlan) drawLeases(r *rand.Rand, length time.Duration) {
	for i := range p.processes {
		if i == 0 || r.IntN(3) > 0 {
			p.processes[i].lease = 2*time.Millisecond + upTo(r, 98*time.Millisecond)
		}
	}
	times := 4 + r.IntN(30)
	for i, key := range p.keys {
		if i > 0 && &key.versions[0] == &p.keys[0].versions[0] {
			continue
		}
		for _, version := range key.versions {
			for j := range version {
				version[j].Rate *= times
				version[j].Burst *= times
			}
		}
	}
	p.drawQuotaLeases(r, length)
	for range 1 + r.IntN(3) {
		process, key, at := r.IntN(len(p.processes)), r.IntN(len(p.keys)), upTo(r, length)
		gap := time.Duration(1 + r.IntN(int(3*time.Millisecond)))
		for range 100 + r.IntN(200) {
			c := simCall{process: process, key: key, op: "AllowN", n: 1}
			switch r.IntN(12) {
			case 0:
				c.n = 1 + r.IntN(4)
			case 1:
				c.op, c.n = "AllowUpTo", 1+r.IntN(4)
			case 2:
				c.process = r.IntN(len(p.processes))
			}
			at += upTo(r, 2*gap)
			c.at = at
			p.calls = append(p.calls, c)
		}
	}
}

// wanted is how many tokens an answer has been asked for, as far as there are ever so many.
func (a *simAnswer) wanted(s *simulation) int {
	if a.op == "AllowUpTo" {
		return min(a.n, int(leastBurst(s.plan.keys[a.key].versions[a.version])))
	}
	return a.n
}

// mostAhead is how many tokens more than its caller wants a call may be charged: as many as flow
// back in a lease's life.
func (s *simulation) mostAhead(a *simAnswer) int64 {
	life, most := s.plan.processes[a.process].lease, int64(1<<40)
	for _, l := range s.plan.keys[a.key].versions[a.version] {
		period := l.Period
		if s.plan.calendarOf(l) != nil {
			period = 23 * time.Hour // or more
		}
		most = min(most, int64(l.Rate)*int64(life)/int64(period))
	}
	return most
}

// afterSome reports whether a Result is what is left after some of the charges that a call has
// made, one after another. With leases, the caller is told of its own, and others follow.
func afterSome(e *simExecution, r ginlimit.Result) bool {
	left := func(i int) (allowed bool, remaining int) {
		one := testkit.Closest(results(e.single[i]))
		return one.Allowed, one.Remaining
	}
	for i := range e.single {
		allowed, first := left(i)
		_, last := left(min(len(e.single)-1, i+max(0, r.Granted-1)))
		if allowed == r.Allowed && last <= r.Remaining && first >= r.Remaining {
			return true
		}
	}
	return false
}

func results(told []simTold) (all []ginlimit.Result) {
	for _, t := range told {
		all = append(all, t.Result)
	}
	return all
}

// gives reports whether an execution may have given tokens back.
func (e *simExecution) gives() bool { return e.fills() || e.returned() > 0 }

// fills reports whether an execution may have given back more than some tokens.
func (e *simExecution) fills() bool {
	return slices.Contains([]string{"reset", "fill", "limits"}, e.verb)
}

// returned is how many tokens an execution has given back at most, if it does not fill.
func (e *simExecution) returned() int64 {
	if slices.Contains([]string{"give", "return", "part"}, e.verb) {
		return e.n
	}
	return 0
}

// checkAnswers is guarantee 1 by what callers were told: those who were granted tokens of Redis, or
// of a lease, between the start of the first and the end of the last of them are no more than burst
// + rate × that time, and what was given back. Where something fills buckets it begins anew, with
// leases after the longest life: until then, other processes do not know of it.
func (s *simulation) checkAnswers() {
	life := s.maxLease()
	for key := range s.plan.keys {
		var anew []time.Time
		var told []*simAnswer
		for _, e := range s.server.executions {
			if e.key == key && e.fills() {
				anew = append(anew, e.at)
			}
		}
		for _, a := range s.answers { // in the order of their ends
			if known, _ := s.charge(a); a.key == key && known > 0 && (a.op != "Wait" || !s.broken(a)) {
				told = append(told, a)
			}
		}
		slices.SortFunc(anew, time.Time.Compare)
		for i := 0; i <= len(anew); i++ {
			from, to := s.start, s.start.Add(time.Hour)
			if i > 0 {
				from = anew[i-1].Add(life + 1)
			}
			if i < len(anew) {
				to = anew[i]
			}
			part := slices.DeleteFunc(slices.Clone(told), func(a *simAnswer) bool {
				return a.start.Before(from) || !a.end.Before(to)
			})
			if len(part) > 1 && !s.checkPart(part) {
				return
			}
		}
	}
}

// maxLease is how long tokens may be leased at most.
func (s *simulation) maxLease() (life time.Duration) {
	for _, p := range s.plan.processes {
		life = max(life, p.lease)
	}
	return life
}

// returnedIn is how many tokens of a limit were given back within a time. Some were leased before, and are used in it.
func (s *simulation) returnedIn(key, limit int, from, to time.Time) (n int64) {
	from = from.Add(-s.maxLease() - 1)
	for _, e := range s.executionsOf(key, limit) {
		if !e.at.Before(from) && !e.at.After(to) {
			n += e.returned()
		}
	}
	return n
}

// checkPart checks answers about a key, in the order of their ends.
func (s *simulation) checkPart(told []*simAnswer) bool {
	for i, l := range s.plan.keys[told[0].key].versions[told[0].version] {
		if s.plan.calendarOf(l) != nil {
			if !s.checkQuotaPart(told, i, l) {
				return false
			}
			continue
		}
		for _, first := range told {
			sum := int64(0)
			for _, a := range told {
				if a.start.Before(first.start) {
					continue
				}
				known, _ := s.charge(a)
				sum += known
				if a.version != first.version || sum <= s.maxIn(l, first.start, a.end) {
					continue
				}
				if sum > s.maxIn(l, first.start, a.end)+s.returnedIn(a.key, i, first.start, a.end) {
					s.complain(a,
						"guarantee 1: with it, "+first.simCall.String()+" and those in between were granted more than "+l.String())
					return false
				}
			}
		}
	}
	return true
}

// maxIn is how many tokens of a limit may be admitted within a time, if none are given back.
func (s *simulation) maxIn(l ginlimit.Limit, from, to time.Time) int64 {
	span := s.serverTime(from, to)
	windows := int64((span + l.Period - 1) / l.Period) // one after another, of those that slide
	switch s.plan.algorithm {
	case ginlimit.FixedWindow:
		return testkit.Burst(l)*(windows+1) + s.leasedWhenSet(l, to)
	case ginlimit.SlidingWindow:
		return testkit.Burst(l) * max(1, windows)
	}
	return testkit.Burst(l) + int64(span)*int64(l.Rate)/int64(l.Period) + s.leasedWhenSet(l, to)
}

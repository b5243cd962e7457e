package simulation_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Some plans have processes with leases, and keys so hot that they are worth it.

// drawLeases gives processes leases, and larger limits to all keys, which some callers then ask about
// often. Processes have the same lease of token buckets, and some none or another of windows.
func (p *simPlan) drawLeases(r *rand.Rand, length time.Duration) {
	life := 2*time.Millisecond + upTo(r, pick(r, 98*time.Millisecond, 98*time.Millisecond, 600*time.Millisecond))
	for i := range p.processes {
		p.processes[i].lease = life
		if p.algorithm != ginlimit.TokenBucket && i > 0 {
			p.processes[i].lease = pick(r, 0, life, 2*time.Millisecond+upTo(r, 98*time.Millisecond))
		}
	}
	times := 4 + r.IntN(30)
	for i, key := range p.keys {
		shared := i > 0 && &key.versions[0] == &p.keys[0].versions[0]
		policy := fmt.Sprint("p", i) // policies of one name have the same leases
		if shared {
			policy = "p0"
		}
		p.keys[i].name = ginlimit.Key(policy, strings.TrimPrefix(key.name, "p|"))
		if shared {
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
	p.lend(life)
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
	switch a.op {
	case "Peek":
		return 0
	case "AllowUpTo":
		return min(a.n, int(leastBurst(s.plan.keys[a.key].versions[a.version])))
	}
	return a.n
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

// withoutAhead returns an answer with the ResetAfter of its own charge, if it has that of the tokens that
// were taken ahead with it.
func (e *simExecution) withoutAhead(a *simAnswer, own []simTold) *simAnswer {
	if e.ahead == 0 || !a.result.Allowed {
		return a
	}
	for i, last := range e.single[len(e.single)-1] {
		if last.Limit == a.result.Limit && last.ResetAfter == a.result.ResetAfter {
			alone := *a
			alone.result.ResetAfter = own[i].ResetAfter
			return &alone
		}
	}
	return a
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
	for key := range s.plan.keys {
		life := s.maxLife(key)
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

// returnedIn is how many tokens of a limit were given back within a time. With leases, what is
// returned was not used.
func (s *simulation) returnedIn(key, limit int, from, to time.Time) (n int64) {
	unused := s.maxLife(key) > 0
	for _, e := range s.executionsOf(key, limit) {
		if !e.at.Before(from) && !e.at.After(to) && !(unused && e.verb == "return") {
			n += e.returned()
		}
	}
	return n
}

// heldAt is how many tokens that were taken ahead processes may hold when a call is made. The lease
// bucket goes by the server's clock: if that is set forward, it is empty sooner.
func (s *simulation) heldAt(first *simAnswer) int64 {
	a, held := s.plan.lent(first.key, first.version), 1
	for _, set := range s.server.settings {
		if set.by > 0 && !set.at.After(first.start) && !set.at.Before(first.start.Add(-a.life-s.plan.timeout)) {
			held++
		}
	}
	return int64(held * a.lent)
}

// checkPart checks answers about a key, in the order of their ends.
func (s *simulation) checkPart(told []*simAnswer) bool {
	key := told[0].key
	for i, l := range s.plan.keys[key].versions[told[0].version] {
		if s.plan.calendarOf(l) != nil {
			if !s.checkQuotaPart(told, i, l) {
				return false
			}
			continue
		}
		for _, first := range told {
			sum, lent := int64(0), s.heldAt(first)
			for _, a := range told {
				if a.start.Before(first.start) {
					continue
				}
				known, _ := s.charge(a)
				sum += known
				if a.version != first.version || sum <= s.maxIn(l, lent, first.start, a.end) {
					continue
				}
				if sum > s.maxIn(l, lent, first.start, a.end)+s.returnedIn(a.key, i, first.start, a.end) {
					s.complain(a,
						"guarantee 1: with it, "+first.simCall.String()+" and those in between were granted more than "+l.String())
					return false
				}
			}
		}
	}
	return true
}

// maxIn is how many tokens of a limit may be admitted within a time, if none are given back: as many
// as without leases. lent is how many of them processes may have held at its beginning.
func (s *simulation) maxIn(l ginlimit.Limit, lent int64, from, to time.Time) int64 {
	span := s.serverTime(from, to)
	windows := int64((span + l.Period - 1) / l.Period) // one after another, of those that slide
	switch s.plan.algorithm {
	case ginlimit.FixedWindow:
		return testkit.Burst(l) * (windows + 1)
	case ginlimit.SlidingWindow:
		return testkit.Burst(l) * max(1, windows)
	}
	return testkit.Burst(l) + lent + int64(span)*int64(l.Rate)/int64(l.Period)
}

// isHeld reports whether an answer is what its caller is told who is denied, and is to come back no
// sooner than this process asks again. Without leases nobody is told so: the answer would take another's
// Result.
func (s *simulation) isHeld(a *simAnswer, told []simTold, periods []int) bool {
	if a.result.Allowed || a.result.RetryAfter <= 0 || a.result.RetryAfter > s.maxHold(a)+time.Millisecond ||
		len(told) == 0 || told[0].Allowed {
		return false
	}
	life := min(s.plan.lifeOf(a.process, a.key, a.version), time.Second/2)
	if life == 0 || a.result.Source == ginlimit.FromRedis && a.result.RetryAfter < life/2 {
		return false
	}
	return s.isTold(a, s.hold(told, told, a.result.RetryAfter, a.result.RetryAfter, int64(a.least())), periods)
}

// hold returns what is told of token buckets if those that denied are held as denying for at least some time, and
// tell to wait for so long: the tokens may take longer than that.
func (s *simulation) hold(denied, told []simTold, wait, atLeast time.Duration, n int64) (held []simTold) {
	for i, t := range told {
		if denied[i].RetryAfter > 0 && t.RetryAfter <= wait &&
			s.plan.algorithm == ginlimit.TokenBucket && s.plan.calendarOf(t.Limit) == nil {
			rate, period := int64(t.Limit.Rate), t.Limit.Period.Milliseconds()
			if (n*period+rate-1)/rate+atLeast.Milliseconds() > 1000 { // clients may come back sooner
				return nil
			}
			unit := new(big.Int).GCD(nil, nil, big.NewInt(rate), big.NewInt(period)).Int64()
			few := min(t.Remaining, denied[i].Remaining) // whoever wants more is denied, too
			level := (testkit.Burst(t.Limit)-int64(few)-1)*period + unit
			t.RetryAfter, t.Remaining = wait, few
			t.ResetAfter = max(t.ResetAfter, testkit.Millis((level+rate-1)/rate))
		}
		held = append(held, t)
	}
	return held
}

// aheadOfWindow reports whether a process may take tokens of a key ahead by the same script as others.
func (s *simulation) aheadOfWindow(process, key int) bool {
	return s.plan.lifeOf(process, key, 0) > 0 && s.plan.lent(key, 0).life == 0
}

// usageLives is in how many lives of a lease at most a process counts what is asked for.
const usageLives = 4

// checkAhead wants that a process takes no more ahead, and holds no more, than callers asked for lately.
func (s *simulation) checkAhead() {
	for _, e := range s.server.executions {
		if e.verb != "take" || s.plan.lifeOf(max(0, e.process), e.key, e.version) == 0 || e.granted+e.held == 0 {
			continue
		}
		from := e.at.Add(-usageLives*s.maxLife(e.key) - s.plan.timeout)
		if s.plan.faults != nil { // it may be late
			from = from.Add(-3 * time.Second)
		}
		asked := int64(0)
		for _, a := range s.answers {
			switch {
			case a.process != e.process || a.key != e.key || a.end.Before(from) || a.start.After(e.at):
			case a.op == "AllowN" || a.op == "AllowUpTo":
				asked += int64(a.wanted(s))
			case a.op == "Wait":
				asked += 2 + a.end.Sub(a.start).Milliseconds()
			}
		}
		if own := e.granted - e.ahead; e.ahead > asked || e.held > 2*asked || own > 2*asked {
			s.violated("leases: at %s process %d takes %d tokens of client %d, %d of them ahead, holds %d for longer, "+
				"and was asked for %d lately", s.at(e.at), e.process, e.granted, e.key, e.ahead, e.held, asked)
			return
		}
	}
}

package simulation_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit"
)

// In some plans with a cluster, slots migrate all the time and nothing else happens. Then it is
// known what each call was charged in the end, though buckets may be asked for one after another,
// and some of that given back.

// drawMoves makes a plan of moves, now and then.
func (p *simPlan) drawMoves(r *rand.Rand, length time.Duration) {
	if p.nodes == 1 || r.IntN(2) == 0 {
		return
	}
	p.moves, p.timeout, p.faults = true, 300*time.Millisecond, nil // go-redis follows some redirections only after a pause
	shared := r.IntN(2) == 0                                       // so that calls of many clients share a command
	for len(p.keys) < 3 {
		name := fmt.Sprint("client ", len(p.keys))
		if p.calendars != nil {
			name = ginlimit.Key("p", name)
		}
		p.keys = append(p.keys, simKey{name: name, versions: p.keys[0].versions})
	}
	for i := range p.keys {
		if shared {
			p.keys[i].versions = p.keys[0].versions
			for v := range p.keys[i].versions {
				p.keys[i].versions[v] = p.keys[i].versions[v][:1]
			}
		}
	}
	for range 6 + r.IntN(10) {
		p.faults = append(p.faults, simFault{
			kind: pick(r, simMoves...), at: upTo(r, length),
			lasts:   time.Millisecond + upTo(r, pick(r, 20*time.Millisecond, 400*time.Millisecond)),
			process: -1, node: r.IntN(p.nodes), key: r.IntN(len(p.keys)),
		})
	}
	for range 20 + r.IntN(40) {
		process, at := r.IntN(len(p.processes)), upTo(r, length)
		for range 3 + r.IntN(12) {
			p.calls = append(p.calls,
				simCall{process: process, key: r.IntN(len(p.keys)), op: "AllowN", n: 1, at: at + upTo(r, p.latency)})
		}
	}
}

// checkMoves wants each limit to have been charged what was granted, if nothing but moves has
// happened, and what was given back of a call that one of its limits denied.
func (s *simulation) checkMoves() {
	if !s.plan.moves {
		return
	}
	for _, b := range s.counters() {
		for process := range s.plan.processes {
			charged, least, most := int64(0), int64(0), int64(0)
			for _, a := range s.answers {
				if a.process != process || a.key != b.key {
					continue
				}
				known, upTo := s.charge(a)
				decided := a.result.Source != ginlimit.FromLocal && a.result.Source != ginlimit.FromOpen
				if a.op != "Wait" && a.decides() && decided { // by Redis: else what it was asked for may still be charged
					upTo = known
				}
				least, most = least+known, most+upTo
			}
			for _, e := range s.server.executions {
				if e.process == process && e.key == b.key && slices.Contains(e.limits, b.limit) {
					if charged += e.granted; e.verb == "return" {
						charged -= e.n
					}
				}
			}
			if charged < least || charged > most {
				s.violated("guarantee 2: process %d was granted %d tokens of %s in all, at most %d, and was "+
					"charged %d", process, least, s.server.name(b), most, charged)
			}
		}
	}
}

// foundOneByOne reports whether an answer is what its caller is to be told of buckets that were
// asked for one after another: by how each was when it was looked at, or when it was charged.
func (s *simulation) foundOneByOne(a *simAnswer, n, charges int64) bool {
	limits := len(s.plan.keys[a.key].versions[a.version])
	if limits == 1 || s.server.slots == nil {
		return false
	}
	var peeked []int64 // charges that fitted a bucket when it was looked at: no more are made, even if more fit by then
	for _, takes := range []bool{false, true} {
		found := make([][]simFound, limits)
		for _, e := range s.server.executions {
			if e.before != nil && e.process == a.process && e.key == a.key &&
				e.version == a.version && e.verb == "take" && e.n == n &&
				(e.charges > 0) == takes && !e.at.Before(a.start) && !e.at.After(a.end) && e.isOf(s, a) {
				found[e.limits[0]] = append(found[e.limits[0]], s.foundIn(e)...)
			}
		}
		if s.matchesOneOf(a, n, charges, found, nil) {
			return true
		}
		for _, fewer := range peeked {
			if s.matchesOneOf(a, n, fewer, found, nil) {
				return true
			}
		}
		for _, f := range slices.Concat(found...) {
			if fits := int64(f.look.Remaining) / n; fits > 0 && fits < charges && !slices.Contains(peeked, fits) {
				peeked = append(peeked, fits)
			}
		}
	}
	return false
}

// simFound is a bucket as a call may have found it.
type simFound struct {
	simReference
	simCounted
	at     time.Time
	period int
	look   simTold // of what its call wants
}

// foundIn returns how a call may have found a bucket: before all charges that were made together, or after some.
func (s *simulation) foundIn(e *simExecution) (all []simFound) {
	one := s.server.countedAs(e.buckets()[0], e.version)
	for r := e.before.only(one); ; {
		all = append(all, simFound{r.only(one), one, e.at, e.periods[0], r.one(one, 0, e.n)})
		if int64(len(all)) > e.charges || !r.take([]simCounted{one}, e.n, e.n)[0].Allowed {
			return all
		}
	}
}

// matchesOneOf tries all that the buckets may have been, one after another.
func (s *simulation) matchesOneOf(a *simAnswer, n, charges int64, found [][]simFound, chosen []simFound) bool {
	if len(chosen) == len(found) {
		return s.isToldOf(a, n, charges, chosen)
	}
	for _, f := range found[len(chosen)] {
		if last := len(chosen) - 1; last >= 0 && f.at.Before(chosen[last].at) {
			continue
		}
		held := !a.result.Allowed && s.plan.lifeOf(a.process, a.key, a.version) > 0
		if !held && !f.mayBe(a.result) {
			continue
		}
		if s.matchesOneOf(a, n, charges, found, append(slices.Clone(chosen), f)) {
			return true
		}
	}
	return false
}

// mayBe reports whether a bucket may be one of those of which a Result tells: there are too many to try all.
func (f *simFound) mayBe(r ginlimit.Result) bool {
	closest := r.Limit == f.limit
	switch {
	case r.Allowed && !f.look.Allowed, closest && f.look.Remaining-r.Granted != r.Remaining:
		return false
	case r.Allowed || f.simCounted.quota != "":
		return true
	case closest:
		return f.look.RetryAfter == r.RetryAfter && f.look.ResetAfter == r.ResetAfter
	}
	return r.RetryAfter < 0 || f.look.RetryAfter <= r.RetryAfter
}

// isToldOf reports whether an answer is what is told of buckets.
func (s *simulation) isToldOf(a *simAnswer, n, charges int64, found []simFound) bool {
	granted, allowed := n*charges, true
	for _, f := range found {
		allowed = allowed && f.look.Allowed
		granted = min(granted, int64(f.look.Remaining)/n*n)
	}
	if allowed != a.result.Allowed {
		return false
	}
	wants := n
	if !allowed {
		granted = 0
	} else if granted > 0 {
		wants = granted
	}
	var told []simTold
	var periods []int
	var times []time.Time
	for _, f := range found {
		t := f.only(f.simCounted).one(f.simCounted, granted, wants)
		t.Allowed, t.Granted = allowed, int(granted)
		told, periods, times = append(told, t), append(periods, f.period), append(times, f.at)
	}
	times[len(times)-1] = a.end // the last reply may come as late as this
	return s.isTold(a, told, periods) || s.isToldApart(a, told, periods, times) || s.isHeld(a, told, periods)
}

package simulation_test

import (
	"slices"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit"
)

// Nothing that was taken ahead is lost. Once nobody has asked for longer than leases last and are
// given back after, all that Redis has charged was used. It is not so after an outage or a lost
// reply.

// rest waits until what is not used of leases has been given back.
func (s *simulation) rest() {
	life := time.Duration(0)
	for key := range s.plan.keys {
		life = max(life, s.maxLife(key))
	}
	if life == 0 {
		return
	}
	time.Sleep(2*life + 2*s.plan.timeout + time.Millisecond)
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	s.server.tickLocked()
	s.rested = time.Now()
	s.used = map[string]int64{}
	for _, b := range s.counters() {
		b.period = s.plan.period(0, s.plan.keys[b.key].versions[0][b.limit], s.start)
		used := s.server.usedIn(simScriptKey{key: b.key, limits: []int{b.limit}, periods: []int{b.period}})
		s.used[s.server.name(b)] = used[0]
	}
}

// checkLost wants each process to have given back what it took ahead and did not use.
func (s *simulation) checkLost() {
	if s.rested.IsZero() || s.mayLose() {
		return
	}
	for _, b := range s.counters() {
		l := s.plan.keys[b.key].versions[0][b.limit]
		window := s.plan.algorithm == ginlimit.FixedWindow || s.plan.calendarOf(l) != nil
		if s.maxLife(b.key) == 0 || window && (!s.oneWindow(b, l) || s.hasShorter(b.key, l)) {
			continue // a lease ends with the shortest window, and what it leaves then stays taken of the others
		}
		name, all, unsure, plain := s.server.name(b), int64(0), int64(0), true
		for process := range s.plan.processes {
			left, unknown := int64(0), int64(0)
			for _, a := range s.answers {
				if a.process != process || a.key != b.key {
					continue
				}
				known, most := s.charge(a)
				all, left, unknown = all+known, left-known, unknown+max(0, most-known)
				plain = plain && (a.decides() || a.op == "Wait")
			}
			for _, e := range s.executionsOf(b.key, b.limit) {
				switch {
				case e.process != process || e.at.After(s.rested):
				case e.verb == "return":
					left -= e.n
				default:
					left += e.granted
					if s.leavesNothing(e, b.limit) {
						unknown += e.ahead
					}
				}
			}
			unsure += unknown
			if left < 0 || left > unknown {
				s.violated("leases: process %d has lost %d tokens of %s, and the outcome of %d is unknown",
					process, left, name, unknown)
			}
		}
		used := s.used[name]
		if window && plain && !s.filled(b) && (used < all || used > all+unsure) {
			s.violated("leases: %d tokens of %s were granted, and the outcome of %d is unknown, and %d count in Redis",
				all, name, unsure, used)
		}
	}
}

// leavesNothing reports whether all that an execution took of a bucket may have flowed back, or the next
// window have begun, by the time at which what it took ahead may be given back.
func (s *simulation) leavesNothing(e *simExecution, limit int) bool {
	i := slices.Index(e.limits, limit)
	told := e.together
	if len(e.single) > 0 {
		told = e.single[len(e.single)-1]
	}
	if e.ahead == 0 || i < 0 || i >= len(told) {
		return false
	}
	back := 2*s.plan.timeout + s.plan.timeout/5 + 2*time.Millisecond // how long giving back takes at most
	switch l := s.plan.keys[e.key].versions[0][limit]; {
	case s.plan.calendarOf(l) != nil:
		return false
	case s.plan.algorithm == ginlimit.FixedWindow:
		return l.Period <= back+s.plan.timeout+s.plan.timeout/10
	}
	life, until := s.maxLife(e.key), e.at
	for _, next := range s.server.executions { // as some may be held for longer
		if next.process == e.process && next.key == e.key && next.held > 0 &&
			next.at.After(until) && !next.at.After(until.Add(life)) {
			until = next.at
		}
	}
	return told[i].ResetAfter <= until.Sub(e.at)+life+back
}

// filled reports whether something filled a bucket.
func (s *simulation) filled(b simBucketName) bool {
	return slices.ContainsFunc(s.executionsOf(b.key, b.limit), func(e *simExecution) bool { return e.fills() })
}

// mayLose reports whether a fault of the plan may lose tokens: their reply, or the call that gives
// them back.
func (s *simulation) mayLose() bool {
	return s.plan.strangers != nil || s.plan.nodes > 1 || slices.ContainsFunc(s.plan.faults, func(f simFault) bool {
		return !slices.Contains([]string{"FLUSHALL", "SCRIPT FLUSH", "other limits", "Close"}, f.kind) || f.hard()
	})
}

// oneWindow reports whether all that was taken of a window was taken of one, which has not ended.
func (s *simulation) oneWindow(b simBucketName, l ginlimit.Limit) bool {
	periods := map[int]bool{}
	var first time.Time
	for _, e := range s.executionsOf(b.key, b.limit) {
		if first.IsZero() {
			first = e.at
		}
		if e.granted > 0 {
			periods[e.periodOf(b.limit)] = true
		}
	}
	if s.plan.calendarOf(l) == nil {
		return !s.filled(b) && s.rested.Sub(first)+2*time.Millisecond < l.Period
	}
	ends := s.plan.ends(0, l, b.period)
	return len(periods) == 1 && periods[b.period] && s.rested.Before(ends) &&
		!slices.ContainsFunc(s.plan.processes, func(p simProcess) bool { return p.skew != 0 })
}

// checkHolders wants no process to deny a call while it certainly holds enough for it.
func (s *simulation) checkHolders() {
	if s.mayLose() {
		return
	}
	trip := 2*s.plan.timeout/60 + 2*s.plan.timeout/100 + time.Millisecond // there and back, at the most
	for _, a := range s.answers {
		if !a.decides() || a.result.Allowed || a.op != "AllowN" && a.op != "AllowUpTo" ||
			a.result.RetryAfter < 0 || a.result.Source == ginlimit.FromLocal {
			continue
		}
		life := s.plan.lifeOf(a.process, a.key, a.version)
		if life == 0 || s.plan.lent(a.key, a.version).life == 0 {
			continue // of a window, nobody knows what was taken ahead
		}
		var last *simExecution
		for _, e := range s.server.executions {
			if e.process == a.process && e.key == a.key && e.leases && !e.at.After(a.end) {
				last = e
			}
		}
		if last == nil || last.version != a.version || last.at.Add(trip).After(a.start) ||
			a.end.After(last.at.Add(life-trip)) {
			continue
		}
		left := last.ahead
		for _, other := range s.answers {
			if other.process != a.process || other.key != a.key ||
				other.end.Before(last.at.Add(-trip)) || other.start.After(a.end) {
				continue
			}
			switch {
			case strings.Contains("Reset Block", other.op) || other.err != nil || other.op == "Wait":
				left = 0
			case other.result.Source == ginlimit.FromLease,
				other.result.Granted > 1 && other.end.After(last.at): // some of them may have been held
				left -= int64(other.result.Granted)
			}
		}
		if left > 0 && left >= int64(a.wanted(s)) && left >= int64(a.least()) {
			s.complain(a, "leases: the process holds enough, and denies")
		}
	}
}

// checkWindowsHeld wants what is held of a fixed window to be used in it: after its end, a process
// grants no more than it took after that.
func (s *simulation) checkWindowsHeld() {
	if s.plan.algorithm != ginlimit.FixedWindow || s.server.settings != nil {
		return
	}
	for _, b := range s.counters() {
		l := s.plan.keys[b.key].versions[0][b.limit]
		if s.plan.calendarOf(l) != nil || s.maxLife(b.key) == 0 {
			continue
		}
		for _, ended := range s.windowEnds(b, l) {
			for process := range s.plan.processes {
				granted, charged := int64(0), int64(0)
				for _, a := range s.answers {
					if known, _ := s.charge(a); a.process == process && a.key == b.key && a.op != "Wait" && a.start.After(ended) {
						granted += known
					}
				}
				for _, e := range s.executionsOf(b.key, b.limit) {
					if e.process == process && !e.at.Before(ended) {
						charged += e.granted
					}
				}
				if granted > charged {
					s.violated("leases: since %s, when a window of %s had ended, process %d granted %d tokens and took %d",
						s.at(ended), s.server.name(b), process, granted, charged)
					return
				}
			}
		}
	}
}

// windowEnds returns when windows have ended: as long after a token as they last, if another was
// taken then that began one.
func (s *simulation) windowEnds(b simBucketName, l ginlimit.Limit) (all []time.Time) {
	begun := time.Time{}
	for _, e := range s.executionsOf(b.key, b.limit) {
		switch {
		case e.fills() || e.returned() > 0 && e.verb != "return" || e.version != 0:
			return all
		case e.granted == 0:
		case begun.IsZero():
			begun = e.now
		case e.now.Sub(begun) >= l.Period:
			all = append(all, e.at.Add(-e.now.Sub(begun)).Add(l.Period))
			begun = e.now
		}
	}
	return all
}

// hasShorter reports whether a key has a shorter window than a limit's.
func (s *simulation) hasShorter(key int, l ginlimit.Limit) bool {
	return slices.ContainsFunc(s.plan.keys[key].versions[0], func(other ginlimit.Limit) bool {
		return other != l && (s.plan.calendarOf(l) != nil || other.Period < l.Period)
	})
}

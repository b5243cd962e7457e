package simulation_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// check holds a run against the guarantees, by their numbers in the documentation. What the server
// does is checked while it does it (see simServer), here is checked what callers are told.
func (s *simulation) check() {
	slices.SortFunc(s.answers, func(a, b *simAnswer) int { return a.end.Compare(b.end) })
	for _, a := range s.answers {
		s.checkTime(a)
		s.checkError(a)
		s.checkSource(a)
		s.checkDenial(a)
		s.checkRetry(a)
		s.checkRemembered(a)
	}
	s.checkResults()
	s.checkCharges()
	s.checkReturns()
	s.checkChanges()
	s.checkAdmissions()
	s.checkShares()
	s.checkBreaker()
}

// at is the time in a trace.
func (s *simulation) at(t time.Time) time.Duration { return t.Sub(s.start) }

// complain notes what is wrong with an answer.
func (s *simulation) complain(a *simAnswer, what string) {
	s.violated("%s: %s, asked at %s, answered at %s: %s", what, a.simCall, s.at(a.start), s.at(a.end), a.says())
}

// maxInline is the longest timeout for which a caller sends its call itself, and so does not see that its context is
// cancelled. One whose deadline is nearer than the timeout does not.
const maxInline = 100 * time.Millisecond

// checkTime is guarantee 5: no decision takes longer than the timeout and a tenth of it, which is
// the slack of the shared deadline, or than its caller is patient.
func (s *simulation) checkTime(a *simAnswer) {
	decision := s.plan.timeout + s.plan.timeout/10
	unseen := a.cancels && s.plan.processes[a.process].inline && s.plan.timeout <= maxInline
	most := decision
	switch {
	case a.op == "Wait" && unseen:
		most = a.patience + decision
	case a.op == "Wait":
		most = a.patience
	case a.patience > 0 && !unseen:
		most = min(most, a.patience)
	}
	if a.end.Sub(a.start) > most {
		s.complain(a, "guarantee 5: it took longer than "+most.String())
	}
}

// broken reports whether a fault may have kept the server from deciding on a call.
func (s *simulation) broken(a *simAnswer) bool {
	if s.redirected(a) {
		return true
	}
	for _, f := range s.plan.faults {
		until := f.end()
		if s.elsewhere(f, a) {
			continue
		}
		if f.hard() {
			if f.process >= 0 && f.process != a.process {
				continue
			}
			until += s.excused(f, a.process)
		} else if !slices.Contains(simSoftFaults, f.kind) || f.kind == "wrong type" && f.key != a.key {
			continue
		}
		if s.at(a.end) >= f.at && s.at(a.start) <= until {
			return true
		}
	}
	return false
}

// excused is how long after a hard fault Redis need not decide yet.
func (s *simulation) excused(f simFault, process int) time.Duration {
	refuses := f.kind == "restart" || f.kind == "restart empty"
	// go-redis may pause for a second (docs/operations.md)
	if refuses && s.plan.processes[process].client.DialerRetries == 1 {
		return simRecovery + time.Second
	}
	return simRecovery
}

// checkError wants no error but those that are documented, when they are.
func (s *simulation) checkError(a *simAnswer) {
	changes := slices.Contains([]string{"Refund", "Block", "Reset"}, a.op)
	switch {
	case a.err == nil:
	case errors.Is(a.err, context.Canceled) || errors.Is(a.err, context.DeadlineExceeded):
		if !a.ended && !(a.op == "Wait" && a.patience > 0 && !a.cancels) {
			s.complain(a, "the error is that of a context that has not ended")
		}
	case !errors.Is(a.err, ginlimit.ErrUnavailable):
		s.complain(a, "the error is none of those documented")
	case a.closed:
	case !changes && s.plan.processes[a.process].failure != ginlimit.FailClosed:
		s.complain(a, "there is no decision, though it is to be made without Redis")
	case !s.broken(a):
		s.complain(a, "guarantee 6: Redis does not decide")
	}
}

// checkSource is guarantee 6: while no fault keeps the server from it, and a second after that, it decides.
func (s *simulation) checkSource(a *simAnswer) {
	if !a.decides() {
		return
	}
	switch closed := s.members[a.process].closed; {
	case !closed.IsZero() && a.start.After(closed):
		s.complain(a, "a closed limiter decides")
	case a.result.Source == ginlimit.FromLocal && s.plan.processes[a.process].failure == ginlimit.FailClosed:
		s.complain(a, "it is decided without Redis")
	case a.result.Source == ginlimit.FromLocal && !s.broken(a):
		s.complain(a, "guarantee 6: Redis does not decide")
	case a.result.Source == ginlimit.FromCache && a.result.Allowed:
		s.complain(a, "a remembered denial allows")
	case a.result.Source == ginlimit.FromLease:
		s.complain(a, "there are no leases")
	}
	r := a.result
	if r.Allowed != (r.RetryAfter == 0) || a.op == "AllowN" && r.Granted != 0 && r.Granted != a.n ||
		r.Granted > a.n || r.Granted > 0 && !r.Allowed || a.op == "Peek" && r.Granted != 0 ||
		r.Remaining < 0 || r.ResetAfter < 0 {
		s.complain(a, "the Result contradicts itself")
	}
}

// checkDenial wants that no remembered denial denies what the server would admit, unless the tokens came back by
// another's doing, or by that of the server's clock, within a second.
func (s *simulation) checkDenial(a *simAnswer) {
	if !a.room || a.result.Source != ginlimit.FromCache {
		return
	}
	since := a.start.Add(-time.Second)
	if s.setForward(since, a.end) > 0 {
		return
	}
	for _, e := range s.server.executions {
		gives := e.gives()
		if !gives || e.key != a.key || e.at.Before(since) || e.at.After(a.end) {
			continue
		}
		if e.process != a.process || !s.knownBefore(e, a) {
			return
		}
	}
	s.complain(a, "a remembered denial denies what Redis would admit")
}

// knownBefore reports whether a process knew of its change before it was asked.
func (s *simulation) knownBefore(e *simExecution, a *simAnswer) bool {
	for _, change := range s.answers {
		if change.process == e.process && change.key == e.key && !change.decides() && change.op != "Wait" &&
			!change.start.After(e.at) && !change.end.Before(e.at) && change.end.Before(a.start) {
			return true
		}
	}
	return false
}

// checkRetry is guarantee 3: whoever waits RetryAfter is admitted, if nobody took the tokens meanwhile.
func (s *simulation) checkRetry(a *simAnswer) {
	b := a.before
	if b == nil || a.err != nil || a.result.Allowed || b.version != a.version {
		return
	}
	if a.op != "AllowN" && a.op != "Peek" && a.op != "AllowUpTo" {
		return
	}
	denied := "guarantee 3: it waited " + b.result.RetryAfter.String() +
		" as it was told, nobody took a token, and it is denied"
	if local := b.result.Source == ginlimit.FromLocal; local || a.result.Source == ginlimit.FromLocal {
		if local && a.result.Source == b.result.Source && !s.takenLocally(b, a) {
			s.complain(a, denied)
		}
		return
	}
	since := b.start
	if b.result.Source == ginlimit.FromCache { // what it does not know of is no fault of it
		since = s.remembered(b)
	}
	for _, f := range s.plan.faults {
		meanwhile := f.at <= s.at(a.end) && f.end()+s.plan.timeout >= s.at(since)
		if f.key == a.key && meanwhile && (f.kind == "wrong type" || f.kind == "other limits") {
			return
		}
	}
	// by that clock it has not waited for so long
	if s.setBetween(since, b.end, a.start, a.end) < 0 || s.logStands(since) {
		return
	}
	for _, e := range s.server.executions {
		takes := e.verb == "take" && e.granted > 0 || e.verb == "block"
		if e.key == a.key && takes && !e.at.After(a.end) && !e.at.Before(since) {
			return
		}
	}
	s.complain(a, denied)
}

// takenLocally reports whether another call of the process may have taken tokens of a key between
// two answers, or blocked it.
func (s *simulation) takenLocally(from, to *simAnswer) bool {
	return slices.ContainsFunc(s.answers, func(a *simAnswer) bool {
		takes := a.result.Granted > 0 || a.err != nil || a.op == "Wait" || a.op == "Block"
		return takes && a.process == to.process && a.key == to.key && !a.end.Before(from.start) && !a.start.After(to.end)
	})
}

// remembered returns when the call was asked whose denial was remembered, or the earliest time at
// which it may have been.
func (s *simulation) remembered(b *simAnswer) time.Time {
	earliest := b.start.Add(-time.Second)
	if s.plan.processes[b.process].denyOrNil == nil { // it may keep an older one to compare
		return earliest
	}
	for _, a := range s.answers {
		denied := a.err == nil && a.result.Source == ginlimit.FromRedis && !a.result.Allowed && a.op != "Peek"
		if denied && a.process == b.process && a.key == b.key && !a.end.After(b.start) && a.start.After(earliest) {
			earliest = a.start
		}
	}
	return earliest
}

// checkResults is guarantees 2 and 4: what the server answers is what the reference has told at that time, each of its
// Results to one caller.
func (s *simulation) checkResults() {
	for _, a := range s.answers {
		if a.decides() && a.result.Source == ginlimit.FromRedis && !s.found(a) {
			s.complain(a, "guarantees 2, 4: by the model no call of this time has that Result")
		}
	}
}

func (s *simulation) found(a *simAnswer) bool {
	n, charges := int64(a.n), int64(1)
	switch limits := s.plan.keys[a.key].versions[a.version]; {
	case a.op == "AllowUpTo":
		n, charges = 1, min(n, leastBurst(limits))
	case a.op == "Peek" || n > leastBurst(limits):
		charges = 0
		if a.op == "Peek" {
			n = 1
		}
	}
	for _, e := range s.server.executions {
		if e.process != a.process || e.key != a.key || e.version != a.version || e.verb != "take" || e.n != n ||
			e.at.Before(a.start) || e.at.After(a.end) || (e.charges == 0) != (charges == 0) {
			continue
		}
		if n == 1 && charges > 0 && s.sharesCharges(a, e) {
			return true // whose charge is whose nobody knows; checkCharges has their sum
		}
		if a.op == "AllowUpTo" {
			if e.charges == charges && !e.used[0] && testkit.Closest(e.together) == a.result {
				e.used[0] = true
				return true
			}
			continue
		}
		for i, r := range e.single {
			if !e.used[i] && testkit.Closest(r) == a.result {
				e.used[i] = true
				return true
			}
		}
	}
	return false
}

// sharesCharges reports whether an execution may be that of an AllowUpTo and of other calls together.
func (s *simulation) sharesCharges(a *simAnswer, e *simExecution) bool {
	if a.op == "AllowUpTo" && e.charges == min(int64(a.n), leastBurst(s.plan.keys[a.key].versions[a.version])) {
		return false
	}
	if a.op != "AllowUpTo" && e.charges == 1 {
		return false
	}
	return slices.ContainsFunc(s.answers, func(other *simAnswer) bool {
		late := !other.end.Before(e.at) || other.err != nil || other.result.Source != ginlimit.FromRedis
		return late && other.op == "AllowUpTo" && other.process == e.process && other.key == e.key && !other.start.After(e.at)
	})
}

// leastBurst is how many tokens a call can take at most.
func leastBurst(limits []ginlimit.Limit) int64 {
	least := testkit.Burst(limits[0])
	for _, l := range limits {
		least = min(least, testkit.Burst(l))
	}
	return least
}

// failuresUntilOpen is how many calls in a row, each asked for some time after the one before was given up, open the
// breaker of a node for certain. Three failures do, but not every call that is given up is one: some never left.
const failuresUntilOpen = 5

// checkBreaker wants that nobody waits for a server that has decided for nobody for long.
func (s *simulation) checkBreaker() {
	for process := range s.plan.processes {
		for i, f := range s.plan.faults {
			if !s.outage(i, process) {
				continue
			}
			failures, last := 0, s.start.Add(f.at)
			for _, a := range s.answers { // in the order of their ends
				if a.process != process || s.at(a.start) < f.at || s.at(a.end) > f.end() || a.patience > 0 || a.closed {
					continue
				}
				took := a.end.Sub(a.start)
				failed := took >= s.plan.timeout || took > 0 && (a.err != nil || a.result.Source == ginlimit.FromLocal)
				switch {
				case failures >= failuresUntilOpen*s.plan.nodes && took > 0 && a.start.After(last):
					s.complain(a, "it waits for a server that was given up long ago")
				case failed && a.start.Sub(last) > 25*time.Millisecond:
					failures, last = failures+1, a.end
				}
			}
		}
	}
}

// outage reports whether a fault keeps a process from the server all the time, and no other fault is near it.
func (s *simulation) outage(fault, process int) bool {
	f := s.plan.faults[fault]
	if !slices.Contains([]string{"freeze", "partition", "restart", "restart empty", "LOADING", "BUSY"}, f.kind) ||
		f.process >= 0 && f.process != process {
		return false
	}
	for i, other := range s.plan.faults {
		if i != fault && other.end()+time.Second > f.at && other.at < f.end() {
			return false
		}
	}
	return true
}

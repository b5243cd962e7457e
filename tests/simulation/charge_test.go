package simulation_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// checkCharges wants that each process' calls on a key have been charged what they were granted, at any time. A call
// whose outcome is unknown may have been charged, once.
func (s *simulation) checkCharges() {
	type sums struct{ granted, charged, most int64 }
	type event struct {
		at    time.Time
		order int // at one time: starts, executions, ends
		sums      // what it adds
	}
	for process := range s.plan.processes {
		for _, b := range s.counters() {
			var events []event
			for _, a := range s.answers {
				if a.process == process && a.key == b.key {
					known, most := s.charge(a)
					events = append(events, event{a.start, 0, sums{most: most}}, event{a.end, 2, sums{granted: known}})
				}
			}
			for _, e := range s.executionsOf(b.key, b.limit) {
				if e.process == process && e.verb == "take" {
					events = append(events, event{e.at, 1, sums{charged: e.granted}})
				}
			}
			slices.SortFunc(events, func(a, b event) int { return cmp.Or(a.at.Compare(b.at), a.order-b.order) })
			var sum sums
			for _, e := range events {
				sum = sums{sum.granted + e.granted, sum.charged + e.charged, sum.most + e.most}
				if sum.charged < sum.granted || sum.charged > sum.most {
					s.violated("charges: at %s process %d has had %d tokens of %s granted, Redis has charged %d, "+
						"and at most %d were asked for", s.at(e.at), process, sum.granted, s.server.name(b), sum.charged, sum.most)
					break
				}
			}
		}
	}
}

// checkReturns wants that no more is given back than was taken for callers that waited, and left, or tried again after
// Redis had not answered in time.
func (s *simulation) checkReturns() {
	for _, b := range s.counters() {
		for process := range s.plan.processes {
			most, back := 0, int64(0)
			for _, a := range s.answers {
				left := errors.Is(a.err, context.Canceled) || errors.Is(a.err, context.DeadlineExceeded)
				if a.op != "Wait" || a.process != process || a.key != b.key {
					continue
				}
				if most += int(a.end.Sub(a.start) / s.plan.timeout); left {
					most++
				}
			}
			for _, e := range s.executionsOf(b.key, b.limit) {
				if e.verb == "return" && e.process == process {
					back += e.n
				}
			}
			if back > int64(most) {
				s.violated("process %d has given %d tokens of %s back, and %d were asked for by callers that left or tried again",
					process, back, s.server.name(b), most)
			}
		}
	}
}

// counters returns each limit of each key.
func (s *simulation) counters() (all []simBucketName) {
	for key, k := range s.plan.keys {
		for limit := range k.versions[0] {
			all = append(all, simBucketName{key, limit})
		}
	}
	return all
}

// charge returns how many tokens a call has certainly been charged in Redis, and how many at most.
func (s *simulation) charge(a *simAnswer) (known, most int64) {
	n := int64(a.n)
	switch {
	case a.op == "Wait" && a.err == nil && !s.broken(a):
		return 1, 1
	case a.op == "Wait": // each try that Redis has not answered in time may be charged late
		return 0, 2 + int64(a.end.Sub(a.start)/(200*time.Millisecond))
	case a.op != "AllowN" && a.op != "AllowUpTo":
		return 0, 0
	// one bucket may be charged, and given back
	case a.err == nil && a.result.Source == ginlimit.FromRedis && s.redirected(a):
		return int64(a.result.Granted), n
	case a.err == nil && a.result.Source == ginlimit.FromRedis:
		return int64(a.result.Granted), int64(a.result.Granted)
	case a.err == nil && a.result.Source == ginlimit.FromCache:
		return 0, 0
	}
	return 0, n
}

// checkChanges wants that each Refund, Block and Reset is made once, or at most once if it has failed.
func (s *simulation) checkChanges() {
	verbs := map[string]string{"Refund": "give", "Block": "block", "Reset": "reset"}
	type change struct {
		process int
		simBucketName
		verb string
		n    int64
	}
	least, most, made := map[change]int{}, map[change]int{}, map[change]int{}
	for _, a := range s.answers {
		verb := verbs[a.op]
		if verb == "" {
			continue
		}
		c := change{process: a.process, verb: verb, n: int64(a.n)}
		c.key = a.key
		if verb == "block" {
			c.n = int64((a.block + time.Millisecond - 1) / time.Millisecond)
		}
		for c.limit = range s.plan.keys[a.key].versions[0] {
			most[c]++
			if a.err == nil {
				least[c]++
			}
		}
	}
	for _, e := range s.server.executions {
		if slices.Contains([]string{"give", "block", "reset"}, e.verb) {
			for _, limit := range e.limits {
				made[change{e.process, simBucketName{e.key, limit}, e.verb, e.n}]++
			}
		}
	}
	for c, n := range most {
		if made[c] < least[c] || made[c] > n {
			s.violated("changes: %+v was made %d times, asked for %d times, and confirmed %d times", c, made[c], n, least[c])
		}
		delete(made, c)
	}
	for c, n := range made {
		s.violated("changes: %+v was made %d times, and nobody asked for it", c, n)
	}
}

// checkAdmissions is guarantee 1, by what the server has admitted: over any span of its clock no
// more than burst + rate × t, and what was given back. A Reset, other limits and an empty server
// begin anew.
func (s *simulation) checkAdmissions() {
	for key := range s.plan.keys {
		for i := range s.plan.keys[key].versions[0] {
			if s.plan.algorithm == ginlimit.FixedWindow {
				s.checkWindows(key, i)
			} else {
				s.checkSpans(key, i)
			}
		}
	}
}

// executionsOf returns what was done to the buckets of a limit, in order.
func (s *simulation) executionsOf(key, limit int) (all []*simExecution) {
	for _, e := range s.server.executions {
		if e.key == key && slices.Contains(e.limits, limit) {
			all = append(all, e)
		}
	}
	return all
}

func (s *simulation) checkSpans(key, limit int) {
	var since []*simExecution // what takes, and what gives back
	version := 0
	for _, e := range s.executionsOf(key, limit) {
		if e.fills() || e.version != version {
			since = nil
		}
		version = e.version
		if e.granted == 0 && (len(since) == 0 || e.returned() == 0) {
			continue
		}
		since = append(since, e)
		l, sum := s.plan.keys[key].versions[e.version][limit], int64(0)
		for j := len(since) - 1; j >= 0; j-- {
			sum += since[j].granted - since[j].returned()
			span := s.serverTime(since[j].at, e.at)
			most := testkit.Burst(l) + int64(span)*int64(l.Rate)/int64(l.Period)
			if s.plan.algorithm == ginlimit.SlidingWindow {
				if most = testkit.Burst(l); span >= l.Period {
					break
				}
			}
			if sum > most {
				s.violated("guarantee 1: %d tokens of client %d under %s were admitted from %s to %s",
					sum, key, l, s.at(since[j].at), s.at(e.at))
				return
			}
		}
	}
}

// checkWindows wants each fixed window to admit no more than its limit. It begins with the first
// token after the window before has ended. After a call that gives back, that is known again once
// no token was taken for as long as a window lasts. A window keeps its end if the server's clock is
// set back, so the latest token is the one that was taken latest by that clock.
func (s *simulation) checkWindows(key, limit int) {
	var begun, last time.Time // by the server's clock: of the window, and of the latest token
	sum, version, known, before := int64(0), 0, true, s.start
	for _, e := range s.executionsOf(key, limit) {
		if s.setBack(before, e.at) { // a window that had ended has not begun again
			known = false
		}
		before = e.at
		switch {
		case e.fills() && e.verb != "limits":
			begun, last, known = time.Time{}, time.Time{}, true
			continue
		case e.verb == "limits" || e.version != version || e.returned() > 0:
			known = false
		}
		if version = e.version; e.granted == 0 {
			continue
		}
		l := s.plan.keys[key].versions[version][limit]
		if known && e.now.Sub(begun) >= l.Period || e.now.Sub(last) >= l.Period {
			begun, sum, known = e.now, 0, true
		}
		if e.now.After(last) {
			last = e.now
		}
		if sum += e.granted; known && sum > testkit.Burst(l) {
			s.violated("guarantee 1: %d tokens of client %d under %s were admitted in one window, until %s",
				sum, key, l, s.at(e.at))
			return
		}
	}
}

// checkShares is guarantee 1 without Redis: a process admits no more than its share of a limit.
// More tokens at once than it holds it admits when it is full.
func (s *simulation) checkShares() {
	if s.plan.algorithm != ginlimit.TokenBucket {
		return
	}
	for process, p := range s.plan.processes {
		if p.failure != ginlimit.FailLocal {
			continue
		}
		for key := range s.plan.keys {
			var local []*simAnswer
			for _, a := range s.answers { // in the order of their ends
				if a.process != process || a.key != key {
					continue
				}
				if len(local) > 0 && (local[0].version != a.version || s.filledLocally(process, key, local[0].end, a.end)) {
					local = nil
				}
				if a.err != nil || a.result.Source != ginlimit.FromLocal || a.result.Granted == 0 {
					continue
				}
				local = append(local, a)
				for _, l := range s.plan.keys[key].versions[a.version] {
					rate, holds := max(1, l.Rate/p.replicas), max(1, int(testkit.Burst(l))/p.replicas)
					sum := 0
					for j := len(local) - 1; j >= 0; j-- {
						sum += local[j].result.Granted
						span := a.end.Sub(local[j].end) + time.Millisecond
						if most := max(holds, a.result.Granted) + int(int64(span)*int64(rate)/int64(l.Period)); sum > most {
							s.complain(a, "guarantee 1: the process has admitted more than its share of "+l.String())
						}
					}
				}
			}
		}
	}
}

// filledLocally reports whether a process may have given tokens of a key back within a time.
func (s *simulation) filledLocally(process, key int, from, to time.Time) bool {
	return slices.ContainsFunc(s.answers, func(a *simAnswer) bool {
		return (a.op == "Reset" || a.op == "Refund") && a.process == process &&
			a.key == key && !a.end.Before(from) && !a.start.After(to)
	})
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

// simAnswer is what a call was answered.
type simAnswer struct {
	simCall
	version    int
	start, end time.Time
	result     ginlimit.Result
	err        error
	ended      bool       // the caller's context
	room       bool       // FromMemory: the server had room for it
	closed     bool       // Close had been called before the answer
	before     *simAnswer // the denial after which it waited RetryAfter
}

func (a *simAnswer) says() string {
	if a.err != nil {
		return a.err.Error()
	}
	if !a.decides() {
		return "done"
	}
	return fmt.Sprintf("%+v", a.result)
}

// decides reports whether the answer is a Result.
func (a *simAnswer) decides() bool { return a.err == nil && a.result != (ginlimit.Result{}) }

// kind is where the answer comes from.
func (a *simAnswer) kind() string {
	switch {
	case a.err != nil:
		return "error"
	case !a.decides():
		return "done"
	}
	return a.result.Source.String()
}

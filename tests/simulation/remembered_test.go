package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// checkRemembered is guarantee 4 of a denial from memory: its Result is what the reference tells
// of the buckets as Redis found them when it denied, and as long after that as the process knows
// of.
func (s *simulation) checkRemembered(a *simAnswer) {
	if a.err != nil || a.result.Source != ginlimit.FromCache {
		return
	}
	limits := len(s.plan.keys[a.key].versions[a.version])
	for _, e := range slices.Backward(s.server.executions) {
		switch {
		case e.process != a.process || e.key != a.key || e.version != a.version ||
			e.at.After(a.end) || !e.at.After(a.start.Add(-time.Second)):
			continue
		case e.verb == "take" && len(e.limits) < limits || s.logStands(e.at): // of some of its buckets, or by another clock
			return
		case e.denied != nil && (e.n == int64(a.least()) || s.plan.algorithm == ginlimit.TokenBucket) &&
			s.isRemembered(a, e):
			return
		}
	}
	s.complain(a, "guarantee 4: by the model no denial that is remembered has that Result")
}

// isRemembered reports whether a Result from memory is what a call is told that has denied, after
// some milliseconds: from when it was answered. What a period has left is from when it was asked.
func (s *simulation) isRemembered(a *simAnswer, e *simExecution) bool {
	same, trip := *a, 2*s.plan.timeout
	same.result.Source, same.start = ginlimit.FromRedis, a.start.Add(-trip)
	most := a.end.Sub(e.at).Milliseconds()
	for passed := most; passed >= max(0, most-trip.Milliseconds()); passed-- {
		var told, denied []simTold
		for i := range e.limits {
			one := s.server.countedAs(simBucketName{e.key, e.limits[i], e.periods[i]}, e.version)
			told = append(told, s.tellRemembered(e, one, int64(a.least()), passed))
			denied = append(denied, s.tellRemembered(e, one, int64(a.least()), 0))
		}
		if s.isTold(&same, told, e.periods) {
			return true
		}
		// What is left of a hold is rounded up. The tokens may take longer than it.
		wait, left := a.result.RetryAfter, s.maxHold(a)+testkit.Millis(1-max(0, passed-1))
		natural := slices.ContainsFunc(told, func(t simTold) bool { return t.RetryAfter == wait })
		atLeast := wait
		if natural {
			atLeast = 0
		}
		if wait > 0 && left > 0 && (wait < left || natural) &&
			s.isTold(&same, s.hold(denied, told, wait, atLeast, int64(a.least())), e.periods) {
			return true
		}
	}
	return false
}

// tellRemembered is what is told of a bucket a while after a denial. A token bucket refills
// meanwhile; of a window, only the ends of waits come nearer.
func (s *simulation) tellRemembered(e *simExecution, c simCounted, n, passed int64) (t simTold) {
	r := e.denied.clone()
	if c.quota == "" && s.plan.algorithm == ginlimit.TokenBucket {
		r.at(r.now() + passed)
		t = r.one(c, 0, n)
	} else {
		t = r.one(c, 0, n)
		if t.RetryAfter > 0 {
			t.RetryAfter = max(0, t.RetryAfter-testkit.Millis(passed))
		}
		t.ResetAfter = max(0, t.ResetAfter-testkit.Millis(passed))
		if c.quota == "" && t.ResetAfter == 0 {
			t.Remaining = int(testkit.Burst(c.limit))
		}
	}
	t.Allowed, t.Granted = false, 0
	return t
}

// In half of the plans without leases and with one server, some calls are reservations, which take
// an estimate, and are settled with less or with the same a while later. Nothing else gives back
// what was taken there: so what Redis gives back is at most what was settled. Not drawn: what is
// settled with more, which the reference models have no debt for.

// drawSettles has calls reserve, unless something else gives back what was taken.
func (p *simPlan) drawSettles(r *rand.Rand) {
	leases := slices.ContainsFunc(p.processes, func(m simProcess) bool { return m.lease > 0 })
	if p.nodes > 1 || leases || r.IntN(2) > 0 {
		return
	}
	p.settles = true
	for i := range p.calls {
		if c := &p.calls[i]; c.op == "AllowN" && r.IntN(2) == 0 {
			c.settles, c.actual, c.holds = true, r.IntN(c.n+1), pick(r, 0, 0, upTo(r, p.timeout), upTo(r, 400*time.Millisecond))
		}
	}
}

// reserve is AllowN, to be settled.
func (m *simMember) reserve(ctx context.Context, p *simPlan, a *simAnswer) (r *ginlimit.Reservation, err error) {
	key := p.keys[a.key]
	return m.limiter.Reserve(ctx, key.name, a.n, p.limitsOf(a.process, a.key, a.version)...)
}

// settle settles a reservation, and notes how.
func (s *simulation) settle(reserved *simAnswer) {
	time.Sleep(reserved.holds)
	c := simCall{process: reserved.process, key: reserved.key, op: "Settle", n: reserved.n - reserved.actual}
	a := &simAnswer{simCall: c, version: reserved.version, before: reserved, start: time.Now()}
	s.note("%s", c)
	a.err = reserved.reservation.Settle(context.Background(), reserved.actual)
	a.end = time.Now()
	s.server.mu.Lock()
	a.closed = !s.members[a.process].closing.IsZero()
	s.server.mu.Unlock()
	s.note("%s, asked %s ago: %s", c, a.end.Sub(a.start), a.says())
	s.mu.Lock()
	s.answers = append(s.answers, a)
	s.mu.Unlock()
}

// checkSettles wants that no more is given back than was settled, and that it is.
func (s *simulation) checkSettles() {
	if !s.plan.settles {
		return
	}
	for _, b := range s.counters() {
		for process := range s.plan.processes {
			most, back := 0, int64(0)
			for _, a := range s.answers {
				if a.op == "Settle" && a.process == process && a.key == b.key && a.before.result.Source == ginlimit.FromRedis {
					most += a.n
				}
				recalls := a.settles || a.op == "Wait"
				if recalls && s.hasLeft(a) && a.process == process && a.key == b.key {
					most += a.n
				}
			}
			for _, e := range s.server.executions {
				if e.verb == "return" && e.process == process && e.key == b.key && slices.Contains(e.limits, b.limit) {
					back += e.n
				}
			}
			if back > int64(most) {
				s.violated("settle: process %d has given %d tokens of %s back, and settled with %d fewer than "+
					"it took, or left", process, back, s.server.name(b), most)
			}
		}
	}
	for _, a := range s.answers {
		if a.op == "Settle" && a.n > 0 && a.err == nil && a.before.result.Source == ginlimit.FromRedis &&
			s.stillTaken(a) && !s.gaveBack(a) {
			s.complain(a, "settle: nothing is given back")
		}
	}
}

// hasLeft reports whether the caller left before there was a decision: then what was taken for it is given back.
func (*simulation) hasLeft(a *simAnswer) bool {
	return errors.Is(a.err, context.Canceled) || errors.Is(a.err, context.DeadlineExceeded)
}

// stillTaken reports whether too little time has passed since the estimate was taken for a token to have come back.
func (s *simulation) stillTaken(a *simAnswer) bool {
	if s.plan.algorithm == ginlimit.FixedWindow { // which may end
		return false
	}
	return !slices.ContainsFunc(s.plan.keys[a.key].versions[a.version], func(l ginlimit.Limit) bool {
		each := l.Period
		if s.plan.algorithm == ginlimit.TokenBucket {
			each /= time.Duration(l.Rate)
		}
		return s.plan.calendarOf(l) != nil || a.end.Sub(a.before.start)+time.Millisecond >= each
	})
}

func (s *simulation) gaveBack(a *simAnswer) bool {
	return slices.ContainsFunc(s.server.executions, func(e *simExecution) bool {
		return e.verb == "return" && e.process == a.process && e.key == a.key && !e.at.Before(a.start) && !e.at.After(a.end)
	})
}

// In an eighth of the seeds memory is small, and strangers come: clients that nobody has seen
// before, and more of them than a process has memory for. The server does what they ask without a
// check. Guarantee 7: what a process keeps stays within its bounds.
const (
	simLocalBuckets = 32 // the fewest that a process keeps
	simStrangers    = 120
	simStranger     = "stranger"
	// simKeyBuckets is how many buckets of its own a key that is decided on may leave beyond the
	// bound, as they are spared.
	simKeyBuckets = 10
)

// simStrangersLimit is one that no other client has: they share no command with others.
var simStrangersLimit = ginlimit.Limit{Rate: 1, Period: 59 * time.Second}

// drawStrangers has memory be small.
func (p *simPlan) drawStrangers(r *rand.Rand, length time.Duration) {
	if r.IntN(8) > 0 {
		return
	}
	p.strangers = append(p.strangers, upTo(r, length))
	for _, f := range p.faults {
		if f.hard() {
			p.strangers = append(p.strangers, f.at+f.lasts/2)
		}
	}
	for i := range p.processes {
		entries := 4 << r.IntN(4)
		p.processes[i].denyOrNil = &entries
	}
}

// visit has strangers ask a process, twice each.
func (s *simulation) visit(process, crowd int) {
	for i := range simStrangers {
		s.calls.Go(func() {
			defer s.tellPanic()
			for range 2 {
				_, _ = s.members[process].limiter.Allow(context.Background(),
					fmt.Sprint(simStranger, crowd, " ", i), simStrangersLimit)
			}
			s.checkMemory(process)
		})
	}
}

// ofStrangers reports whether a call declares keys of strangers, or those of operators.
func ofStrangers(args []string) bool { return slices.ContainsFunc(declared(args), isStrange) }

// isStrange reports whether a key is one of a stranger, or of operators: of no client of the plan.
func isStrange(key string) bool {
	return strings.Contains(key, simStranger) || isOfOperators(key)
}

// isOfOperators reports whether a key is one of operators. The simulated migration copies no hashes.
func isOfOperators(key string) bool {
	return strings.Contains(key, "{policies}") || strings.Contains(key, "{overrides}")
}

// checkMemory is guarantee 7.
func (s *simulation) checkMemory(process int) {
	if s.plan.strangers == nil {
		return
	}
	stats, entries := s.members[process].limiter.Stats(), *s.plan.processes[process].denyOrNil
	if most := simLocalBuckets + simKeyBuckets*len(s.plan.keys); stats.LocalBuckets > most {
		s.violated("guarantee 7: process %d keeps %d buckets, and is to keep %d", process, stats.LocalBuckets, most)
	}
	if stats.Remembered > entries {
		s.violated("guarantee 7: process %d remembers %d denials, and is to remember %d", process, stats.Remembered, entries)
	}
}

// describe tells the configuration, what happened and what was violated.
func (s *simulation) describe() string {
	return s.plan.describe() + strings.Join(s.trace, "\n") + "\n" + strings.Join(s.violations, "\n")
}

// tell writes the run so far to the standard error, where the process is about to end.
func (s *simulation) tell() {
	if s.mu.TryLock() { // unless who panics has it
		defer s.mu.Unlock()
	}
	fmt.Fprintf(os.Stderr, "seed %d:\n%s\nreplay: go test ./tests/simulation -run TestSimulation -seed %d\n",
		s.plan.seed, s.describe(), s.plan.seed)
}

// tellPanic tells the run if its goroutine panics, which goes on.
func (s *simulation) tellPanic() {
	if p := recover(); p != nil {
		s.tell()
		panic(p)
	}
}

// describe tells the configuration.
func (p *simPlan) describe() string {
	text := fmt.Sprintf("%s, %d nodes, timeout %s, latency %s + up to %s\n", p.algorithm,
		p.nodes, p.timeout, p.latency, p.jitter)
	for i, m := range p.processes {
		deny := "by default"
		if m.denyOrNil != nil {
			deny = strconv.Itoa(*m.denyOrNil)
		}
		text += fmt.Sprintf("process %d: %d s ahead, Fail %s, %d replicas, deny memory %s, "+
			"lease %s, inline %t, ContextTimeoutEnabled %t, ReadTimeout %s, %d retries of a dial, protocol %d\n",
			i, m.skew, m.failure, m.replicas, deny, m.lease, m.inline,
			m.client.ContextTimeoutEnabled, m.client.ReadTimeout, m.client.DialerRetries, m.client.Protocol)
	}
	for _, k := range p.keys {
		text += fmt.Sprintf("%s: %v, later %v\n", k.name, k.versions[0], k.versions[1])
		if k.ahead != nil {
			text += fmt.Sprintf("of which may be leased: %+v\n", k.ahead)
		}
	}
	return text
}

package simulation_test

import (
	"fmt"
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
	for _, e := range slices.Backward(s.server.executions) {
		switch {
		case e.process != a.process || e.key != a.key || e.version != a.version ||
			e.at.After(a.end) || !e.at.After(a.start.Add(-time.Second)):
			continue
		case s.logStands(e.at): // it is by another clock
			return
		case e.denied != nil && (e.n == int64(a.least()) || s.plan.algorithm == ginlimit.TokenBucket) &&
			s.isRemembered(a, e):
			return
		}
	}
	s.complain(a, "guarantee 4: by the model no denial that is remembered has that Result")
}

// isRemembered reports whether a Result from memory is what a call is told that has denied, after
// some milliseconds: from when it was answered.
func (s *simulation) isRemembered(a *simAnswer, e *simExecution) bool {
	want, trip := a.result, 2*s.plan.timeout
	want.Source = ginlimit.FromRedis
	most := a.end.Sub(e.at).Milliseconds()
	for passed := most; passed >= max(0, most-trip.Milliseconds()); passed-- {
		var told []ginlimit.Result
		for _, one := range s.server.countedOf(e.key, e.version) {
			told = append(told, s.tellRemembered(e, one, int64(a.least()), passed))
		}
		if testkit.Closest(told) == want {
			return true
		}
	}
	return false
}

// tellRemembered is what is told of a bucket a while after a denial. A token bucket refills
// meanwhile; of a window, only the ends of waits come nearer.
func (s *simulation) tellRemembered(e *simExecution, c simCounted, n, passed int64) (t ginlimit.Result) {
	r := e.denied.clone()
	if s.plan.algorithm == ginlimit.TokenBucket {
		r.at(r.now() + passed)
		t = r.one(c, 0, n)
	} else {
		t = r.one(c, 0, n)
		if t.RetryAfter > 0 {
			t.RetryAfter = max(0, t.RetryAfter-testkit.Millis(passed))
		}
		if t.ResetAfter = max(0, t.ResetAfter-testkit.Millis(passed)); t.ResetAfter == 0 {
			t.Remaining = int(testkit.Burst(c.limit))
		}
	}
	t.Allowed, t.Granted = false, 0
	return t
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
		text += fmt.Sprintf("process %d: Fail %s, %d replicas, deny memory %s, "+
			"inline %t, ContextTimeoutEnabled %t, ReadTimeout %s, %d retries of a dial, protocol %d\n",
			i, m.failure, m.replicas, deny, m.inline,
			m.client.ContextTimeoutEnabled, m.client.ReadTimeout, m.client.DialerRetries, m.client.Protocol)
	}
	for _, k := range p.keys {
		text += fmt.Sprintf("%s: %v, later %v\n", k.name, k.versions[0], k.versions[1])
	}
	return text
}

package simulation_test

import (
	"slices"
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

package limits_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// took reports whether a policy has taken anything for a request that is allowed.
func (v foretold) took(w want) bool {
	return slices.ContainsFunc(v.results, func(r ginlimit.Result) bool {
		return (r.Name == w.name || r.Name == w.name+"-c") && r.Granted > 0
	})
}

// wait lets time pass in the model before it does: for 0 it has.
func (s *scene) wait(d time.Duration) {
	s.ahead = d
	s.advance(d)
}

func (s *scene) advance(d time.Duration) {
	for _, r := range s.rules {
		if r.counters != nil {
			r.counters.Advance(d)
		}
	}
}

// fail prints the trace.
func (s *scene) fail(format string, args ...any) {
	s.t.Helper()
	var rules []string
	for _, r := range s.rules {
		rules = append(rules, r.String())
	}
	from := max(0, len(s.trace)-40)
	require.Failf(s.t, "differs", "seed %d: %s\n%s\n%s", s.seed, fmt.Sprintf(format, args...),
		strings.Join(rules, "\n"), strings.Join(s.trace[from:], "\n"))
}

// comparable leaves out what the model does not say.
func (s *scene) comparable(r ginlimit.Result) ginlimit.Result {
	if s.cached && r.Source == ginlimit.FromCache {
		r.Source = s.source
	}
	if s.real {
		if r.ResetAfter = 0; r.RetryAfter != ginlimit.Never {
			r.RetryAfter = 0
		}
	}
	if r.Limit.InFlight > 0 || r.Source == ginlimit.FromOpen {
		r.ResetAfter = 0
	}
	if r.Source == ginlimit.FromOpen {
		r.Name = strings.TrimSuffix(r.Name, "-c")
		r.Limit, r.Remaining, r.Cause = ginlimit.Limit{}, 0, 0
	}
	return r
}

func (s *scene) judge(v foretold, a answer) {
	s.t.Helper()
	if v.failed != a.err || a.err {
		if v.failed != a.err {
			s.fail("failed: want %v, got %v", v.failed, a.err)
		}
		return
	}
	if v.allowed != a.allowed {
		s.fail("allowed: want %v, got %v; want %+v", v.allowed, a.allowed, v.results)
	}
	switch {
	case v.vague:
		if a.took > v.most {
			s.fail("took %s; want at most %s", a.took, v.most)
		}
		return
	case a.took != v.waits && !s.real:
		s.fail("took %s; want %s", a.took, v.waits)
	}
	longest := slices.MaxFunc(append([]ginlimit.Result{{}}, v.results...), func(a, b ginlimit.Result) int {
		return cmp.Compare(uint64(a.RetryAfter), uint64(b.RetryAfter))
	})
	if late := longest.RetryAfter - a.closest.RetryAfter; !v.allowed && late != 0 &&
		(!s.real || late.Abs() > time.Minute) {
		s.fail("retry after %s; want %s, of %+v", a.closest.RetryAfter, longest.RetryAfter, v.results)
	}
	var want, got []ginlimit.Result
	for _, r := range v.results {
		want = append(want, s.comparable(r))
	}
	for _, r := range a.results {
		r = s.comparable(r)
		if got = append(got, r); s.cached && !v.allowed && !slices.Contains(want, r) {
			s.fail("unexpected %+v;\nwant %+v", r, want)
		}
	}
	if (!s.cached || v.allowed) && !slices.Equal(want, got) {
		s.fail("results:\nwant %+v\n got %+v", want, got)
	}
}

// compare reads what is charged.
func (s *scene) compare(step int) {
	s.t.Helper()
	now := time.Now()
	for _, r := range s.rules {
		for _, client := range []string{"a", "b"} {
			if s.without(r, client) && r.mode != ginlimit.FailLocal {
				continue
			}
			var want, got []string
			b := r.bans[client]
			for _, l := range r.limits {
				of := r.counters.Take(client, 0, 1, []ginlimit.Limit{l})
				if b != nil && now.Before(b.ends) {
					of.Remaining, of.ResetAfter = 0, max(of.ResetAfter, b.ends.Sub(now))
				}
				want = append(want, s.row(of))
			}
			if r.slots > 0 {
				want = append(want, fmt.Sprint(r.slots-r.held[client], " free"))
			}
			for _, of := range testkit.Must(r.methods(client).Status(s.t.Context(), r.key(client))) {
				switch {
				case of.Limit.InFlight > 0:
					got = append(got, fmt.Sprint(of.Remaining, " free"))
				default:
					got = append(got, s.row(of))
				}
			}
			if !slices.Equal(want, got) {
				s.fail("step %d: %s of %s: want %v, got %v", step, r.name, client, want, got)
			}
		}
	}
}

// row is what is compared of a limit's status.
func (s *scene) row(r ginlimit.Result) string {
	if s.real {
		return fmt.Sprint(r.Remaining)
	}
	return fmt.Sprint(r.Remaining, " ", r.ResetAfter)
}

// inProcess returns a policy as this process decides on it where Redis may fail: by counters of its own.
func (s *scene) inProcess(r *rule) *rule {
	if s.fill == nil {
		return nil
	}
	local := *r
	local.away, local.bans = true, map[string]*ban{}
	switch counters := r.counters.(type) {
	case *testkit.BucketModel:
		local.counters = testkit.NewBucketModel()
	case *testkit.WindowModel:
		local.counters = testkit.NewWindowModel(counters.Algorithm)
	case twin:
		local.counters = twin{testkit.NewPolicy(s.t, testkit.NewLocal(s.t), r.name, r.limits[0],
			ginlimit.WithShares(func(*gin.Context) (string, int) { return r.client, 1 }))}
	}
	return &local
}

// resultOf returns what a request was told of a policy.
func (a *answer) resultOf(w want) *ginlimit.Result {
	for i, r := range a.results {
		if r.Name == w.name || r.Name == w.name+"-c" {
			return &a.results[i]
		}
	}
	return nil
}

// fates returns the policies of a request to a full Redis: those on which it has not decided as this process has them.
// A full Redis obeys some commands and refuses others, so both are right, but for policies of one script.
func (s *scene) fates(wants []want, a answer) []want {
	wants = slices.Clone(wants)
	away := make([]bool, len(wants))
	var joint []int
	known := map[bool]int{} // fates of the joint script's policies
	for i, w := range wants {
		r := a.resultOf(w)
		switch {
		case w.skip:
		case r != nil:
			away[i] = r.Source == ginlimit.FromOpen || r.Source == ginlimit.FromLocal
		case w.dry: // what it has taken says who has decided
			left := testkit.Must(w.methods(w.client).Status(s.t.Context(), w.key(w.client)))
			away[i] = w.look(w.client, w.n, time.Now()).Allowed &&
				(w.limits == nil || s.row(left[0]) == s.row(w.counters.Take(w.client, 0, 1, w.limits[:1])))
		default: // else it would say that it denies
			away[i] = a.err || !a.allowed && w.n > 0 && !w.look(w.client, w.n, time.Now()).Allowed
		}
		if s.joint && !w.skip && !w.dry && !w.shared && w.ban == 0 && w.n > 0 {
			if joint = append(joint, i); r != nil || away[i] {
				known[away[i]]++
			}
		}
	}
	if known[true] > 0 && known[false] > 0 {
		s.fail("policies of one script differ: %+v", a.results)
	}
	for _, i := range joint {
		away[i] = away[i] || known[true] > 0
	}
	for i := range wants {
		if away[i] {
			wants[i].rule = wants[i].local
		}
		if r := a.resultOf(wants[i]); r != nil && !r.Allowed && r.Cause != ginlimit.CauseBan && wants[i].ban > 0 {
			unbanned := *wants[i].rule // it denies, but bans nobody, as that is written
			unbanned.ban, wants[i].rule = 0, &unbanned
		}
	}
	return wants
}

// severalPlaces are where keys may lie.
var severalPlaces = map[string]struct {
	place
	start func(t *testing.T, b *testkit.Bubble, opts ...ginlimit.LimiterOption) *testkit.Limiter
	opts  []ginlimit.LimiterOption
}{
	"process": {place{source: ginlimit.FromLocal},
		func(t *testing.T, _ *testkit.Bubble, _ ...ginlimit.LimiterOption) *testkit.Limiter {
			return testkit.NewLocal(t)
		}, nil},
	"server": {place{source: ginlimit.FromRedis}, onServer, nil},
	"server, remembering": {place{source: ginlimit.FromRedis, cached: true}, onServer,
		[]ginlimit.LimiterOption{testkit.RemembersDenials()}},
	"wrapped": {place{source: ginlimit.FromRedis}, wrapped, nil},
	"wrapped, remembering": {place{source: ginlimit.FromRedis, cached: true}, wrapped,
		[]ginlimit.LimiterOption{testkit.RemembersDenials()}},
	"outage": {place{source: ginlimit.FromLocal, outage: true},
		func(t *testing.T, _ *testkit.Bubble, _ ...ginlimit.LimiterOption) *testkit.Limiter {
			return testkit.NewLimiter(t, testkit.Unreachable(t))
		}, nil},
}

func onServer(t *testing.T, b *testkit.Bubble, opts ...ginlimit.LimiterOption) *testkit.Limiter {
	return testkit.NewLimiter(t, b.Redis, opts...)
}

func wrapped(t *testing.T, b *testkit.Bubble, opts ...ginlimit.LimiterOption) *testkit.Limiter {
	return testkit.NewLimiter(t, wrap(b.Redis), opts...)
}

const severalSeeds, severalSteps = 40, 60

// TestSeveralPoliciesEqualTheModel, row by row, and in what is charged after each step.
func TestSeveralPoliciesEqualTheModel(t *testing.T) {
	t.Parallel()
	for name, at := range severalPlaces {
		testkit.Run(t, name, func(t *testing.T) {
			seeds := testkit.Seeds(4 * severalSeeds)
			if at.source == ginlimit.FromRedis { // miniredis is slow
				seeds /= 5
			}
			for seed := range uint64(seeds) {
				testkit.RunInBubble(t, fmt.Sprint(seed), func(t *testing.T, b *testkit.Bubble) {
					follow(t, at.place, seed, severalSteps, at.start(t, b, at.opts...))
				})
			}
		})
	}
}

// follow compares random requests of random policies to the model.
func follow(t *testing.T, at place, seed uint64, steps int, l *testkit.Limiter) {
	t.Helper()
	s := &scene{t: t, place: at, rand: rand.New(rand.NewPCG(seed, 58)), seed: seed}
	s.sharing = s.rand.IntN(3) == 0
	for i := range 2 + s.rand.IntN(4) {
		s.rules = append(s.rules, s.newRule(l, i))
	}
	defer func() {
		for _, release := range s.held {
			release()
		}
	}()
	for i := range steps {
		s.step(i)
	}
}

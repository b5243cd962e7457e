package limits_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// scene is a model beside a limiter.
type scene struct {
	place
	t       *testing.T
	rules   []*rule
	trace   []string
	held    []func()
	rand    *rand.Rand
	seed    uint64
	sharing bool
	ahead   time.Duration // of the clock, while the model decides
	full    bool
}

var severalLimits = [][]ginlimit.Limit{
	{ginlimit.PerSecond(2)},
	{ginlimit.PerMinute(7).WithBurst(3)},
	{ginlimit.PerHour(5)},
	{ginlimit.PerSecond(3).WithBurst(1)},
	{ginlimit.PerSecond(5), ginlimit.PerMinute(8)},
	{ginlimit.PerMinute(30).WithBurst(4)},
}

// newRule returns a random policy.
func (s *scene) newRule(l *testkit.Limiter, i int) *rule {
	x := s.rand
	r := &rule{name: fmt.Sprint("p", i), bans: map[string]*ban{}, held: map[string]int{}}
	fixed, sliding := ginlimit.FixedWindow, ginlimit.SlidingWindow
	switch kind := x.IntN(10); {
	case kind < 4:
		r.limits, r.counters = slices.Clone(severalLimits[x.IntN(len(severalLimits))]), testkit.NewBucketModel()
		r.shared = len(r.limits) == 1 && s.sharing && x.IntN(2) == 0
	case kind < 6:
		l := ginlimit.Per(2+x.IntN(3), time.Duration(1+x.IntN(40))*time.Second)
		r.limits, r.counters = []ginlimit.Limit{l.WithAlgorithm(fixed)}, testkit.NewWindowModel(fixed)
	case kind < 8:
		l := ginlimit.Per(2+x.IntN(3), time.Duration(1+x.IntN(40))*time.Second)
		r.limits, r.counters = []ginlimit.Limit{l.WithAlgorithm(sliding)}, testkit.NewWindowModel(sliding)
	case kind < 9 && !s.real:
		r.limits, r.counters = []ginlimit.Limit{ginlimit.PerCalendar(6, ginlimit.CalendarDay(time.UTC))},
			&quotas{func() time.Time { return time.Now().Add(s.ahead) }, map[string]*testkit.ModelQuota{}}
	}
	for j := range r.limits {
		if r.limits[j].Period *= 3600; !s.real {
			r.limits[j].Period /= 3600
		}
	}
	if r.limits == nil || !r.shared && x.IntN(5) == 0 && !s.cached { // a remembered denial says nothing of slots
		r.slots = 1 + x.IntN(2)
	}
	if r.dry = i > 0 && x.IntN(5) == 0; !r.dry {
		if r.limits != nil && !r.shared && len(r.limits) == 1 && x.IntN(4) == 0 && !s.cached {
			if r.ban = time.Duration(1+x.IntN(90)) * time.Second; s.real {
				r.ban *= 3600
			}
		}
		if x.IntN(4) == 0 && !s.sharing && !s.real { // a twin goes by the test's clock
			r.queue = []time.Duration{time.Millisecond, time.Second, 20 * time.Second}[x.IntN(3)]
		}
	}
	if s.mayFail() && x.IntN(3) == 0 {
		r.mode = []ginlimit.FailureMode{ginlimit.FailOpen, ginlimit.FailClosed}[x.IntN(2)]
	}
	opts := []ginlimit.PolicyOption{
		ginlimit.WithKey(func(*gin.Context) (string, error) { return r.key(r.client), nil }),
		ginlimit.WithCost(func(*gin.Context) int { return r.n }),
		ginlimit.WithSkip(func(*gin.Context) bool { return r.skip }),
	}
	if s.mayFail() {
		opts = append(opts, ginlimit.WithFailureMode(r.mode))
	}
	for _, limit := range r.limits {
		opts = append(opts, limit)
	}
	if r.slots > 0 {
		opts = append(opts, ginlimit.InFlight(r.slots))
	}
	if r.ban > 0 {
		opts = append(opts, ginlimit.WithBan(r.ban, 4*r.ban))
	}
	if r.queue > 0 {
		opts = append(opts, ginlimit.WithQueue(2, r.queue))
	}
	if r.dry {
		opts = append(opts, ginlimit.WithDryRun())
	}
	if r.shared {
		shares := ginlimit.WithShares(func(*gin.Context) (string, int) { return r.client, 1 })
		opts, r.counters = append(opts, shares), twin{testkit.NewPolicy(s.t, testkit.NewLocal(s.t), r.name, r.limits[0],
			shares)}
	}
	r.policy = testkit.NewPolicy(s.t, l, r.name, opts...)
	r.local = s.inProcess(r)
	return r
}

// mayFail reports whether Redis may not decide.
func (s *scene) mayFail() bool { return s.outage || s.lost != nil || s.fill != nil }

// methods returns the policy whose methods have the buckets.
func (r *rule) methods(client string) *ginlimit.Policy {
	if r.shared {
		return r.policy.Share(client, 1)
	}
	return r.policy
}

// key returns the key of a client: all tenants have one.
func (r *rule) key(client string) string {
	if r.shared {
		return "k"
	}
	return client
}

// wants returns a random request, by a handler or by ReserveAll.
func (s *scene) wants(handler bool) (all []want) {
	inForce := false
	for _, i := range s.rand.Perm(len(s.rules))[:1+s.rand.IntN(len(s.rules))] {
		w := want{rule: s.rules[i], client: "ab"[s.rand.IntN(2):][:1], n: 1}
		switch k := s.rand.IntN(20); {
		case k < 3 && handler:
			w.n = 0
		case k < 7:
			w.n = 2
		case k == 7:
			w.n = 4
		case k == 8 && handler:
			w.skip = true
		}
		if w.shared {
			w.n = min(w.n, 1)
		}
		inForce = inForce || !w.dry
		all = append(all, w)
	}
	if !inForce {
		all = append(all, want{rule: s.rules[0], client: "a", n: 1})
	}
	return all
}

func describe(wants []want, handler bool) string {
	text := "reserve"
	if handler {
		text = "request"
	}
	for _, w := range wants {
		text += fmt.Sprintf(" %s(%s %d", w.name, w.client, w.n)
		if w.skip {
			text += " skipped"
		}
		text += ")"
	}
	return text
}

// answer is what the library says of a request.
type answer struct {
	err      bool
	allowed  bool
	results  []ginlimit.Result
	closest  ginlimit.Result
	took     time.Duration
	response int
}

func (s *scene) reserve(wants []want) (a answer) {
	var charges []ginlimit.Charge
	for _, w := range wants {
		charges = append(charges, ginlimit.Charge{Policy: w.methods(w.client), Client: w.key(w.client), N: w.n})
	}
	start := time.Now()
	r, err := ginlimit.ReserveAll(s.t.Context(), charges...)
	if a.took, a.err = time.Since(start), err != nil; a.err {
		return a
	}
	a.closest, a.results = r.Result(), r.Results()
	a.allowed = a.closest.Allowed
	if s.rand.IntN(3) > 0 || !a.allowed {
		r.Release()
		if a.allowed {
			s.held = append(s.held, nil)
		}
	} else {
		s.held = append(s.held, r.Release)
	}
	return a
}

func (s *scene) request(wants []want) (a answer) {
	var policies []*ginlimit.Policy
	for _, w := range wants {
		w.rule.n, w.rule.skip, w.rule.client = w.n, w.skip, w.client
		policies = append(policies, w.policy)
	}
	start := time.Now()
	look := func(c *gin.Context) {
		c.Next()
		a.closest, _ = ginlimit.FromContext(c)
		a.results = ginlimit.Results(c)
	}
	rec := testkit.Get(testkit.Serve(look, ginlimit.AllOf(policies...)), "/")
	a.took, a.err, a.allowed, a.response = time.Since(start), rec.Code == 503, rec.Code == 200, rec.Code
	return a
}

// step makes a random step and compares.
func (s *scene) step(i int) {
	x := s.rand
	var wait time.Duration
	switch x.IntN(8) {
	case 0, 1:
		wait = 500 * time.Millisecond
	case 2:
		wait = time.Duration(x.IntN(4000)) * time.Millisecond
	case 3:
		wait = time.Duration(x.IntN(100)) * time.Second
	}
	if wait > 0 && !s.real {
		time.Sleep(wait)
		s.advance(wait)
	}
	if len(s.held) > 0 && x.IntN(3) == 0 {
		for _, release := range s.held {
			release()
		}
		s.held = nil
		s.trace = append(s.trace, fmt.Sprintf("%d: after %s: release", i, wait))
		s.compare(i)
		return
	}
	if s.fill != nil && x.IntN(4) == 0 {
		s.full = !s.full
		s.fill(s.full)
		s.trace = append(s.trace, fmt.Sprintf("%d: full: %v", i, s.full))
	}
	if r := s.rules[x.IntN(len(s.rules))]; x.IntN(15) == 0 && !s.full && r.limits != nil &&
		(!s.real || len(r.limits) == 1) && !r.shared && r.limits[0].Calendar == (ginlimit.Calendar{}) {
		d, client := time.Duration(1+x.IntN(9000))*time.Millisecond, "ab"[x.IntN(2):][:1]
		if s.real {
			d *= 3600
		}
		testkit.RequireMade(s.t, r.policy.Block(s.t.Context(), client, d))
		r.counters.Block(client, d, r.limits)
		if r.local != nil {
			r.local.counters.Block(client, d, r.limits)
		}
		s.trace = append(s.trace, fmt.Sprintf("%d: after %s: block %s of %s for %s", i, wait, client, r.name, d))
		s.compare(i)
		return
	}
	handler := x.IntN(2) == 0
	wants := s.wants(handler)
	s.trace = append(s.trace, fmt.Sprintf("%d: after %s: %s", i, wait, describe(wants, handler)))
	now := time.Now()
	before := map[string]int{}
	for _, w := range wants {
		before[w.name+w.client] = w.held[w.client]
	}
	ask := s.reserve
	if handler {
		ask = s.request
	}
	var v foretold
	var a answer
	if s.full {
		a = ask(wants)
		wants = s.fates(wants, a)
		v = s.decide(wants, now, s.wait)
	} else {
		v = s.decide(wants, now, s.wait)
		a = ask(wants)
	}
	release := func() {
		for _, w := range wants {
			w.held[w.client] = before[w.name+w.client]
		}
	}
	switch n := len(s.held); {
	case handler || !a.allowed:
		release()
	case n > 0 && s.held[n-1] == nil:
		s.held = s.held[:n-1]
		release()
	default:
		free, slots := s.held[n-1], slices.Clone(wants)
		s.held[n-1] = func() {
			free()
			for _, w := range slots {
				if w.slots > 0 && v.took(w) {
					w.held[w.client]--
				}
			}
		}
	}
	if a.took > v.waits && !s.real {
		s.advance(a.took - v.waits)
	}
	s.trace = append(s.trace, fmt.Sprintf("   in %s: %v %+v", a.took, a.allowed, a.results))
	s.judge(v, a)
	s.compare(i)
}

package limits_test

import (
	"cmp"
	"context"
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

// A model of several policies in one decision: each has counters that are exact, and a decision charges all of them or
// none. What the library decides, and what is left afterwards, has to equal it, wherever the keys lie.

// counters are those of an algorithm.
type counters interface {
	testkit.Steppable
}

// quotas are calendar quotas of a day in UTC.
type quotas struct {
	clock func() time.Time
	of    map[string]*testkit.ModelQuota
}

func (q *quotas) Take(key string, n, least int64, limits []ginlimit.Limit) ginlimit.Result {
	now := q.clock()
	end := now.Truncate(24 * time.Hour).Add(24 * time.Hour)
	id := fmt.Sprint(key, " ", end.Unix())
	if q.of[id] == nil {
		q.of[id] = &testkit.ModelQuota{}
	}
	r, retry, reset := q.of[id].Take(now.UnixMilli(), n, least, limits[0])
	left := end.Sub(now)
	if retry {
		r.RetryAfter = max(r.RetryAfter, left)
	}
	if reset {
		r.ResetAfter = max(r.ResetAfter, left)
	}
	return testkit.Closest([]ginlimit.Result{r})
}

func (q *quotas) Block(key string, d time.Duration, limits []ginlimit.Limit) {
	q.Take(key, 0, 1, limits)
	now := q.clock()
	q.of[fmt.Sprint(key, " ", now.Truncate(24*time.Hour).Add(24*time.Hour).Unix())].Block(now.UnixMilli(), d.Milliseconds())
}

func (*quotas) Advance(time.Duration)                  {}
func (*quotas) Refund(string, int64, []ginlimit.Limit) {}
func (*quotas) Reset(string, []ginlimit.Limit)         {}

// twin is a shared limit in the process, on which one policy alone decides: its clients are tenants.
type twin struct{ policy *ginlimit.Policy }

func (w twin) Take(key string, n, _ int64, _ []ginlimit.Limit) ginlimit.Result {
	p := w.policy.Share(key, 1)
	if n == 0 {
		return testkit.Must(p.Peek(context.Background(), "k"))
	}
	return testkit.Must(p.AllowN(context.Background(), "k", int(n)))
}

func (twin) Advance(time.Duration)                         {}
func (twin) Refund(string, int64, []ginlimit.Limit)        {}
func (twin) Block(string, time.Duration, []ginlimit.Limit) {}
func (twin) Reset(string, []ginlimit.Limit)                {}

// rule is a policy of the model.
type rule struct {
	name     string
	limits   []ginlimit.Limit
	slots    int
	ban      time.Duration // the first; the longest is four times as long
	queue    time.Duration
	mode     ginlimit.FailureMode
	dry      bool
	shared   bool
	counters counters
	bans     map[string]*ban
	held     map[string]int
	policy   *ginlimit.Policy
	local    *rule // the policy in this process, where Redis may fail: see inProcess
	away     bool  // it is that
	n        int   // of the request that is being sent
	skip     bool  // it
	client   string
}

type ban struct {
	count           int
	ends, probation time.Time
}

// String says what the policy is.
func (r *rule) String() string {
	text := fmt.Sprint(r.name, " ", r.limits)
	for name, value := range map[string]any{"slots": r.slots, "ban": r.ban, "queue": r.queue, "mode": r.mode, "dry": r.dry, "shared": r.shared} {
		if v := fmt.Sprint(value); v != "0" && v != "0s" && v != "false" && v != "local" {
			text += " " + name + "=" + v
		}
	}
	return text
}

// burst is the most tokens that one request may want.
func (r *rule) burst() int {
	most := 1 << 30
	for _, l := range r.limits {
		most = min(most, int(testkit.Burst(l)))
	}
	return most
}

// look returns what a request for n tokens meets, 0 tokens as 1.
func (r *rule) look(client string, n int, now time.Time) ginlimit.Result {
	var all []ginlimit.Result
	if r.limits != nil {
		of := r.counters.Take(client, 0, int64(max(1, n)), r.limits)
		of.Name, of.Source = r.name, 0
		all = append(all, of)
	}
	if r.slots > 0 {
		free := r.slots - r.held[client]
		if of := (ginlimit.Result{Allowed: free > 0, Limit: ginlimit.InFlight(r.slots), Name: r.name + "-c", Remaining: max(0, free)}); free <= 0 {
			of.RetryAfter, of.Cause = time.Second, ginlimit.CauseInFlight
			all = append(all, of)
		} else if all == nil {
			all = append(all, of)
		}
	}
	best := all[0]
	for _, other := range all[1:] {
		if best.Allowed || best.RetryAfter >= 0 && (other.RetryAfter > best.RetryAfter ||
			other.RetryAfter == best.RetryAfter && (other.Remaining < best.Remaining)) {
			best = other
		}
	}
	if b := r.bans[client]; b != nil && now.Before(b.ends) {
		if r.limits != nil {
			best = all[0]
		}
		best.Allowed, best.Remaining = false, 0
		if best.RetryAfter >= 0 {
			best.RetryAfter, best.Cause = max(best.RetryAfter, b.ends.Sub(now)), ginlimit.CauseBan
		}
		best.ResetAfter = max(best.ResetAfter, b.ends.Sub(now))
	}
	return best
}

// lacksTokens reports whether a request is denied for another reason than the want of a slot, and for how long.
func (r *rule) lacksTokens(client string, n int) (bool, time.Duration) {
	if r.limits == nil {
		return false, 0
	}
	of := r.counters.Take(client, 0, int64(max(1, n)), r.limits)
	return !of.Allowed, of.RetryAfter
}

// banned bans a client.
func (r *rule) banned(client string, now time.Time) {
	b := r.bans[client]
	if b == nil || !now.Before(b.probation) {
		b = &ban{}
		r.bans[client] = b
	}
	b.count++
	length := min(r.ban<<(b.count-1), 4*r.ban)
	b.ends, b.probation = now.Add(length), now.Add(2*length)
}

// charge takes n tokens and a slot.
func (r *rule) charge(client string, n int) ginlimit.Result {
	var of ginlimit.Result
	if r.limits != nil {
		of = r.counters.Take(client, int64(n), int64(n), r.limits)
		of.Name = r.name
	}
	if r.slots > 0 {
		r.held[client]++
		if r.limits == nil {
			of = ginlimit.Result{Allowed: true, Granted: n, Limit: ginlimit.InFlight(r.slots), Name: r.name + "-c", Remaining: r.slots - r.held[client]}
		}
	}
	return of
}

// want is a policy of a request.
type want struct {
	*rule
	client string
	n      int
	skip   bool
}

// foretold is what the model says of a request.
type foretold struct {
	failed  bool
	passes  bool // without a decision: it costs nothing
	allowed bool
	results []ginlimit.Result // in the order of the wants; of a denial, of those that deny
	vague   bool              // it has waited for a slot in vain: what is left to wait is not compared
	waits   time.Duration     // for tokens, before it is allowed
	most    time.Duration     // that it may take
}

// place is where the keys lie, as the model has to know it.
type place struct {
	source ginlimit.Source
	outage bool
	cached bool                           // denials are remembered
	lost   func(name, client string) bool // of some keys alone; may be nil
	real   bool                           // the clock goes on by itself, so limits are slow, and times not compared
	fill   func(full bool)                // Redis is full for some of the steps; may be nil
	joint  bool                           // one script decides on all policies that it can decide on
}

// without reports whether Redis does not decide on a policy's client.
func (p place) without(r *rule, client string) bool {
	name := r.name
	if r.dry {
		name += "|dry run"
	}
	return p.outage || r.away || p.lost != nil && p.lost(name, r.key(client))
}

// sourceOf returns who decides on a policy's client.
func (p place) sourceOf(w want) ginlimit.Source {
	if !p.outage && p.without(w.rule, w.client) {
		return ginlimit.FromLocal
	}
	return p.source
}

// decide is the contract.
func (p place) decide(wants []want, now time.Time, advance func(time.Duration)) (v foretold) {
	var live []want
	for _, w := range wants {
		if !w.skip && !w.dry {
			live = append(live, w)
		}
	}
	open := func(w want) bool {
		return p.without(w.rule, w.client) && (w.mode == ginlimit.FailOpen || w.mode == ginlimit.FailClosed && w.n == 0 && len(live) > 1)
	}
	never := false
	for _, w := range live {
		never = never || w.n > w.burst()
		v.failed = v.failed || p.without(w.rule, w.client) && w.mode == ginlimit.FailClosed && !open(w) && w.n > 0
		if w.n > 0 && w.queue > 0 {
			v.most = max(v.most, w.queue)
		}
	}
	if never {
		v.most = 0
	}
	v.passes = len(live) == 1 && p.without(live[0].rule, live[0].client) && live[0].mode == ginlimit.FailClosed && live[0].n == 0
	dry := p.tryDry(wants)
	if v.failed {
		return v
	}
	denials := func() (all []want, waits bool, longest time.Duration) {
		waits = v.most > 0
		for _, w := range live {
			if w.n == 0 || open(w) && w.n <= w.burst() {
				continue
			}
			if r := w.look(w.client, w.n, now); !r.Allowed {
				all = append(all, w)
				waits = waits && w.queue > 0 && r.RetryAfter >= 0 && r.Cause != ginlimit.CauseBan
				longest = max(longest, r.RetryAfter)
			}
		}
		return all, waits, longest
	}
	all, waits, longest := denials()
	late, slots := false, false
	for _, w := range all {
		lacks, after := w.lacksTokens(w.client, w.n)
		late = late || lacks && after > w.queue
		slots = slots || w.slots > 0 && w.held[w.client] >= w.slots
	}
	if waits && !late && slots {
		v.vague = true // it waits for a slot that nobody frees
		return v
	}
	if waits && !late && len(all) > 0 {
		v.waits = longest
		advance(longest)
		defer advance(0)
		now = now.Add(longest)
		all = nil
	}
	if v.allowed = len(all) == 0; !v.allowed && !never {
		for _, w := range all {
			lacks, after := w.lacksTokens(w.client, w.n)
			b := w.bans[w.client]
			switch {
			case w.ban == 0 || b != nil && now.Before(b.ends):
			case w.queue > 0 && w.slots > 0 && w.held[w.client] >= w.slots: // with a queue, none is banned for want of a slot
			case w.queue == 0, lacks && after > w.queue, lacks && v.most == 0:
				w.banned(w.client, now)
			}
		}
	}
	v.fill(wants, dry, func(w want) (r ginlimit.Result, shown bool) {
		switch {
		case v.allowed && open(w):
			r = ginlimit.Result{Allowed: true, Granted: w.n, Source: ginlimit.FromOpen, Name: w.name}
			if w.slots > 0 && w.n > 0 {
				w.held[w.client]++
			}
		case v.allowed && w.n > 0:
			r = w.charge(w.client, w.n)
			r.Source = p.sourceOf(w)
		default:
			if r = w.look(w.client, w.n, now); w.n == 0 {
				r.Allowed, r.RetryAfter, r.Cause = true, 0, 0
			}
			if r.Source = p.sourceOf(w); open(w) {
				r.Source, r.Allowed = ginlimit.FromOpen, w.n <= w.burst()
			}
		}
		return r, v.allowed || !r.Allowed
	})
	return v
}

// tryDry returns what dry runs decide, each by itself, when the request comes.
func (p place) tryDry(wants []want) map[string]ginlimit.Result {
	found := map[string]ginlimit.Result{}
	for _, w := range wants {
		if w.skip || !w.dry || p.without(w.rule, w.client) && w.mode == ginlimit.FailClosed {
			continue
		}
		r := w.look(w.client, w.n, time.Time{})
		switch open := p.without(w.rule, w.client) && w.mode == ginlimit.FailOpen; {
		case open:
			r = ginlimit.Result{Allowed: w.n <= w.burst(), Source: ginlimit.FromOpen, Name: w.name}
			if r.Granted = w.n; !r.Allowed {
				r.Granted, r.RetryAfter = 0, -1
			} else if w.slots > 0 && w.n > 0 {
				w.held[w.client]++
			}
		case w.n == 0:
			r.Allowed, r.RetryAfter, r.Cause = true, 0, 0
		case r.Allowed:
			r = w.charge(w.client, w.n)
		}
		if r.Source != ginlimit.FromOpen {
			r.Source = p.sourceOf(w)
		}
		found[w.name+w.client] = r
	}
	return found
}

// fill fills in the results, in order, of policies in force and of dry runs.
func (v *foretold) fill(wants []want, dry map[string]ginlimit.Result, live func(w want) (ginlimit.Result, bool)) {
	for _, w := range wants {
		r, shown := dry[w.name+w.client]
		if shown = shown && v.allowed && !v.passes; !w.dry && !w.skip && !v.passes {
			r, shown = live(w)
		}
		if shown {
			v.results = append(v.results, r)
		}
	}
}

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
		r.limits, r.counters = []ginlimit.Limit{ginlimit.Per(2+x.IntN(3), time.Duration(1+x.IntN(40))*time.Second).WithAlgorithm(fixed)},
			testkit.NewWindowModel(fixed)
	case kind < 8:
		r.limits, r.counters = []ginlimit.Limit{ginlimit.Per(2+x.IntN(3), time.Duration(1+x.IntN(40))*time.Second).WithAlgorithm(sliding)},
			testkit.NewWindowModel(sliding)
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
		if x.IntN(4) == 0 && !s.sharing && !s.real { // a twin's clock is that of the test
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
		opts, r.counters = append(opts, shares), twin{testkit.NewPolicy(s.t, testkit.NewLocal(s.t), r.name, r.limits[0], shares)}
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
	if r := s.rules[x.IntN(len(s.rules))]; x.IntN(15) == 0 && !s.full && r.limits != nil && (!s.real || len(r.limits) == 1) && !r.shared && r.limits[0].Calendar == (ginlimit.Calendar{}) {
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
		r.ResetAfter, r.RetryAfter = 0, min(r.RetryAfter, 0)
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
	if late := longest.RetryAfter - a.closest.RetryAfter; !v.allowed && late != 0 && (!s.real || late.Abs() > time.Minute) {
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

// fates returns the policies of a request to a full Redis: those on which it has not decided as this process has them. A
// full Redis obeys some commands and refuses others, so both are right, but for policies of one script.
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
	"process": {place{source: ginlimit.FromLocal}, func(t *testing.T, _ *testkit.Bubble, _ ...ginlimit.LimiterOption) *testkit.Limiter {
		return testkit.NewLocal(t)
	}, nil},
	"server":              {place{source: ginlimit.FromRedis}, onServer, nil},
	"server, remembering": {place{source: ginlimit.FromRedis, cached: true}, onServer, []ginlimit.LimiterOption{testkit.RemembersDenials()}},
	"wrapped":             {place{source: ginlimit.FromRedis}, wrapped, nil},
	"wrapped, remembering": {place{source: ginlimit.FromRedis, cached: true}, wrapped,
		[]ginlimit.LimiterOption{testkit.RemembersDenials()}},
	"outage": {place{source: ginlimit.FromLocal, outage: true}, func(t *testing.T, _ *testkit.Bubble, _ ...ginlimit.LimiterOption) *testkit.Limiter {
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seeds := testkit.Steps(4 * severalSeeds)
			if at.source == ginlimit.FromRedis { // miniredis is slow
				seeds /= 5
			}
			for seed := range uint64(seeds) {
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
						follow(t, at.place, seed, severalSteps, at.start(t, b, at.opts...))
					})
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

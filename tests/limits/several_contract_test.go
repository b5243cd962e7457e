package limits_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// A model of several policies in one decision: each has counters that are exact, and a decision charges all of them or
// none. What the library decides, and what is left afterwards, has to equal it, wherever the keys lie.

// counters count by an algorithm.
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
	q.of[fmt.Sprint(key, " ", now.Truncate(24*time.Hour).Add(24*time.Hour).Unix())].Block(now.UnixMilli(),
		d.Milliseconds())
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
	for name, value := range map[string]any{"slots": r.slots, "ban": r.ban, "queue": r.queue, "mode": r.mode,
		"dry": r.dry, "shared": r.shared} {
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
		if of := (ginlimit.Result{Allowed: free > 0, Limit: ginlimit.InFlight(r.slots), Name: r.name + "-c",
			Remaining: max(0, free)}); free <= 0 {
			of.RetryAfter, of.Cause = time.Second, ginlimit.CauseInFlight
			all = append(all, of)
		} else if all == nil {
			all = append(all, of)
		}
	}
	best := all[0]
	for _, other := range all[1:] {
		if best.Allowed || (other.RetryAfter > best.RetryAfter ||
			other.RetryAfter == best.RetryAfter && (other.Remaining < best.Remaining)) {
			best = other
		}
	}
	if b := r.bans[client]; b != nil && now.Before(b.ends) {
		if r.limits != nil {
			best = all[0]
		}
		best.Allowed, best.Remaining = false, 0
		if best.RetryAfter != ginlimit.Never {
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
			of = ginlimit.Result{Allowed: true, Granted: n, Limit: ginlimit.InFlight(r.slots), Name: r.name + "-c",
				Remaining: r.slots - r.held[client]}
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
		return p.without(w.rule, w.client) && (w.mode == ginlimit.FailOpen || w.mode == ginlimit.FailClosed && w.n == 0 &&
			len(live) > 1)
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
	v.passes = len(live) == 1 && p.without(live[0].rule, live[0].client) && live[0].mode == ginlimit.FailClosed &&
		live[0].n == 0
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
				waits = waits && w.queue > 0 && r.RetryAfter != ginlimit.Never && r.Cause != ginlimit.CauseBan
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
				r.Granted, r.RetryAfter = 0, ginlimit.Never
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

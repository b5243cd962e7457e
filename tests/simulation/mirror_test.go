package simulation_test

import (
	"fmt"
	"math/big"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// mirrorLocked has the reference do what the script has done to a key.
func (v *simServer) mirrorLocked(process int, c simScriptCall, k simScriptKey, marks []int64) *simExecution {
	e := &simExecution{
		at: time.Now(), now: v.now(), process: process, key: k.key, version: k.version, limits: k.limits,
		verb: c.verb, n: c.n, charges: k.charges,
	}
	all := v.countedOf(k.key, k.version)
	switch c.verb {
	case "give":
		for _, one := range all {
			v.reference.refund(one, c.n)
		}
	case "return":
		v.mirrorReturn(c, k, marks)
	case "block":
		for _, one := range all {
			v.reference.block(one, testkit.Millis(c.n))
		}
	case "reset":
		for _, one := range all {
			v.reference.reset(one)
		}
	default:
		if k.charges == 0 {
			e.single = [][]ginlimit.Result{v.reference.take(all, 0, c.n)}
		} else if c.n == 1 {
			e.together = v.reference.clone().take(all, k.charges, 1)
		}
		for range k.charges {
			r := v.reference.take(all, c.n, c.n)
			e.single, e.granted = append(e.single, r), e.granted+int64(r[0].Granted)
		}
		e.verb, e.used = "take", make([]bool, len(e.single))
		if last := e.single[len(e.single)-1]; !last[0].Allowed {
			denied := v.reference.only(all...)
			e.denied = &denied
		}
	}
	return e
}

// mirrorReturn has the reference give back as much as Redis has, which is at most what is asked
// for: what is left of a call depends on what others have given back.
func (v *simServer) mirrorReturn(c simScriptCall, k simScriptKey, marks []int64) {
	now := v.usedIn(k)
	for i, one := range v.countedOf(k.key, k.version) {
		name := v.name(k.buckets()[i])
		switch back := c.used[i] - now[i]; {
		case v.foreign[name]:
		case v.plan.algorithm == ginlimit.SlidingWindow:
			if v.stored(name, one) != v.reference.stored(one) { // else it was not clear whether a reset came before
				v.reference.windows.GiveBack(one.client, marks[i], c.n, one.limit)
			}
		case v.plan.algorithm == ginlimit.FixedWindow:
			if back < 0 || back > c.n || back > 0 && c.marks[i] < 0 {
				v.violated("a return of %d tokens gives %d of %s back", c.n, back, name)
			}
			if back > 0 {
				v.reference.refund(one, back)
			}
		default:
			before := v.reference.clone()
			before.refund(one, c.n)
			least, most := before.tokens.Bucket(one.client, one.limit).Missing,
				v.reference.tokens.Bucket(one.client, one.limit).Missing
			v.reference.adopt(one.client, one.limit, v.bucketIn(name, one.limit))
			if is := v.reference.tokens.Bucket(one.client, one.limit).Missing; is.Cmp(least) < 0 || is.Cmp(most) > 0 {
				v.violated("a return of %d tokens leaves %s missing of %s", c.n, is, name)
			}
		}
	}
}

// usedIn returns the tokens taken of each fixed window; of others, 0.
func (v *simServer) usedIn(k simScriptKey) (used []int64) {
	for _, b := range k.buckets() {
		name, n := v.name(b), int64(0)
		if text, err := v.homeLocked(name).mini.Get(name); err == nil && v.plan.algorithm == ginlimit.FixedWindow {
			if numbers := fields(text); len(numbers) > 0 {
				n = numbers[0]
			}
		}
		used = append(used, n)
	}
	return used
}

// mirrorPartLocked has the reference do what is left of a Refund for which miniredis had no memory:
// deleting the keys of full buckets needs none, so it may give back to some buckets and not to
// others. Redis refuses no write of a script that has made one.
func (v *simServer) mirrorPartLocked(process int, c simScriptCall, k simScriptKey) {
	for _, b := range k.buckets() {
		one := v.countedAs(b, k.version)
		if name := v.name(b); !v.foreign[name] && v.stored(name, one) != v.reference.stored(one) {
			v.reference.refund(one, c.n)
			v.executions = append(v.executions, &simExecution{
				at: time.Now(), process: process, key: k.key, version: k.version, limits: []int{b.limit}, verb: "part", n: c.n,
			})
		}
	}
}

// simScriptCall is the call of a script, as script.lua and decide.lua document it.
type simScriptCall struct {
	verb  string
	n     int64
	keys  []simScriptKey
	marks []int64 // of return
	used  []int64 // of each fixed window, before a return
}

type simScriptKey struct {
	key, version int
	limits       []int // of the version
	charges      int64
}

// buckets returns the buckets of a key in a call, in their order.
func (k simScriptKey) buckets() (all []simBucketName) {
	for _, limit := range k.limits {
		all = append(all, simBucketName{k.key, limit})
	}
	return all
}

// declared returns the keys that a call declares.
func declared(args []string) []string {
	count, _ := strconv.Atoi(args[1])
	return args[2 : 2+count]
}

// parse reads a call.
func (v *simServer) parse(args []string) (c simScriptCall, err error) {
	number := func(text string) (n int64) {
		n, e := strconv.ParseInt(text, 10, 64)
		if e != nil {
			err = e
		}
		return n
	}
	count := int(number(args[1]))
	keys, argv := args[2:2+count], args[2+count:]
	c.verb, c.n = argv[0], number(argv[1])
	if c.verb == "each" && count == 1 { // of several slots: the others come last
		if count = len(argv) - 5; argv[2] == "0" {
			count /= 2
		}
		keys = slices.Concat(keys, argv[len(argv)-count+1:])
	}
	buckets := func(names []string, triples []string) simScriptKey {
		k, ok := v.bucketsOf(names, triples)
		if !ok {
			err = fmt.Errorf("%s is called with keys %q and buckets %v", c.verb, names, triples)
		}
		return k
	}
	if c.verb != "each" {
		records := slices.Contains([]string{"give", "return", "reset"}, c.verb) && argv[2] != "0"
		if records {
			count /= 2
			for i, name := range keys[count:] {
				if name != keys[i]+":back" {
					err = fmt.Errorf("%s is called with the record %q of %q", c.verb, name, keys[i])
				}
			}
			keys = keys[:count]
		}
		k := buckets(keys, argv[3:3+3*count])
		if !records {
			k.charges = number(argv[2])
		}
		c.keys = []simScriptKey{k}
		if c.verb == "return" {
			for _, mark := range argv[3+3*count : 3+4*count] {
				c.marks = append(c.marks, number(mark))
			}
		}
		return c, err
	}
	for i, name := range keys {
		k := buckets([]string{name}, argv[3:6])
		if k.charges = 1; argv[2] != "1" {
			k.charges = number(argv[6+i])
		}
		c.keys = append(c.keys, k)
	}
	return c, err
}

// bucketsOf finds what buckets a call is about: all of a client. It is not ok if there are none such.
func (v *simServer) bucketsOf(names, triples []string) (k simScriptKey, ok bool) {
	for _, name := range names {
		b, known := v.names[name]
		if !known || slices.Contains(k.limits, b.limit) || len(k.limits) > 0 && b.key != k.key {
			return k, false
		}
		k.key, k.limits = b.key, append(k.limits, b.limit)
	}
	versions := v.plan.keys[k.key].versions
	if len(k.limits) != len(versions[0]) || !slices.IsSorted(k.limits) {
		return k, false
	}
	for version := range versions {
		var want []string
		for _, limit := range k.limits {
			for _, n := range scriptArguments(v.plan.algorithm, versions[version][limit]) {
				want = append(want, strconv.FormatInt(n, 10))
			}
			switch v.plan.algorithm {
			case ginlimit.FixedWindow:
				want[len(want)-2] = "fixed"
			case ginlimit.SlidingWindow:
				want[len(want)-2] = "sliding"
			}
		}
		if slices.Equal(want, triples) && (!ok || version == v.counted[k.key][k.limits[0]]) { // one limit may be in both
			k.version, ok = version, true
		}
	}
	return k, ok
}

// marked returns when the tokens with these marks were taken from sliding windows, by the
// reference: a mark is the time of a log, which began at some time.
func (v *simServer) marked(k simScriptKey, marks []int64) (at []int64) {
	for i, mark := range marks {
		name := v.name(k.buckets()[i])
		mini := v.homeLocked(name).mini
		if list, _ := mini.List(name); v.plan.algorithm == ginlimit.SlidingWindow && len(list) > 0 && !v.foreign[name] {
			mark += v.now().UnixMilli() - (fields(list[0])[2] - mini.TTL(name).Milliseconds())
		}
		at = append(at, mark)
	}
	return at
}

// scriptArguments is how a script is told of a limit.
func scriptArguments(a ginlimit.Algorithm, l ginlimit.Limit) [3]int64 {
	if a != ginlimit.TokenBucket {
		return [3]int64{l.Period.Milliseconds(), 1, int64(l.Rate)}
	}
	p := l.Period.Milliseconds()
	g := new(big.Int).GCD(nil, nil, big.NewInt(int64(l.Rate)), big.NewInt(p)).Int64()
	return [3]int64{int64(l.Rate) / g, p / g, testkit.Burst(l) * p / g}
}

// integers reads a reply of integers.
func integers(reply string) (all []int64) {
	for line := range strings.SplitSeq(reply, "\r\n") {
		if text, ok := strings.CutPrefix(line, ":"); ok {
			n, _ := strconv.ParseInt(text, 10, 64)
			all = append(all, n)
		}
	}
	return all
}

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

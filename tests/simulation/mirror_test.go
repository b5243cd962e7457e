package simulation_test

import (
	"fmt"
	"math/big"
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
		at: time.Now(), now: v.now(), process: process, key: k.key, version: k.version,
		limits: k.limits, periods: k.periods, later: k.later,
		verb: c.verb, n: c.n, charges: k.charges,
	}
	all := v.countedOf(c, k)
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
			e.single = [][]simTold{v.reference.take(all, 0, c.n)}
		} else if c.n == 1 {
			e.together = v.reference.clone().take(all, k.charges, 1)
		}
		ahead, held := int64(0), int64(0)
		if c.ahead != nil {
			ahead, held = v.boundAhead(c, k, all)
		}
		rest := max(0, k.charges+ahead-2*maxSingle)
		for i := range k.charges + ahead - rest {
			if i == maxSingle {
				e.granted += v.reference.takeRest(all, rest, c.n)
			}
			r := v.reference.take(all, c.n, c.n)
			e.single, e.granted = append(e.single, r), e.granted+int64(r[0].Granted)
			if i >= k.charges {
				e.ahead += int64(r[0].Granted)
			}
		}
		if c.ahead != nil {
			e.leases, e.held = true, held
			v.mirrorAhead(k, e.ahead+held)
		}
		e.verb, e.used = "take", make([]bool, len(e.single))
		less := c.ahead != nil && ahead < c.ahead.charges && !v.reference.clone().take(all, 0, c.n)[0].Allowed
		if last := e.single[len(e.single)-1]; less || !last[0].Allowed {
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
	for i, one := range v.countedOf(c, k) {
		name := v.name(k.buckets()[i])
		switch back := c.used[i] - now[i]; {
		case v.foreign[name]:
		case one.quota == "" && v.plan.algorithm == ginlimit.SlidingWindow:
			if v.stored(name, one) != v.reference.stored(one) { // else it was not clear whether a reset came before
				v.reference.windows.GiveBack(one.client, marks[i], c.n, one.limit)
			}
		case one.quota != "" || v.plan.algorithm == ginlimit.FixedWindow:
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

// usedIn returns the tokens taken of each fixed window and calendar period; of others, 0.
func (v *simServer) usedIn(k simScriptKey) (used []int64) {
	for _, b := range k.buckets() {
		name := v.name(b)
		text, err := v.homeLocked(name).mini.Get(name)
		first, _, _ := strings.Cut(text, " ")
		n, e := strconv.ParseInt(first, 10, 64)
		if err != nil || e != nil || v.plan.algorithm != ginlimit.FixedWindow && v.countedAs(b, k.version).quota == "" {
			n = 0
		}
		used = append(used, n)
	}
	return used
}

// mirrorPartLocked has the reference do what is left of a Refund for which miniredis had no memory:
// deleting the keys of full buckets needs none, so it may give back to some buckets and not to
// others. Redis refuses no write of a script that has made one.
func (v *simServer) mirrorPartLocked(process int, c simScriptCall, k simScriptKey) {
	for i, b := range k.buckets() {
		one := v.countedOf(c, k)[i]
		if name := v.name(b); !v.foreign[name] && v.stored(name, one) != v.reference.stored(one) {
			v.reference.refund(one, c.n)
			v.executions = append(v.executions, &simExecution{
				at: time.Now(), process: process, key: k.key, version: k.version, limits: []int{b.limit}, periods: []int{b.period},
				verb: "part", n: c.n,
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

	ahead *simAheadCall // of a take
	used  []int64       // of each fixed window, before a return
}

type simScriptKey struct {
	key, version int
	limits       []int // of the version
	periods      []int // of each of them
	later        []simBucketName
	charges      int64
}

// changes reports whether a call is not a decision.
func (c *simScriptCall) changes() bool { return c.verb != "take" && c.verb != "each" }

// buckets returns the buckets of a key in a call, in their order.
func (k simScriptKey) buckets() (all []simBucketName) {
	for i, limit := range k.limits {
		all = append(all, simBucketName{k.key, limit, k.periods[i]})
	}
	return append(all, k.later...)
}

// declared returns the keys that a call declares.
func declared(args []string) []string {
	count, _ := strconv.Atoi(args[1])
	return args[2 : 2+count]
}

// parse reads a call.
func (v *simServer) parse(process int, args []string) (c simScriptCall, err error) {
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
	var failed error
	if c.ahead, keys, argv, failed = v.parseAhead(keys, argv); failed != nil {
		return c, failed
	}
	count = len(keys)
	if c.verb == "each" && count == 1 { // of several slots: the others come last
		if count = len(argv) - 5; argv[2] == "0" {
			count /= 2
		}
		keys = slices.Concat(keys, argv[len(argv)-count+1:])
	}
	takes := c.verb == "each" || c.verb == "take" && argv[2] != "0" // a probe looks again at what has failed
	buckets := func(names []string, triples []string) simScriptKey {
		k, ok := v.bucketsOf(process, takes, c.changes(), names, triples)
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

// bucketsOf finds what buckets a call is about: all of a client, and after them, calendar
// quotas in later periods. It is not ok if there are none such. A change is told of the whole burst.
func (v *simServer) bucketsOf(process int, takes, changes bool, names, triples []string) (k simScriptKey, ok bool) {
	for _, name := range names {
		b, known := v.names[name]
		if !known || len(k.limits) > 0 && b.key != k.key {
			return k, false
		}
		k.key = b.key
		first := slices.Index(k.limits, b.limit)
		switch {
		case first < 0 && k.later == nil:
			k.limits, k.periods = append(k.limits, b.limit), append(k.periods, b.period)
		case first < 0 || takes || b.period <= k.periods[first]:
			return k, false
		default:
			k.later = append(k.later, b)
		}
	}
	versions := v.plan.keys[k.key].versions
	if len(k.limits) != len(versions[0]) || !slices.IsSorted(k.limits) {
		return k, false
	}
	for version := range versions {
		var want []string
		for i, b := range k.buckets() {
			l := versions[version][b.limit]
			if v.plan.calendarOf(l) != nil {
				want = append(want, triples[3*i], "calendar", strconv.Itoa(l.Rate)) // for the first see checkArguments
				continue
			}
			if changes {
				l = v.plan.whole(k.key, version, l)
			}
			for _, n := range scriptArguments(v.plan.algorithm, l) {
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
	for i, b := range k.buckets() {
		if l := versions[k.version][b.limit]; ok && v.plan.calendarOf(l) != nil {
			left, _ := strconv.ParseInt(triples[3*i], 10, 64)
			v.checkArguments(process, takes, b, l, left)
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
		// of a quota there is no list
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

package simulation_test

import (
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

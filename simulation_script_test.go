package ginlimit_test

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/ginlimit/ginlimit"
)

// simScriptCall is the call of a script, as script.lua and decide.lua document it.
type simScriptCall struct {
	verb  string
	n     int64
	keys  []simScriptKey
	marks []int64 // of return
}

type simScriptKey struct {
	key, version int
	limits       []int // of the version
	charges      int64
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
			err = fmt.Errorf("the script is called with keys %q and buckets %v", names, triples)
		}
		return k
	}
	if c.verb != "each" {
		k := buckets(keys, argv[3:3+3*count])
		k.charges = number(argv[2])
		c.keys = []simScriptKey{k}
		for _, mark := range argv[3+3*count:] {
			c.marks = append(c.marks, number(mark))
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

// bucketsOf finds what buckets a call is about: all of a client, or one. It is not ok if there are none such.
func (v *simServer) bucketsOf(names, triples []string) (k simScriptKey, ok bool) {
	for _, name := range names {
		b, known := v.names[name]
		if !known || len(k.limits) > 0 && b.key != k.key {
			return k, false
		}
		k.key, k.limits = b.key, append(k.limits, b.limit)
	}
	versions := v.plan.keys[k.key].versions
	if all := len(versions[0]); len(k.limits) != 1 && (len(k.limits) != all || !slices.IsSorted(k.limits)) {
		return k, false
	}
	for version := range versions {
		var want []string
		for _, l := range v.limitsOf(k.key, version, k.limits) {
			for _, n := range scriptArguments(v.plan.algorithm, l) {
				want = append(want, strconv.FormatInt(n, 10))
			}
		}
		if slices.Equal(want, triples) && (!ok || version == v.counted[k.key][k.limits[0]]) { // one limit may be in both
			k.version, ok = version, true
		}
	}
	if len(versions[0]) > 1 && len(k.limits) == 1 && v.slots == nil {
		ok = false // only while a slot migrates
	}
	return k, ok
}

// marked returns when the tokens with these marks were taken from sliding windows, by the reference: a mark is the time of
// a log, which began at some time.
func (v *simServer) marked(k simScriptKey, marks []int64) (at []int64) {
	for i, mark := range marks {
		l := v.plan.keys[k.key].versions[k.version][k.limits[i]]
		name := v.name(k.key, l)
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
	return [3]int64{int64(l.Rate) / g, p / g, burst(l) * p / g}
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

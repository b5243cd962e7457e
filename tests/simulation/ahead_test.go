package simulation_test

import (
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// A token bucket whose tokens are leased is decided by a part of its burst, and a second bucket, the
// lease bucket, bounds what is taken ahead. The reference models know both by these limits.

// simAhead is what may be taken ahead of a key's token buckets. The zero simAhead is nothing.
type simAhead struct {
	life  time.Duration  // for how long a process holds it
	lent  int            // tokens of each burst that may be held: twice what the lease bucket holds
	limit ginlimit.Limit // of the lease bucket
}

// aheadOf returns what may be taken ahead of token buckets, as the package lease documents it.
func aheadOf(limits []ginlimit.Limit, life time.Duration) (a simAhead) {
	least, fastest := testkit.Burst(limits[0])/4, limits[0]
	for _, l := range limits {
		least = min(least, testkit.Burst(l)/4)
		if int64(l.Rate)*int64(fastest.Period) > int64(fastest.Rate)*int64(l.Period) {
			fastest = l
		}
	}
	rate, period := int64(fastest.Rate), fastest.Period.Milliseconds()
	least = min(least, rate*life.Milliseconds()/period)
	ms := least * period / rate
	life = min(life, testkit.Millis(ms-ms/1024-2))
	if least < 2 || life < 5*time.Millisecond {
		return simAhead{}
	}
	fastest.Burst = int(least)
	return simAhead{life, 2 * int(least), fastest}
}

// mayLend reports whether tokens of a key may be leased.
func (p *simPlan) mayLend(limits []ginlimit.Limit) bool {
	quotas := 0
	for _, l := range limits {
		if p.calendarOf(l) != nil {
			quotas++
		}
	}
	return quotas == len(limits) || quotas == 0 && p.algorithm != ginlimit.SlidingWindow
}

// lend has the plan's limits be those by which leased keys are decided.
func (p *simPlan) lend(life time.Duration) {
	for i, key := range p.keys {
		if i > 0 && &key.versions[0] == &p.keys[0].versions[0] {
			p.keys[i].ahead = p.keys[0].ahead
			continue
		}
		p.keys[i].ahead = make([]simAhead, len(key.versions))
		if p.algorithm != ginlimit.TokenBucket || p.calendarOf(key.versions[0][0]) != nil || !p.mayLend(key.versions[0]) {
			continue
		}
		if first := key.versions[0]; otherRoom(first, key.versions[1], life) { // which is an error
			key.versions[1] = slices.Clone(first)
		}
		for v, limits := range key.versions {
			a := aheadOf(limits, life)
			p.keys[i].ahead[v] = a
			for j := range limits {
				limits[j].Burst = int(testkit.Burst(limits[j])) - a.lent
			}
		}
	}
}

// otherRoom reports whether policies of these limits may not have one name: one keeps room for leases
// and the other none, or they keep other room of one limit.
func otherRoom(a, b []ginlimit.Limit, life time.Duration) bool {
	one, other := aheadOf(a, life), aheadOf(b, life)
	return (one.lent > 0) != (other.lent > 0) ||
		(one.lent != other.lent || one.limit.Rate != other.limit.Rate || one.limit.Period != other.limit.Period) && slices.ContainsFunc(a, func(l ginlimit.Limit) bool { return slices.Contains(b, l) })
}

// lent returns what may be taken ahead of a key.
func (p *simPlan) lent(key, version int) simAhead {
	if p.keys[key].ahead == nil {
		return simAhead{}
	}
	return p.keys[key].ahead[version]
}

// whole returns a limit with what may be taken ahead of it.
func (p *simPlan) whole(key, version int, l ginlimit.Limit) ginlimit.Limit {
	l.Burst += p.lent(key, version).lent // 0 if that is the rate
	return l
}

// lifeOf returns for how long a process may hold tokens of a key, 0 if it may not.
func (p *simPlan) lifeOf(process, key, version int) time.Duration {
	switch limits := p.keys[key].versions[version]; {
	case !p.mayLend(limits) || p.processes[process].lease == 0:
		return 0
	case p.algorithm == ginlimit.TokenBucket && p.calendarOf(limits[0]) == nil:
		return p.lent(key, version).life
	}
	return p.processes[process].lease
}

// maxLife is for how long tokens of a key may be held at most.
func (s *simulation) maxLife(key int) (life time.Duration) {
	for process := range s.plan.processes {
		life = max(life, s.plan.lifeOf(process, key, 0), s.plan.lifeOf(process, key, 1))
	}
	return life
}

// maxHold is for how long a process denies at most without asking, since a limit had less than it asked for.
func (s *simulation) maxHold(a *simAnswer) time.Duration {
	hold := min(s.plan.lifeOf(a.process, a.key, a.version), time.Second/2)
	return hold/2 + hold/4 + 1
}

// leaseName returns the key of a lease bucket in Redis.
func (v *simServer) leaseName(key int) string {
	return "ginlimit:{" + v.plan.keys[key].name + "}:lease"
}

// leaseOf returns the lease bucket of a key as the reference has it.
func (v *simServer) leaseOf(key, version int) (c simCounted, ok bool) {
	c.client, c.limit = v.plan.keys[key].name+":lease", v.plan.lent(key, version).limit
	return c, c.limit.Rate > 0
}

// adoptLeaseLocked has the reference go on from what a lease bucket's key says.
func (v *simServer) adoptLeaseLocked(key int) {
	if c, ok := v.leaseOf(key, v.leaseVersion[key]); ok {
		v.reference.adopt(c.client, c.limit, v.bucketIn(v.leaseName(key), c.limit))
	}
}

// forgetLeasesLocked forgets the lease buckets of a node, which lose their data.
func (v *simServer) forgetLeasesLocked(n *simNode) {
	for key := range v.plan.keys {
		if c, ok := v.leaseOf(key, v.leaseVersion[key]); ok && v.homeLocked(v.leaseName(key)) == n {
			v.reference.reset(c)
		}
	}
}

// simAheadCall is what a call is to take ahead, and to hold for longer.
type simAheadCall struct {
	charges, held int64
	found         int64 // the level of the lease bucket, in the reply
}

// parseAhead cuts off what a call takes ahead, if it does.
func (v *simServer) parseAhead(keys, argv []string) (ahead *simAheadCall, _, _ []string, err error) {
	last := len(keys) - 1
	if last < 1 || argv[0] != "take" || !strings.HasSuffix(keys[last], ":lease") {
		return nil, keys, argv, nil
	}
	at, b := 3+3*last, v.names[keys[0]]
	numbers := fields(strings.Join(argv[at:], " "))
	if len(numbers) != 5 || keys[last] != v.leaseName(b.key) || numbers[3] < 0 || numbers[4] < 0 ||
		numbers[3]+numbers[4] == 0 && argv[2] != "0" { // a probe looks again at what has failed
		return nil, keys, argv, fmt.Errorf("the lease bucket %q is called with %v", keys[last], argv[at:])
	}
	for version := range v.plan.keys[b.key].versions {
		c, ok := v.leaseOf(b.key, version)
		if want := scriptArguments(v.plan.algorithm, c.orOne()); ok && slices.Equal(numbers[:3], want[:]) {
			return &simAheadCall{charges: numbers[3], held: numbers[4]}, keys[:last], argv[:at], nil
		}
	}
	return nil, keys, argv, fmt.Errorf("the lease bucket %q is none of the plan: %v", keys[last], numbers)
}

// orOne returns the limit, or one that can be counted.
func (c simCounted) orOne() ginlimit.Limit {
	if c.limit.Rate == 0 {
		return ginlimit.PerSecond(1)
	}
	return c.limit
}

// boundAhead returns what a call may take ahead, and hold for longer, by the reference, before it.
func (v *simServer) boundAhead(c simScriptCall, k simScriptKey, all []simCounted) (charges, held int64) {
	one, _ := v.leaseOf(k.key, k.version)
	missing := new(big.Rat).Set(v.reference.tokens.Bucket(one.client, one.limit).Missing)
	room := max(0, testkit.FloorSigned(new(big.Rat).Sub(testkit.Tokens(testkit.Burst(one.limit)), missing)))
	cost := scriptArguments(v.plan.algorithm, one.limit)[1]
	missing.Mul(missing, testkit.Tokens(cost))
	if missing.Cmp(testkit.Tokens(c.ahead.found)) != 0 && !v.refusesWrites(k.key) {
		v.violated("%s is at %d, and by the model at %s", v.leaseName(k.key), c.ahead.found, missing.RatString())
	}
	held = min(c.ahead.held, room)
	for _, limit := range all {
		if v.reference.tokens.Over(limit.client, limit.limit) {
			held = 0
		}
	}
	return min(c.ahead.charges, (room-held)/c.n), held
}

// refusesWrites reports whether the node of a key refuses writes.
func (v *simServer) refusesWrites(key int) bool { return v.homeLocked(v.leaseName(key)).noWrites != "" }

// mirrorAhead charges the lease bucket of the reference with what was taken ahead, and is held for longer.
func (v *simServer) mirrorAhead(k simScriptKey, tokens int64) {
	one, _ := v.leaseOf(k.key, k.version)
	if tokens > 0 && !v.refusesWrites(k.key) {
		b := v.reference.tokens.Bucket(one.client, one.limit)
		b.Missing.Add(b.Missing, testkit.Tokens(tokens))
	}
}

// compareLeaseLocked wants a lease bucket as the reference has it.
func (v *simServer) compareLeaseLocked(key int) {
	c, ok := v.leaseOf(key, v.leaseVersion[key])
	if !ok {
		return
	}
	name := v.leaseName(key)
	v.checkHomesLocked(name)
	if found, want := describeBucket(v.bucketIn(name, c.limit)), v.reference.stored(c); found != want {
		v.violated("leases: %s holds %s, and by the model %s", name, found, want)
	}
}

// checkKeysLocked wants that the server has no keys but those that are known, each with an expiry.
func (v *simServer) checkKeysLocked() {
	for _, n := range v.nodes {
		for _, name := range n.mini.Keys() {
			_, known := v.names[strings.TrimSuffix(name, ":back")]
			if client, ok := strings.CutSuffix(name, "}:lease"); ok {
				known = slices.ContainsFunc(v.plan.keys, func(k simKey) bool { return "ginlimit:{"+k.name == client })
			}
			if !known && !isStrange(name) {
				v.violated("the key %s is none that is documented", name)
			}
			if !v.foreign[name] && !isOfOperators(name) && n.mini.TTL(name) <= 0 {
				v.violated("%s has no expiry", name)
			}
		}
	}
}

// maxSingle is how many charges of a call, the first and the last, the reference makes one after another.
const maxSingle = 1000

// takeRest makes further charges of n tokens, as many as fit, and returns the tokens.
func (r simReference) takeRest(all []simCounted, charges, n int64) int64 {
	for _, c := range all {
		charges = min(charges, int64(r.one(c, 0, n).Remaining)/n)
	}
	if charges > 0 {
		r.take(all, charges*n, charges*n)
	}
	return charges * n
}

package fair_test

import (
	"fmt"
	"math"
	"time"

	"github.com/ginlimit/ginlimit"
)

// level is the level of a bucket by the definition of a token bucket: what was charged flows back at
// the rate. It counts in thousandths of a token, as rates are per second, so it is exact.
type level struct {
	rate, burst int64
	units, at   int64
	idle        int64 // the last millisecond of which some rate was left unused
}

func newLevel(l ginlimit.Limit) *level {
	return &level{rate: int64(l.Rate), burst: int64(l.Burst) * 1000, idle: -1}
}

// drain brings the level to a millisecond.
func (l *level) drain(now int64) {
	if flows := (now - l.at) * l.rate; flows > l.units {
		l.units, l.idle = 0, now
	} else {
		l.units -= flows
	}
	l.at = now
}

// answer is the answer to a try.
type answer struct {
	tenant, cost, process int
	first                 bool // not again after a denial
	now                   int64
	ginlimit.Result
}

// ledger checks every answer, in the order of time. See docs/fair.md.
type ledger struct {
	plan      *plan
	level     *level    // of the answers of one bucket
	locals    []*level  // of each process without Redis
	fair      []float64 // of each tenant, the level of a bucket of its own that drains at its fair rate
	fairAt    []int64
	busyUntil int64 // somebody who was denied asks again then
	violated  []string
	decisions int
	charges   int // since the bucket was last full

	admitted [3][]float64 // of each tenant: in the steady time, in the second one, and alone
	retried  [2][]bool    // a tenant was denied in that time
}

func newLedger(p *plan) *ledger {
	n := len(p.tenants)
	l := &ledger{plan: p, level: newLevel(p.limit), fair: make([]float64, n), fairAt: make([]int64, n)}
	for i := range l.admitted {
		l.admitted[i] = make([]float64, n)
	}
	for i := range l.retried {
		l.retried[i] = make([]bool, n)
	}
	for range p.processes {
		local := p.limit
		local.Rate, local.Burst = max(1, local.Rate/p.processes), max(1, local.Burst/p.processes)
		l.locals = append(l.locals, newLevel(local))
	}
	return l
}

// violate notes what is not as it must be. A few are enough.
func (l *ledger) violate(format string, args ...any) {
	if len(l.violated) < 5 {
		l.violated = append(l.violated, fmt.Sprintf(format, args...))
	}
}

// settled is set when no fault, nor anything that it has left, changes what tenants get.
func (p *plan) settled(now int64) bool { return p.faultEnd == 0 || now < p.faultAt || now >= p.steady }

// note checks the answers of a millisecond. Admissions of several processes may be in any order, so
// they come first.
func (l *ledger) note(answers []answer) {
	for _, a := range answers {
		l.decisions++
		if a.Allowed {
			l.noteAdmitted(a)
		}
	}
	for _, a := range answers {
		if !a.Allowed {
			l.noteDenied(a)
		}
		l.count(a)
	}
}

func (l *ledger) noteAdmitted(a answer) {
	of := l.level
	if a.Source == ginlimit.FromLocal && l.locals != nil {
		of = l.locals[a.process]
	}
	of.drain(a.now)
	if of == l.level && of.idle == a.now && of.idle > l.plan.alone && a.now < l.busyUntil && l.plan.settled(a.now) {
		l.violate("%d ms: nothing was held of the bucket, though somebody was denied until %d ms", a.now, l.busyUntil)
	}
	if l.charges++; l.level.units == 0 {
		l.charges = 1
	}
	if of.units += int64(a.cost) * 1000; of.units > of.burst && of == l.level {
		l.violate("%d ms: %d thousandths of a token are admitted above the burst", a.now, of.units-of.burst)
	} else if of != l.level && of.units > max(of.burst, int64(a.cost)*1000)+int64(a.cost)*1000 {
		l.violate("%d ms: process %d admits more than its share", a.now, a.process)
	}
	l.drainFair(a.tenant, a.now)
	l.fair[a.tenant] += float64(a.cost)
}

// drainFair lets flow back from a tenant's own bucket, at its fair rate.
func (l *ledger) drainFair(i int, now int64) {
	rate := float64(l.plan.limit.Rate) / 1000 * float64(l.plan.tenants[i].weight) / float64(l.plan.weights)
	l.fair[i] = max(0, l.fair[i]-rate*float64(now-l.fairAt[i]))
	l.fairAt[i] = now
}

func (l *ledger) noteDenied(a answer) {
	if a.RetryAfter <= 0 || a.RetryAfter%time.Millisecond != 0 {
		l.violate("%d ms: tenant %d is denied with RetryAfter %s", a.now, a.tenant, a.RetryAfter)
	}
	if a.Source == ginlimit.FromLocal && l.locals != nil || !l.plan.settled(a.now) {
		return
	}
	l.busyUntil = max(l.busyUntil, a.now+a.RetryAfter.Milliseconds())
	l.level.drain(a.now)
	l.drainFair(a.tenant, a.now)
	// What a tenant holds drains at its fair rate at least. So it is surely within its threshold if
	// that bucket of its own is, and holds nothing if that is empty.
	w, cost := float64(l.plan.tenants[a.tenant].weight), float64(a.cost)
	free := float64(l.level.burst-l.level.units) / 1000
	// Each charge rounds what its tenant holds, by half a part of 65,536 for each unit of weight at most,
	// always the same way if the costs are the same; the others move with it.
	rounding := w*(0.01+0.25/65536*float64(l.charges)) + cost/1e6
	if cost <= free && (l.fair[a.tenant] == 0 || l.fair[a.tenant]+cost <= w*free-rounding) {
		l.violate("%d ms: tenant %d is denied %d tokens within its fair share: "+
			"it holds %.3f at most, %.3f are free, weight %g",
			a.now, a.tenant, a.cost, l.fair[a.tenant], free, w)
	}
}

// count adds an answer to what a tenant has got in each of the times.
func (l *ledger) count(a answer) {
	p, t, cost := l.plan, &l.plan.tenants[a.tenant], float64(a.cost)
	if !a.Allowed {
		cost = 0
	}
	for period, times := range [...][2]int64{{p.steady, p.leave}, {p.again, p.end}, {0, p.alone}} {
		if a.now < times[0] || a.now >= times[1] {
			continue
		}
		l.admitted[period][a.tenant] += cost
		if period < len(l.retried) && !a.Allowed {
			l.retried[period][a.tenant] = true
		}
		if period == 0 && t.manner == light && a.first && p.settled(a.now) {
			t.tries++
			if !a.Allowed {
				t.denials++
			}
		}
	}
}

// finish checks what tenants got in the end.
func (l *ledger) finish() {
	p := l.plan
	if p.alone > 0 {
		t := &p.tenants[0]
		w, got := float64(t.weight), l.admitted[2][0]
		flows := float64(p.limit.Rate) / 1000 * float64(p.alone-1-max(t.every, 1))
		if want := w/(1+w)*float64(p.limit.Burst) - float64(t.most) + flows; got < want {
			l.violate("a tenant alone gets %.0f, less than %.0f: its part of the burst and the rate", got, want)
		}
	}
	for period, times := range [...][2]int64{{p.steady, p.leave}, {p.again, p.end}} {
		if times[1] > times[0] {
			l.checkShares(period, float64(times[1]-times[0]))
		}
	}
}

// checkShares compares the tenants that were denied all the time: all that ask for as much as they get.
func (l *ledger) checkShares(period int, ms float64) {
	p, sum, weights, all := l.plan, 0.0, 0.0, 0.0
	wants := func(t *tenant) bool { return t.manner != light && (period == 0 || t.leaves > p.leave) }
	for i := range p.tenants {
		t := &p.tenants[i]
		all += l.admitted[period][i]
		if wants(t) {
			sum, weights = sum+l.admitted[period][i], weights+float64(t.weight)
		}
	}
	if weights == 0 {
		return
	}
	rate := float64(p.limit.Rate) / 1000 * ms
	used := 0.95
	if p.perBusy == 2 { // then one that asks every now and then may find too little room for what flows back meanwhile
		used = 0.9
	}
	if all < used*rate {
		l.violate("time %d: %.0f of %.0f tokens are used, though somebody always asks", period, all, rate)
	}
	within := 0.05
	if p.perBusy == 2 { // then a tenant that asks late may have held nothing for a while
		within = 0.1
	}
	for i := range p.tenants {
		if t := &p.tenants[i]; wants(t) {
			fair := sum / weights * float64(t.weight)
			got := l.admitted[period][i]
			if t.every > 0 && got >= (ms/float64(t.every)-1)*float64(t.least) {
				continue // it gets all that it asks for
			}
			if math.Abs(got/fair-1) > within {
				l.violate("time %d: tenant %d gets %.0f, and %.0f by its weight: %+.1f %%", period, i, got, fair, 100*(got/fair-1))
			}
		}
	}
}

package simulation_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit"
)

// In half of the plans without leases and with one server, some calls are reservations, which take
// an estimate, and are settled with less or with the same a while later. Nothing else gives back
// what was taken there: so what Redis gives back is at most what was settled. Not drawn: what is
// settled with more, which the reference models have no debt for.

// drawSettles has calls reserve, unless something else gives back what was taken.
func (p *simPlan) drawSettles(r *rand.Rand) {
	leases := slices.ContainsFunc(p.processes, func(m simProcess) bool { return m.lease > 0 })
	if p.nodes > 1 || leases || r.IntN(2) > 0 {
		return
	}
	p.settles = true
	for i := range p.calls {
		if c := &p.calls[i]; c.op == "AllowN" && r.IntN(2) == 0 {
			c.settles, c.actual, c.holds = true, r.IntN(c.n+1), pick(r, 0, 0, upTo(r, p.timeout), upTo(r, 400*time.Millisecond))
		}
	}
}

// reserve is AllowN, to be settled.
func (m *simMember) reserve(ctx context.Context, p *simPlan, a *simAnswer) (r *ginlimit.Reservation, err error) {
	key := p.keys[a.key]
	return m.limiter.Reserve(ctx, key.name, a.n, p.limitsOf(a.process, a.key, a.version)...)
}

// settle settles a reservation, and notes how.
func (s *simulation) settle(reserved *simAnswer) {
	time.Sleep(reserved.holds)
	c := simCall{process: reserved.process, key: reserved.key, op: "Settle", n: reserved.n - reserved.actual}
	a := &simAnswer{simCall: c, version: reserved.version, before: reserved, start: time.Now()}
	s.note("%s", c)
	a.err = reserved.reservation.Settle(context.Background(), reserved.actual)
	a.end = time.Now()
	s.server.mu.Lock()
	a.closed = !s.members[a.process].closing.IsZero()
	s.server.mu.Unlock()
	s.note("%s, asked %s ago: %s", c, a.end.Sub(a.start), a.says())
	s.mu.Lock()
	s.answers = append(s.answers, a)
	s.mu.Unlock()
}

// checkSettles wants that no more is given back than was settled, and that it is.
func (s *simulation) checkSettles() {
	if !s.plan.settles {
		return
	}
	for _, b := range s.counters() {
		for process := range s.plan.processes {
			most, back := 0, int64(0)
			for _, a := range s.answers {
				if a.op == "Settle" && a.process == process && a.key == b.key && a.before.result.Source == ginlimit.FromRedis {
					most += a.n
				}
			}
			for _, e := range s.server.executions {
				if e.verb == "return" && e.process == process && e.key == b.key && slices.Contains(e.limits, b.limit) {
					back += e.n
				}
			}
			if back > int64(most) {
				s.violated("settle: process %d has given %d tokens of %s back, and settled with %d fewer than "+
					"it took", process, back, s.server.name(b), most)
			}
		}
	}
	for _, a := range s.answers {
		if a.op == "Settle" && a.n > 0 && a.err == nil && a.before.result.Source == ginlimit.FromRedis &&
			s.stillTaken(a) && !s.gaveBack(a) {
			s.complain(a, "settle: nothing is given back")
		}
	}
}

// stillTaken reports whether too little time has passed since the estimate was taken for a token to have come back.
func (s *simulation) stillTaken(a *simAnswer) bool {
	if s.plan.algorithm == ginlimit.FixedWindow { // which may end
		return false
	}
	return !slices.ContainsFunc(s.plan.keys[a.key].versions[a.version], func(l ginlimit.Limit) bool {
		each := l.Period
		if s.plan.algorithm == ginlimit.TokenBucket {
			each /= time.Duration(l.Rate)
		}
		return s.plan.calendarOf(l) != nil || a.end.Sub(a.before.start)+time.Millisecond >= each
	})
}

func (s *simulation) gaveBack(a *simAnswer) bool {
	return slices.ContainsFunc(s.server.executions, func(e *simExecution) bool {
		return e.verb == "return" && e.process == a.process && e.key == a.key && !e.at.Before(a.start) && !e.at.After(a.end)
	})
}

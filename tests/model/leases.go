package model

import (
	"fmt"
)

// Leases is a token bucket of which processes take tokens ahead. Its numbers have the names that the proof in
// package lease gives them.
type Leases struct {
	Processes   int
	B           int16 // tokens of the burst
	H           int16 // tokens of it that are kept for leases; the lease bucket holds half of them
	Cost, Drain int16 // units of a token, and units that flow back in a tick
	Lost        int16 // ticks of Redis' clock that a process' may lose while it holds tokens
	Most        int16 // tokens that a call takes ahead
	Returns     int16 // how often tokens are given back, at most
	Failovers   int16 // how many there are at most
	Mistake     Mistake
}

// Mistake is something that a model does wrong.
type Mistake int

// The mistakes of Leases.
const (
	None        Mistake = iota
	FromAnswer          // a lease begins with the answer, not when its call is sent
	HeldForFree         // the lease bucket is not charged with what is held for longer
	WithoutRoom         // the limit is decided by its whole burst
)

// maxProcesses is how many processes a model has at most.
const maxProcesses = 3

// LeaseState is a state of Leases.
type LeaseState struct {
	Redis   redisBuckets
	Replica redisBuckets // what a failover returns to; before it was written once, nothing
	Written bool         // it was written once
	Fails   int16        // failovers until now
	Returns int16        // give-backs until now

	Used   int16 // units admitted and not flowed back: the most of used(s, t] − R (t − s) over all s
	Missed int16 // units that failovers have lost

	Of [maxProcesses]leaseProcess
}

// redisBuckets is what Redis has.
type redisBuckets struct {
	Level, Ahead int16         // units short of full: of the limit, and of the lease bucket
	Given        [2]givenUnits // the record of what was given back, the latest first
}

// givenUnits were given back some ticks ago by a call that had some age then.
type givenUnits struct{ Units, Ago, Age int16 }

// leaseProcess is what a process knows. Its ages are by its own clock.
type leaseProcess struct {
	Left, Own int16   // tokens that it holds, and how many of these its last call took, which are used last
	Last      charged // its last call
	First     charged // the call that counts as the one that took the others
	Call      leaseCall
	Back      [2]leaseReturn // in flight
	Steady    int16          // ticks since its clock has lost one
}

// charged is a call that took tokens: the level after it, and how many ticks ago it was sent and answered.
type charged struct{ After, Age, Answered int16 }

// leaseCall is a call that takes tokens ahead.
type leaseCall struct {
	Stage       int16 // nothing, sent, done
	Age         int16
	Ahead, Held int16 // tokens asked for, then those granted; and to be held for longer
	Asked       int16 // tokens that were to be held for longer
	After       int16 // the level after it
}

const (
	idle = iota
	sent
	done
)

// leaseReturn is a call that gives tokens back.
type leaseReturn struct {
	Tokens int16
	Of     charged
}

// d is how many ticks a token is held at most.
func (l *Leases) d() int16 { return l.H / 2 * l.Cost / l.Drain }

// life is for how long a process uses tokens, by its clock.
func (l *Leases) life() int16 { return l.d() - l.Lost }

// used is for how long it uses them; then its next call may hold them for longer.
func (l *Leases) used() int16 { return l.life() - l.life()/8 }

// capacity is by which the limit is decided, in units.
func (l *Leases) capacity() int16 {
	if l.Mistake == WithoutRoom {
		return l.B * l.Cost
	}
	return (l.B - l.H) * l.Cost
}

// Initial is nobody having used anything.
func (l *Leases) Initial() (s LeaseState) {
	for i := range l.Processes {
		s.Of[i].Steady = l.d()
	}
	return s
}

// Broken is guarantee 1: never more than burst + rate × t, and what the failovers have lost.
func (l *Leases) Broken(s *LeaseState) string {
	if most := l.B*l.Cost + s.Missed; s.Used > most {
		return fmt.Sprintf("%d units are in use, and %d may be", s.Used, most)
	}
	return ""
}

// What may happen to Leases.
const (
	leaseAdmits = "process %d admits a request from its lease"
	redisAdmits = "Redis admits a request"
	asks        = "process %d asks for tokens, and to hold %d for longer"
	takesAhead  = "Redis takes up to %d tokens ahead for process %d"
	isAnswered  = "process %d has its answer"
	isLost      = "the call of process %d is lost, or its answer"
	endsLease   = "process %d ends its lease"
	hasBack     = "Redis has %d tokens back from process %d"
	isReplaced  = "process %d dies, and another starts"
	failsOver   = "failover to the replica"
	ticksFor    = "a tick, which the clocks of %03b lose"
)

// Steps are what may happen.
func (l *Leases) Steps(s *LeaseState, next func(Step, LeaseState)) {
	if t := *s; t.Redis.take(l, 1) == 1 {
		t.Used += l.Cost
		next(step(redisAdmits), t)
	}
	for i := range int16(l.Processes) {
		l.stepsOf(s, i, next)
	}
	if s.Fails < l.Failovers {
		if !s.Written { // that it was written before as well makes no difference
			t := *s
			t.Replica, t.Written = t.Redis, true
			next(step("the replica has all writes, and then none"), t)
		}
		t := *s
		t.failOver()
		next(step(failsOver), t)
	}
	l.ticks(s, next)
}

// stepsOf are what a process may do, and what may happen to it.
func (l *Leases) stepsOf(s *LeaseState, i int16, next func(Step, LeaseState)) {
	p := &s.Of[i]
	do := func(what Step, f func(t *LeaseState, p *leaseProcess)) {
		t := *s
		f(&t, &t.Of[i])
		l.forget(&t, &t.Of[i])
		next(what, t)
	}
	if p.Left > 0 && p.Last.Age < l.used() {
		do(step(leaseAdmits, i), func(t *LeaseState, p *leaseProcess) {
			p.use(1)
			t.Used += l.Cost
		})
	}
	switch p.Call.Stage {
	case idle:
		for held := range p.holds(l) + 1 {
			do(step(asks, i, held),
				func(_ *LeaseState, p *leaseProcess) { p.Call = leaseCall{Stage: sent, Held: held} })
		}
	case sent: // how many it asks for matters only now
		for ahead := range l.Most + 1 {
			if ahead+p.Call.Held > 0 {
				do(step(takesAhead, ahead, i),
					func(t *LeaseState, p *leaseProcess) {
						p.Call.Ahead = ahead
						p.Call = t.Redis.decide(l, p.Call)
					})
			}
		}
	case done:
		do(step(isAnswered, i), func(_ *LeaseState, p *leaseProcess) { p.answer(l) })
	}
	if p.Call.Stage != idle {
		do(step(isLost, i), func(_ *LeaseState, p *leaseProcess) {
			p.Call = leaseCall{}
		})
	}
	if p.Left > 0 && s.Returns < l.Returns {
		do(step(endsLease, i), func(_ *LeaseState, p *leaseProcess) { p.end(l) })
	}
	for j := range p.Back {
		if p.Back[j].Tokens > 0 {
			do(step(hasBack, p.Back[j].Tokens, i), func(t *LeaseState, p *leaseProcess) {
				t.Redis.giveBack(l, p.Back[j])
				p.Back[j] = leaseReturn{}
				if t.Returns++; t.Returns == l.Returns {
					t.Redis.Given, t.Replica.Given = [2]givenUnits{}, [2]givenUnits{}
					for i := range l.Processes {
						l.forget(t, &t.Of[i])
					}
				}
			})
		}
	}
	if dead := (leaseProcess{Steady: l.d()}); *p != dead {
		do(step(isReplaced, i), func(_ *LeaseState, p *leaseProcess) { *p = dead })
	}
}

// ticks are a tick of Redis' clock, with each choice of the processes whose clocks lose it.
func (l *Leases) ticks(s *LeaseState, next func(Step, LeaseState)) {
	for losing := range int16(1 << l.Processes) {
		if t := *s; l.tick(&t, losing) {
			next(step(ticksFor, losing), t)
		}
	}
}

// tick reports false if a clock cannot lose the tick.
func (l *Leases) tick(t *LeaseState, losing int16) bool {
	for i := range l.Processes {
		p := &t.Of[i]
		if losing&(1<<i) == 0 {
			p.tick(l)
		} else if l.Lost == 0 || p.Steady < l.d() {
			return false
		} else {
			p.Steady = 0
		}
		if p.Steady = min(p.Steady+1, l.d()); l.Lost == 0 {
			p.Steady = l.d()
		}
		l.forget(t, p)
	}
	t.Redis.tick(l)
	t.Replica.tick(l)
	t.Used = max(0, t.Used-l.Drain)
	return true
}

package lease

import (
	"container/heap"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// simCalls is how many calls the processes of a simulation make together.
const simCalls = 400

// event is what happens at a time.
type event struct {
	at time.Time
	do func()
}

type eventQueue []event

func (q eventQueue) Len() int           { return len(q) }
func (q eventQueue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q eventQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(e any)        { *q = append(*q, e.(event)) }
func (q *eventQueue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	*q = (*q)[:last]
	return e
}

// at has something happen after a time.
func (s *simulation) at(after time.Duration, do func()) {
	heap.Push(&s.events, event{time.Now().Add(after), do})
}

// run makes what happens happen, one after another.
func (s *simulation) run() {
	s.start = time.Now()
	switch {
	case s.renews:
		s.planRenewals()
	case s.hoards:
		s.planHoards()
	default:
		s.plan()
	}
	for len(s.events) > 0 {
		next := heap.Pop(&s.events).(event)
		time.Sleep(time.Until(next.at))
		s.mu.Lock()
		next.do()
		s.mu.Unlock()
	}
}

// plan draws the calls and the changes of all processes.
func (s *simulation) plan() {
	r, gap, after := s.rand, s.gap, time.Duration(0)
	busiest := s.processes[0]
	for range simCalls {
		switch r.IntN(40) {
		case 0:
			gap = s.gap / 20
		case 1, 2:
			gap = s.gap
		case 3:
			gap = 4 * s.gap
		case 4:
			if s.waves {
				after += time.Duration(r.Int64N(int64(2 * s.life)))
				gap = s.gap / 40
			}
		case 5, 6, 7:
			busiest = s.processes[r.IntN(len(s.processes))]
		case 8:
			if r.IntN(10) == 0 {
				after += time.Duration(s.buckets[0].FillTime()) * ms
			}
		}
		after += time.Duration(r.Int64N(int64(2*gap + 1)))
		p := s.processes[r.IntN(len(s.processes))]
		if r.IntN(2) == 0 {
			p = busiest
		}
		charges, n := int64(1), int64(1)
		switch r.IntN(6) {
		case 0:
			n = 1 + r.Int64N(s.maxN)
		case 1:
			charges = 1 + r.Int64N(2*s.maxN)
		}
		s.at(after, func() { p.call(charges, n) })
		switch p := s.processes[r.IntN(len(s.processes))]; r.IntN(100) {
		case 0:
			s.at(after, func() { p.paused = time.Now().Add(time.Duration(r.Int64N(int64(2 * s.life)))) })
		case 1, 2:
			if s.changes {
				s.at(after, p.change)
			}
		case 3:
			if s.closes {
				s.at(after, p.end)
			}
		case 4:
			if s.restarts {
				s.at(after, p.loseAll)
			}
		}
	}
}

// simProcess is a process of a simulation.
type simProcess struct {
	*simulation
	cache   *Cache
	paused  time.Time // until when
	held    time.Time // until when it denies, as the limit had no more
	blocked int64     // until when it blocks the key, by the server's clock
	waiting []waiter
}

// waiter is a call that waits for another one of its process.
type waiter struct {
	prefetch *Prefetch
	retry    func()
}

// begin has a process begin, without leases.
func (p *simProcess) begin() {
	p.cache = New(p.giveBack)
	p.waiting, p.blocked, p.held = nil, 0, time.Time{}
}

// end ends a process, and begins another one. Some give back nothing.
func (p *simProcess) end() {
	if p.rand.IntN(3) > 0 {
		for _, u := range p.cache.Drain() {
			p.giveBack(u)
		}
	}
	p.begin()
}

// loseAll loses what the server holds. Not every process sees it.
func (p *simProcess) loseAll() {
	p.restart()
	for _, p := range p.processes {
		if p.rand.IntN(3) > 0 {
			p.cache.Lose()
		}
	}
}

// giveBack sends leased tokens back. It may be called by a timer.
func (p *simProcess) giveBack(u Unused) {
	r := rand.New(rand.NewPCG(p.seed, p.draws.Add(1)))
	within := p.latency
	if p.lateBacks && p.ahead != nil { // a window's must arrive within a period
		switch r.IntN(10) {
		case 0, 1:
			return
		case 2, 3:
			within += time.Duration(r.Int64N(int64(5 * p.life)))
		case 4:
			within += time.Duration(r.Int64N(int64(latestBack - p.latency)))
		}
	}
	op := u.Op(within)
	time.AfterFunc(time.Duration(r.Int64N(int64(within)+1)), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.takeBack(op)
	})
}

func (p *simProcess) subject() Subject {
	return Subject{Key: []byte("k"), Hash: 5, Buckets: p.buckets, Ahead: p.ahead}
}

// way is a message's travel time.
func (p *simProcess) way() time.Duration { return time.Duration(p.rand.Int64N(int64(p.latency))) }

// take decides by a lease.
func (p *simProcess) take(tokens int64, again bool) bool {
	if _, ok := p.cache.Take(p.subject(), tokens, again, make([]bucket.State, len(p.buckets))); !ok {
		return false
	}
	p.leased++
	p.outstanding -= tokens
	if p.advance(); p.blocked > p.now() {
		p.violated("%d tokens used while this process blocks the key", tokens)
	}
	p.use(tokens, "from a lease")
	return true
}

// call is a decision, by a lease or by the server.
func (p *simProcess) call(charges, n int64) {
	if wait := time.Until(p.paused); wait > 0 {
		p.at(wait, func() { p.call(charges, n) })
		return
	}
	switch {
	case p.take(charges*n, false), time.Until(p.held) > 0:
	case p.denials && p.rand.IntN(10) == 0:
		p.take(1<<40>>p.rand.IntN(40), false) // more than it has, or not
	default:
		p.travel(charges, n)
	}
}

var errLost = errors.New("the call is lost")

// travel is a trip to the server, or waits for another one's.
func (p *simProcess) travel(charges, n int64) {
	trip := p.cache.Begin(p.subject(), p.life, charges, n)
	if other := trip.Other(); other != nil {
		p.waiting = append(p.waiting, waiter{other, func() {
			if other.Err == nil && !p.take(charges*n, true) && time.Until(p.held) <= 0 {
				p.travel(charges, n)
			}
		}})
		return
	}
	cache, sent := p.cache, time.Now()
	fails := p.failures > 0 && p.rand.IntN(p.failures) == 0
	fail := func() {
		trip.Fail(errLost)
		cache.Lose()
		p.land()
	}
	if fails && p.rand.IntN(2) == 0 { // the server decides late, or never
		p.at(p.way(), fail)
		if p.rand.IntN(2) == 0 {
			p.at(p.latency+p.way(), func() { p.decide(trip.Op(), charges) })
		}
		return
	}
	p.at(p.way(), func() {
		found := p.decide(trip.Op(), charges)
		back := p.way()
		if p.rand.IntN(20) == 0 {
			back += time.Duration(p.rand.Int64N(int64(p.life))) // a busy machine
		}
		p.at(back, func() {
			if fails {
				fail()
				return
			}
			p.arrive(&trip, found, sent, charges, n)
		})
	})
}

// arrive is the end of a trip.
func (p *simProcess) arrive(trip *Trip, found []bucket.State, sent time.Time, charges, n int64) {
	if wait := time.Until(p.paused); wait > 0 {
		p.at(wait, func() { p.arrive(trip, found, sent, charges, n) })
		return
	}
	if _, short := trip.End(p.subject(), found, sent, time.Now()); short {
		p.held = time.Now().Add(p.life/2 + time.Duration(p.rand.Int64N(int64(p.life/4+1))))
	}
	own := charges
	for i := range p.buckets {
		own = p.buckets[i].Fit(found[i].Level, own, n)
	}
	if own < charges {
		p.take(charges*n, true)
	}
	p.land()
}

// land has calls go on that waited for one that has ended.
func (p *simProcess) land() {
	var still []waiter
	waiting := p.waiting
	p.waiting = nil
	for _, w := range waiting {
		select {
		case <-w.prefetch.Done:
			w.retry()
		default:
			still = append(still, w)
		}
	}
	p.waiting = append(p.waiting, still...)
}

// change refunds, resets or blocks. Some changes fail, and may be made later.
func (p *simProcess) change() {
	var do func()
	end := func(bool) {}
	switch tokens, blocked := 1+p.rand.Int64N(20), p.rand.Int64N(5); {
	case p.rand.IntN(2) == 0:
		do = func() { p.refund(tokens) }
	case p.rand.IntN(2) == 0 || p.ahead == nil:
		do, end = p.reset, p.cache.End(p.subject().Hash)
	default:
		cache := p.cache
		end = cache.End(p.subject().Hash)
		do = func() {
			if p.block(blocked); p.cache == cache { // the process has not ended
				p.blocked = max(p.blocked, p.now()+blocked)
			}
		}
	}
	late := p.rand.IntN(10) == 0
	p.at(p.way(), func() {
		if late {
			end(true)
			p.at(time.Duration(p.rand.Int64N(int64(failedLife))), do)
			return
		}
		do()
		p.at(p.way(), func() { end(false) })
	})
}

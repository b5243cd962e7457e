package lease

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// simCalls is how many calls a caller makes in a simulation.
const simCalls = 150

// simProcess is a process of a simulation.
type simProcess struct {
	*simulation
	cache   *Cache
	callers sync.WaitGroup
	rounds  int // how often it gives back what it did not use
}

func (p *simProcess) subject() Subject { return Subject{Key: []byte("k"), Hash: 5, Buckets: p.buckets} }

// pass waits for a message's travel time.
func (p *simProcess) pass(r *rand.Rand) { time.Sleep(time.Duration(r.Int64N(int64(p.latency)))) }

// call is a caller, with busy and idle spells.
func (p *simProcess) call(r *rand.Rand) {
	gap := p.gap
	for i := range simCalls {
		if p.bursty {
			if gap = p.gap / 20; i%20 == 0 {
				time.Sleep(time.Duration(r.Int64N(int64(min(2*p.life, 40*p.gap)))))
			}
		}
		switch r.IntN(40) {
		case 0:
			gap = p.gap / 20
		case 1, 2:
			gap = p.gap
		case 3:
			gap = 4 * p.gap
		case 4:
			time.Sleep(time.Duration(r.Int64N(int64(2 * p.life))))
		case 5:
			if r.IntN(10) == 0 {
				time.Sleep(time.Duration(p.buckets[0].FillTime()) * ms)
			}
		}
		time.Sleep(time.Duration(r.Int64N(int64(2*gap + 1))))
		charges, n := int64(1), int64(1)
		switch r.IntN(6) {
		case 0:
			n = 1 + r.Int64N(p.maxN)
		case 1:
			charges = 1 + r.Int64N(2*p.maxN)
		}
		p.allow(r, charges, n)
	}
}

// allow is a decision, by a lease or by the server.
func (p *simProcess) allow(r *rand.Rand, charges, n int64) {
	states := make([]bucket.State, len(p.buckets))
	p.mu.Lock() // a use is one moment
	if _, _, ok := p.cache.Take(p.subject(), charges*n, states); ok {
		p.leased++
		p.useLocked(charges*n, "from a lease")
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	trip := p.cache.Begin(p.subject(), p.life, charges, n)
	sent := time.Now()
	p.pass(r)
	fails := p.failures > 0 && r.IntN(p.failures) == 0
	if fails && r.IntN(2) == 0 { // before it is decided, or later
		trip.Fail()
		p.cache.Lose()
		return
	}
	found := p.decide(charges, trip.Charges(), n)
	p.pass(r)
	if r.IntN(20) == 0 {
		time.Sleep(time.Duration(r.Int64N(int64(p.life)))) // a busy machine
	}
	if fails {
		trip.Fail()
		p.cache.Lose()
		return
	}
	trip.End(p.subject(), trip.Charges(), found, sent, time.Now())
}

// change gives back, blocks and resets now and then. Some changes fail, and may be made later.
func (p *simProcess) change(r *rand.Rand) {
	for range simCalls / 4 {
		time.Sleep(time.Duration(r.Int64N(int64(8 * p.gap))))
		var do func()
		switch r.IntN(6) {
		case 0:
			do = func() { p.lower(1 << 20) }
		case 1:
			do = func() { p.block(r.Int64N(5)) }
		default:
			do = func() { p.lower(1 + r.Int64N(20)) }
		}
		done := p.cache.Forget(p.subject().Hash)
		p.pass(r)
		if r.IntN(10) == 0 {
			done(true)
			time.Sleep(time.Duration(r.Int64N(int64(failedLife))))
			do()
			continue
		}
		do()
		p.pass(r)
		done(false)
	}
}

// restart makes the server begin anew now and then, without its buckets. All processes see it at
// once. Their tokens are no part of the new server's buckets.
func (s *simulation) restart(r *rand.Rand, caches []*Cache) {
	for range s.restarts {
		time.Sleep(time.Duration(r.Int64N(2 * simCalls * int64(s.gap) / int64(s.restarts))))
		s.mu.Lock()
		s.noteLocked("the server begins anew")
		s.blocked = 0
		for _, c := range caches {
			c.Lose()
		}
		for i := range s.server {
			s.server[i].level, s.server[i].end = 0, 0
			s.reference[i] = s.server[i]
		}
		s.mu.Unlock()
	}
}

// close gives back the unused tokens, a few times: as if the process ended and another one began.
func (p *simProcess) close(r *rand.Rand) {
	for range p.rounds {
		time.Sleep(time.Duration(r.Int64N(2 * simCalls * int64(p.gap) / int64(p.rounds))))
		within := p.latency
		p.mu.Lock()
		all := p.cache.Drain(within)
		p.mu.Unlock()
		for _, u := range all {
			done := p.cache.Forget(u.Hash)
			time.Sleep(time.Duration(r.Int64N(int64(within)+1)) / time.Duration(len(all)))
			p.takeBack(u)
			done(false)
		}
	}
	p.callers.Wait()
}

package fifo

import "sync"

// MaxPlaces is how many callers wait for all names together.
const MaxPlaces = 1 << 14

// Places counts the callers that wait for each name, in whatever queues, and all of them. The zero Places is
// empty. A name without callers takes no memory.
type Places struct {
	mu    sync.Mutex     // guards the following
	taken map[string]int // places of each name
	all   int
}

// Take takes a place of a name, unless most places of the name or [MaxPlaces] of all names are taken.
func (p *Places) Take(name string, most int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == MaxPlaces || p.taken[name] >= most {
		return false
	}
	p.all++
	if p.taken == nil {
		p.taken = map[string]int{}
	}
	p.taken[name]++
	return true
}

// Leave gives a place back.
func (p *Places) Leave(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all--
	if p.taken[name]--; p.taken[name] == 0 {
		delete(p.taken, name)
	}
}

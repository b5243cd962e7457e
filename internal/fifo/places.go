package fifo

import "sync"

// Places counts the callers that wait for each name, in whatever queues. The zero Places is empty. A
// name without callers takes no memory.
type Places struct {
	mu    sync.Mutex
	taken map[string]int // guarded by mu
}

// Take takes a place of a name, unless most places are taken.
func (p *Places) Take(name string, most int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken[name] >= most {
		return false
	}
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
	if p.taken[name]--; p.taken[name] == 0 {
		delete(p.taken, name)
	}
}

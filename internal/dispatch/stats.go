package dispatch

import "maps"

// Stats are the figures of a dispatcher.
type Stats struct {
	Batches, Calls uint64 // sent
	InFlight       int    // batches, those that are overdue among them
	Queued         int    // calls that wait for a batch
	Open           bool   // the breaker
	Transitions    map[Transition]uint64
}

// changed counts a transition of the breaker.
func (s *Stats) changed(to breakerState, reason string) {
	if s.Transitions == nil {
		s.Transitions = map[Transition]uint64{}
	}
	s.Transitions[Transition{to.String(), reason}]++
}

// Stats returns the figures of now.
func (d *Dispatcher) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats
	s.Transitions = maps.Clone(s.Transitions)
	if d.life.ended != ErrClosed {
		s.InFlight, s.Queued, s.Open = d.slots.batches(), d.queue.waiting(), d.breaker.state == open
	}
	return s
}

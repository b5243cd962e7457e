package frontier

import "time"

// outcome is what a design did with the requests of a cell.
type outcome struct {
	admitted []time.Duration // when
	calls    int
}

// decide has a design decide.
func (d design) decide(processes int, requests []request) (found outcome) {
	decider := d.start(processes)
	for _, r := range requests {
		if decider.allow(r) {
			found.admitted = append(found.admitted, r.at)
		}
	}
	found.calls = decider.calls()
	return found
}

// figures are those of a cell.
type figures struct {
	over  float64 // the most admitted beyond the promise, of the limit
	used  float64 // of what could have been admitted
	given float64 // of what could have been admitted without the part of the burst that leases keep
	calls float64 // for a decision
}

// figuresOf judges what was admitted of some requests, where a part of the burst is kept for what processes hold.
func (p promise) figuresOf(o outcome, requests []request, kept int) figures {
	return figures{
		over:  float64(p.over(o.admitted)) / limit,
		used:  float64(len(o.admitted)) / float64(p.ideal(requests, limit)),
		given: float64(len(o.admitted)) / float64(p.ideal(requests, limit-kept)),
		calls: float64(o.calls) / float64(len(requests)),
	}
}

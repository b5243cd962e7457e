package simulation_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit"
)

// In some plans with a cluster, slots migrate all the time and nothing else happens. Then it is
// known what each call was charged in the end. A call on several keys of a slot that migrates may be
// answered TRYAGAIN, and is decided by the failure mode.

// drawMoves makes a plan of moves, now and then.
func (p *simPlan) drawMoves(r *rand.Rand, length time.Duration) {
	if p.nodes == 1 || r.IntN(2) == 0 {
		return
	}
	p.moves, p.timeout, p.faults = true, 300*time.Millisecond, nil // go-redis follows some redirections only after a pause
	shared := r.IntN(2) == 0                                       // so that calls of many clients share a command
	for len(p.keys) < 3 {
		name := fmt.Sprint("client ", len(p.keys))
		if p.calendars != nil {
			name = ginlimit.Key("p", name)
		}
		p.keys = append(p.keys, simKey{name: name, versions: p.keys[0].versions})
	}
	for i := range p.keys {
		if shared {
			p.keys[i].versions = p.keys[0].versions
			for v := range p.keys[i].versions {
				p.keys[i].versions[v] = p.keys[i].versions[v][:1]
			}
		}
	}
	for range 6 + r.IntN(10) {
		p.faults = append(p.faults, simFault{
			kind: pick(r, simMoves...), at: upTo(r, length),
			lasts:   time.Millisecond + upTo(r, pick(r, 20*time.Millisecond, 400*time.Millisecond)),
			process: -1, node: r.IntN(p.nodes), key: r.IntN(len(p.keys)),
		})
	}
	for range 20 + r.IntN(40) {
		process, at := r.IntN(len(p.processes)), upTo(r, length)
		for range 3 + r.IntN(12) {
			p.calls = append(p.calls,
				simCall{process: process, key: r.IntN(len(p.keys)), op: "AllowN", n: 1, at: at + upTo(r, p.latency)})
		}
	}
}

// checkMoves wants each limit to have been charged what was granted, if nothing but moves has
// happened.
func (s *simulation) checkMoves() {
	if !s.plan.moves {
		return
	}
	for _, b := range s.counters() {
		for process := range s.plan.processes {
			charged, least, most := int64(0), int64(0), int64(0)
			for _, a := range s.answers {
				if a.process != process || a.key != b.key {
					continue
				}
				known, upTo := s.charge(a)
				decided := a.result.Source != ginlimit.FromLocal && a.result.Source != ginlimit.FromOpen
				if a.op != "Wait" && a.decides() && decided { // by Redis: else what it was asked for may still be charged
					upTo = known
				}
				least, most = least+known, most+upTo
			}
			for _, e := range s.server.executions {
				if e.process == process && e.key == b.key && slices.Contains(e.limits, b.limit) {
					if charged += e.granted; e.verb == "return" {
						charged -= e.n
					}
				}
			}
			if charged < least || charged > most {
				s.violated("guarantee 2: process %d was granted %d tokens of %s in all, at most %d, and was "+
					"charged %d", process, least, s.server.name(b), most, charged)
			}
		}
	}
}

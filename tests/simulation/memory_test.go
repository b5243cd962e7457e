package simulation_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit"
)

// In an eighth of the seeds memory is small, and strangers come: clients that nobody has seen
// before, and more of them than a process has memory for. The server does what they ask without a
// check. Guarantee 7: what a process keeps stays within its bounds.
const (
	simLocalBuckets = 32 // the fewest that a process keeps
	simStrangers    = 120
	simStranger     = "stranger"
	// simKeyBuckets is how many buckets of its own a key that is decided on may leave beyond the
	// bound, as they are spared.
	simKeyBuckets = 10
)

// simStrangersLimit is one that no other client has: they share no command with others.
var simStrangersLimit = ginlimit.Limit{Rate: 1, Period: 59 * time.Second}

// drawStrangers has memory be small.
func (p *simPlan) drawStrangers(r *rand.Rand, length time.Duration) {
	if r.IntN(8) > 0 {
		return
	}
	p.strangers = append(p.strangers, upTo(r, length))
	for _, f := range p.faults {
		if f.hard() {
			p.strangers = append(p.strangers, f.at+f.lasts/2)
		}
	}
	for i := range p.processes {
		entries := 4 << r.IntN(4)
		p.processes[i].denyOrNil = &entries
	}
}

// visit has strangers ask a process, twice each.
func (s *simulation) visit(process, crowd int) {
	for i := range simStrangers {
		s.calls.Go(func() {
			defer s.tellPanic()
			for range 2 {
				_, _ = s.members[process].limiter.Allow(context.Background(),
					fmt.Sprint(simStranger, crowd, " ", i), simStrangersLimit)
			}
			s.checkMemory(process)
		})
	}
}

// ofStrangers reports whether a call declares keys of strangers.
func ofStrangers(args []string) bool {
	return slices.ContainsFunc(declared(args), func(key string) bool { return strings.Contains(key, simStranger) })
}

// checkMemory is guarantee 7.
func (s *simulation) checkMemory(process int) {
	if s.plan.strangers == nil {
		return
	}
	stats, entries := s.members[process].limiter.Stats(), *s.plan.processes[process].denyOrNil
	if most := simLocalBuckets + simKeyBuckets*len(s.plan.keys); stats.LocalBuckets > most {
		s.violated("guarantee 7: process %d keeps %d buckets, and is to keep %d", process, stats.LocalBuckets, most)
	}
	if stats.Remembered > entries {
		s.violated("guarantee 7: process %d remembers %d denials, and is to remember %d", process, stats.Remembered, entries)
	}
}

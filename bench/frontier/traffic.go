package frontier

import (
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	limit  = 1000        // requests
	window = time.Second // in which they may come, and the time in which a bucket of as many fills
)

// request is one for the only key.
type request struct {
	at      time.Duration
	process int
}

// split is how uneven processes are.
type split int

const (
	even  split = iota
	most        // one process has nine of ten requests
	moves       // another one has them in each second
)

func (s split) String() string { return [...]string{"even", "one busy", "busy moves"}[s] }

// shape is how requests come.
type shape int

const (
	steady shape = iota // half more than the limit, at random times
	bursts              // a tenth of each second ten times the limit, and else nothing
	waves               // two seconds a third of the limit, two seconds three times as many
)

func (s shape) String() string { return [...]string{"steady", "bursts", "waves"}[s] }

// perSecond returns how many requests come in a second at a time.
func (s shape) perSecond(at time.Duration) float64 {
	switch {
	case s == steady:
		return 1.5 * limit
	case s == bursts && at%time.Second < time.Second/10:
		return 10 * limit
	case s == bursts:
		return 0
	case at%(4*time.Second) < 2*time.Second:
		return limit / 3.
	}
	return 3 * limit
}

// cell is a situation of the table.
type cell struct {
	processes int
	split     split
	shape     shape
}

func (c cell) String() string {
	return fmt.Sprintf("%d processes, %s, %s", c.processes, c.split, c.shape)
}

// cells returns all.
func cells() (all []cell) {
	for _, processes := range []int{2, 10, 100} {
		for _, sp := range []split{even, most, moves} {
			for _, sh := range []shape{steady, bursts, waves} {
				all = append(all, cell{processes, sp, sh})
			}
		}
	}
	return all
}

// traffic returns the requests of some seconds, as a Poisson process whose rate changes.
func (c cell) traffic(length time.Duration, seed uint64) (all []request) {
	random := rand.New(rand.NewPCG(seed, 1))
	const highest = 10 * limit
	for at := time.Duration(0); ; {
		at += time.Duration(random.ExpFloat64() / highest * float64(time.Second))
		if at >= length {
			return all
		}
		if random.Float64() < c.shape.perSecond(at)/highest {
			all = append(all, request{at, c.process(at, random)})
		}
	}
}

// process draws the process of a request.
func (c cell) process(at time.Duration, random *rand.Rand) int {
	if c.split == even || random.IntN(10) == 0 {
		return random.IntN(c.processes)
	}
	if c.split == most {
		return 0
	}
	return int(at/time.Second) % c.processes
}

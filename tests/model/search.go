package model

import (
	"fmt"
	"hash/maphash"
	"time"
)

// A System has states, and steps from each to others.
type System[S any] interface {
	Initial() S
	Steps(s *S, next func(Step, S)) // all that may happen in a state
	Broken(s *S) string             // what must not be in a state, or ""
	Key(s *S, key []byte) []byte    // appends a text that only equivalent states share
	Describe(s *S) string
}

// A Step is something that happens.
type Step struct {
	Format string
	Args   [3]int16
	Count  int // of the arguments
}

// step returns a Step.
func step(format string, args ...int16) (s Step) {
	s.Format, s.Count = format, copy(s.Args[:], args)
	return s
}

func (s Step) String() string {
	var args []any
	for _, n := range s.Args[:s.Count] {
		args = append(args, n)
	}
	return fmt.Sprintf(s.Format, args...)
}

// Found is what a search has found.
type Found struct {
	States, Steps, Depth int
	Whole                bool // every reachable state was visited
	Took                 time.Duration
	Broken               string   // what must not be; "" is nothing
	Trace                []string // the shortest way there
}

func (f Found) String() string {
	return fmt.Sprintf("%d states, %d steps, %d deep, in %s", f.States, f.Steps, f.Depth, f.Took.Round(time.Millisecond))
}

// fingerprint stands for a state: of 10⁹ states, two have the same with a probability of 10⁻²⁰.
type fingerprint [2]uint64

// searcher visits the states of a system.
type searcher[S any] struct {
	System[S]
	seeds [2]maphash.Seed
	key   []byte
	state S                           // a copy: what a function has a pointer to is allocated
	from  map[fingerprint]fingerprint // the state before each that was visited
}

func (r *searcher[S]) print(s *S) fingerprint {
	r.key = r.Key(s, r.key[:0])
	return fingerprint{maphash.Bytes(r.seeds[0], r.key), maphash.Bytes(r.seeds[1], r.key)}
}

// Search visits every reachable state, the nearest first, until one is broken. It gives up once it has visited more
// than most.
func Search[S any](system System[S], most int) (f Found) {
	start := time.Now()
	r := searcher[S]{System: system, from: map[fingerprint]fingerprint{}}
	r.seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	first := r.Initial()
	r.from[r.print(&first)] = fingerprint{}
	level, broken := []S{first}, (*S)(nil)
	for ; len(level) > 0 && broken == nil && len(r.from) <= most; f.Depth++ {
		var further []S
		for i := range level {
			here := r.print(&level[i])
			r.Steps(&level[i], func(_ Step, s S) {
				f.Steps++
				r.state = s
				there := r.print(&r.state)
				if _, known := r.from[there]; known || broken != nil {
					return
				}
				if r.from[there] = here; r.Broken(&r.state) != "" {
					broken = new(S)
					*broken = s
				}
				further = append(further, s)
			})
		}
		level = further
	}
	f.States, f.Whole = len(r.from), len(level) == 0
	if broken != nil {
		f.Broken = r.Broken(broken)
		f.Trace = r.trace(r.print(broken))
	}
	f.Took = time.Since(start)
	return f
}

// trace returns the steps from the first state to one that was visited. It takes them again, as a visited state may
// have its processes in another order.
func (r *searcher[S]) trace(last fingerprint) (lines []string) {
	var way []fingerprint
	for at := last; at != (fingerprint{}); at = r.from[at] {
		way = append(way, at)
	}
	s := r.Initial()
	for i := len(way) - 2; i >= 0; i-- {
		taken := false
		from := s
		r.Steps(&from, func(step Step, next S) {
			if !taken && r.print(&next) == way[i] {
				taken, s = true, next
				lines = append(lines, fmt.Sprintf("%3d. %-60s %s", len(way)-1-i, step, r.Describe(&s)))
			}
		})
	}
	return lines
}

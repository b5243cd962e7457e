package integration

import (
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// told is a request, and what its callers were told of it.
type told struct {
	process          int
	called, returned int64
	parts            []part
	allowed, failed  bool
	cancels          bool // it gives back what an earlier request took
}

// part is a policy of a request.
type part struct {
	policy, n int
	client    string
	denies    bool
	remaining int // if it was told
}

// step is what happens to a bucket at one moment.
type step struct {
	part
	kind stepKind
	of   int // the request
}

type stepKind uint8

const (
	takes     stepKind = iota
	denies             // as there are too few
	borrows            // takes what givesBack of the same request gives back
	givesBack          // as a cancellation does
	mayTake            // from now on, and give back after that
	mayGive            // what was taken before, from now on
	looks
)

// level is how many tokens are taken of a bucket, which requests will give some back, and how many requests may take,
// or give back, n tokens at any time.
type level struct {
	taken    int
	borrowed string
	takes    [maxTokens + 1]int
	gives    [maxTokens + 1]int
}

const maxTokens = 4

// later returns what a level may have become since.
func (l level) later(burst int) (all []level) {
	seen := map[level]bool{l: true}
	all = append(all, l)
	for i := 0; i < len(all); i++ {
		for n := 1; n <= maxTokens; n++ {
			if next := all[i]; next.takes[n] > 0 && next.taken+n <= burst {
				next.takes[n], next.gives[n], next.taken = next.takes[n]-1, next.gives[n]+1, next.taken+n
				if !seen[next] {
					seen[next], all = true, append(all, next)
				}
			}
			if next := all[i]; next.gives[n] > 0 {
				next.gives[n], next.taken = next.gives[n]-1, next.taken-n
				if !seen[next] {
					seen[next], all = true, append(all, next)
				}
			}
		}
	}
	return all
}

// after returns the level after a step, if that is possible.
func (l level) after(s step, burst int) (level, bool) {
	room, id := burst-l.taken, fmt.Sprint(" ", s.of, " ")
	switch s.kind {
	case takes:
		l.taken += s.n
		return l, s.n <= room && s.remaining == room-s.n
	case denies:
		return l, s.n > room && s.remaining == room
	case looks:
		return l, s.remaining == room
	case borrows:
		l.taken, l.borrowed = l.taken+s.n, l.borrowed+id
		return l, s.n <= room
	case mayTake:
		l.takes[s.n]++
	case mayGive:
		l.gives[s.n]++
	case givesBack:
		l.taken -= s.n
		if s.of < 0 {
			return l, true
		}
		before := l.borrowed
		l.borrowed = strings.Replace(before, id, "", 1)
		return l, l.borrowed != before
	}
	return l, true
}

// bucketOfSeveral is the model of a bucket.
func bucketOfSeveral(limits []ginlimit.Limit) porcupine.Model {
	return (&porcupine.NondeterministicModel{
		Init: func() []any { return []any{level{}} },
		Step: func(state, input, _ any) (next []any) {
			s := input.(step)
			burst := burst(limits[s.policy])
			for _, l := range state.(level).later(burst) {
				if after, possible := l.after(s, burst); possible {
					next = append(next, after)
				}
			}
			return next
		},
		DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
	}).ToModel()
}

func burst(l ginlimit.Limit) int { return int(testkit.Burst(l)) }

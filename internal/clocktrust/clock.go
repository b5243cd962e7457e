// Package clocktrust finds out whether Redis' clock runs at the pace of this process' clock.
package clocktrust

import (
	"sync/atomic"
	"time"
)

const (
	// minElapsed is the shortest observation that can show that Redis' clock runs.
	minElapsed = 3 * time.Millisecond
	// maxScore is the score after enough observations at the right pace. Two jumps end the trust.
	maxScore = 4
	// minMoves is how many partial moves count as one observation at the right pace.
	minMoves = 8
)

// Clock rates Redis' clock. Unless New trusts it, it is trusted once it was observed at the right
// pace more often than it jumped: tests may set a server's clock. An observation is a lower bound
// of how far the clock moved. It may be only a part, because other callers charge the same bucket.
// A slow clock is harmless.
type Clock struct {
	always bool
	score  atomic.Int32 // trusted if above 0
	moves  atomic.Int32 // partial moves since the last jump
	jumps  atomic.Uint64
}

// New returns a clock that is trusted from the start or not yet.
func New(trusted bool) *Clock {
	c := new(Clock)
	if trusted {
		c.Trust()
	}
	return c
}

// Trust has the clock trusted from the start.
func (c *Clock) Trust() {
	c.always = true
	c.score.Store(maxScore)
}

// Always reports whether the clock was trusted from the start, so that nobody needs to observe it.
func (c *Clock) Always() bool { return c.always }

// Trusted reports whether Redis' clock runs at the pace of this process' clock.
func (c *Clock) Trusted() bool { return c.score.Load() > 0 }

// Jumps returns how often the clock moved too far.
func (c *Clock) Jumps() uint64 { return c.jumps.Load() }

// Observe records that Redis' clock moved by at least moved milliseconds, while between shortest
// and longest passed here. It returns false if too little time passed to judge.
func (c *Clock) Observe(moved int64, shortest, longest time.Duration) (useful bool) {
	score := c.score.Load()
	switch {
	case shortest < 0: // both calls were in flight at once: Redis may have decided the later one first
		return false
	case moved > longest.Milliseconds()+2:
		c.score.CompareAndSwap(score, max(-2, score-2))
		c.moves.Store(0)
		c.jumps.Add(1)
		return true
	case shortest < minElapsed:
		return false
	case moved >= shortest.Milliseconds()-1, moved > 0 && c.moves.Add(1)%minMoves == 0:
		c.score.CompareAndSwap(score, min(maxScore, score+1))
	}
	return true
}

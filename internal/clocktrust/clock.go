// Package clocktrust learns whether the clock of Redis runs like that of this process.
package clocktrust

import (
	"sync/atomic"
	"time"
)

const (
	// minWatch is for how long Redis' clock is watched at least to learn that it runs.
	minWatch = 3 * time.Millisecond
	// maxScore is how many times that it ran as it should outweigh one that it did not, twice.
	maxScore = 4
	// minMoves is how often it was seen to move at all without being set that outweighs as much as
	// the whole pace once.
	minMoves = 8
)

// Clock is what is known of the clock of Redis. Unless it is trusted from the start, it is not
// trusted until it was seen more often to run than to be faster than this process' clock, as tests
// may set the clock of a server. What is seen is how far it moved at least: the whole pace, or now
// and then a part of it, as others charge the same bucket. A slow clock is harmless.
type Clock struct {
	always bool
	score  atomic.Int32 // above 0: trusted
	moves  atomic.Int32 // how often it moved, since it was set
	jumps  atomic.Uint64
}

// New returns a clock, trusted from the start or not yet.
func New(trusted bool) *Clock {
	c := &Clock{always: trusted}
	if trusted {
		c.score.Store(maxScore)
	}
	return c
}

// Always reports whether the clock was trusted from the start, and need not be watched.
func (c *Clock) Always() bool { return c.always }

// Trusted reports whether the clock is taken to run like that of this process.
func (c *Clock) Trusted() bool { return c.score.Load() > 0 }

// Jumps returns how often the clock was seen to move too far.
func (c *Clock) Jumps() uint64 { return c.jumps.Load() }

// Saw learns that Redis' clock moved by so many milliseconds at least, while between shortest and
// longest passed here. Useful says that it moved too far, or that there was enough time to tell.
func (c *Clock) Saw(moved int64, shortest, longest time.Duration) (useful bool) {
	score := c.score.Load()
	switch {
	case moved > longest.Milliseconds()+2:
		c.score.CompareAndSwap(score, max(-2, score-2))
		c.moves.Store(0)
		c.jumps.Add(1)
		return true
	case shortest < minWatch:
		return false
	case moved >= shortest.Milliseconds()-1, moved > 0 && c.moves.Add(1)%minMoves == 0:
		c.score.CompareAndSwap(score, min(maxScore, score+1))
	}
	return true
}

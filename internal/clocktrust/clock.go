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
)

// Clock is what is known of the clock of Redis. Unless it is trusted from the start, it is not trusted until it was seen
// more often to run at the pace of this process' clock than faster, as tests may set the clock of a server.
type Clock struct {
	always bool
	score  atomic.Int32 // above 0: trusted
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

// Saw learns that Redis' clock moved by so many milliseconds at least, while between shortest and longest passed here.
// Fast says that it moved too far, useful that there was enough time to tell.
func (c *Clock) Saw(moved int64, shortest, longest time.Duration) (fast, useful bool) {
	score := c.score.Load()
	switch {
	case moved > longest.Milliseconds()+2:
		c.score.CompareAndSwap(score, max(-2, score-2))
		return true, true
	case shortest < minWatch:
		return false, false
	case moved >= shortest.Milliseconds()-1:
		c.score.CompareAndSwap(score, min(maxScore, score+1))
	}
	return false, true
}

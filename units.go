package ginlimit

import (
	"fmt"
	"math"
	"time"
)

// maxUnits is 2^53 - 1: up to here a Lua number is an exact integer.
const maxUnits = 1<<53 - 1

// never is the RetryAfter of what no waiting makes allowed.
const never time.Duration = -1

// bucket is a counted Limit in the integers of script.lua, or of window.lua.
//
// With p the period in milliseconds and g = gcd(Rate, p), a token weighs p/g units and Rate/g units
// flow back per millisecond, so nothing is ever rounded. The level of a bucket is how many units it
// is short of full.
//
// A window is a bucket to which nothing flows back: a token weighs one unit, and comes back all at once.
type bucket struct {
	limit     Limit // as it was given
	algorithm Algorithm
	id        string  // the last part of its key: the period's text, and of a window what it is
	burst     int64   // tokens the bucket holds
	cost      int64   // units a token weighs
	drain     int64   // units that flow back per millisecond
	capacity  int64   // units the bucket holds
	period    int64   // milliseconds
	policy    *policy // how it is told of; nil outside a handler
	owes      bool    // a charge of more than it holds is taken when it is full
	args      [3]any  // drain, cost and capacity, as script.lua takes them; period and limit for window.lua
}

// state is what a store finds of a bucket.
type state struct {
	level int64 // units it is short of full

	// Of a window, in milliseconds:
	soon  int64 // until it has more tokens than after the charge
	wait  int64 // until a further charge of so many tokens fits
	reset int64 // until it is full
}

// newBucket returns the bucket of a limit whose Rate and Period are positive and Burst not negative.
func newBucket(a Algorithm, l Limit) (bucket, error) {
	b := bucket{limit: l, algorithm: a, id: periodText(l.Period), burst: int64(l.burst()), period: l.Period.Milliseconds()}
	if a == TokenBucket {
		g := gcd(int64(l.Rate), b.period)
		b.cost, b.drain = b.period/g, int64(l.Rate)/g
	} else {
		b.cost, b.id = 1, b.id+windowIDs[a]
	}
	if b.burst > maxUnits/b.cost || b.burst*b.cost > maxUnits-b.drain || a == SlidingWindow && b.burst > maxLogged {
		return bucket{}, fmt.Errorf("%w: %s is too large to be counted exactly", ErrInvalidLimit, l)
	}
	b.capacity = b.burst * b.cost
	if a == TokenBucket {
		b.args = [3]any{b.drain, b.cost, b.capacity}
	} else {
		b.args = [3]any{b.period, b.capacity}
	}
	return b, nil
}

// charge returns the units that n tokens weigh, more than any level leaves room for if the
// bucket never holds so many.
func (b *bucket) charge(n int64) int64 {
	switch most := maxUnits - b.drain - b.capacity; {
	case n <= b.burst:
		return n * b.cost
	case !b.owes:
		return b.capacity + 1
	case n > most/b.cost:
		return max(b.capacity, most) // as many as can be counted on top of what is missing
	default:
		return n * b.cost
	}
}

// room returns how far below its capacity a bucket must be for a charge of n tokens.
func (b *bucket) room(n int64) int64 {
	if b.owes {
		return min(n, b.burst) * b.cost
	}
	return b.charge(n)
}

// fit returns how many of the charges, each of n tokens, the level found leaves room for.
func (b *bucket) fit(level, charges, n int64) int64 {
	if level >= b.capacity {
		return 0
	}
	return min(charges, (b.capacity-level)/b.room(n))
}

// charged returns the state after so many charges of n tokens, of which there is at least one.
func (b *bucket) charged(s state, charges, n int64) state {
	s.level += charges * b.charge(n)
	if end := b.period + b.owed(n); b.algorithm == SlidingWindow {
		s.reset = max(s.reset, end)
	} else if s.reset == 0 {
		s.reset = end
	}
	if s.soon == 0 {
		s.soon = b.period
	}
	return s
}

// owed returns for how many milliseconds longer than others a charge of n tokens counts in a window that never holds
// so many.
func (b *bucket) owed(n int64) int64 {
	if n <= b.burst || !b.owes {
		return 0
	}
	return min(ceilDiv(n, b.burst)-1, maxUnits/b.period-1) * b.period
}

// remaining returns the whole tokens left at a level.
func (b *bucket) remaining(level int64) int {
	return int(max(0, b.capacity-level) / b.cost)
}

// retryAfter returns how long until a charge of n tokens fits, 0 if it does, and never if the
// bucket never holds so many.
func (b *bucket) retryAfter(s state, n int64) time.Duration {
	switch {
	case n > b.burst && !b.owes:
		return never
	case b.algorithm != TokenBucket:
		return millis(s.wait)
	}
	return b.flow(s.level + b.room(n) - b.capacity)
}

// resetAfter returns how long until the bucket is full.
func (b *bucket) resetAfter(s state) time.Duration {
	if b.algorithm != TokenBucket {
		return millis(s.reset)
	}
	return b.flow(s.level)
}

// moreAfter returns how long until the bucket has another whole token, 0 if it is full.
func (b *bucket) moreAfter(s state) time.Duration {
	if b.algorithm != TokenBucket {
		return millis(s.soon)
	}
	return b.flow(s.level - (b.capacity - min(int64(b.remaining(s.level))+1, b.burst)*b.cost))
}

// spread returns in how long the bucket regains all that it holds.
func (b *bucket) spread() time.Duration {
	if b.algorithm != TokenBucket {
		return millis(b.period)
	}
	return b.flow(b.capacity)
}

// passed returns the state after so many milliseconds without a charge. Of a window it keeps the tokens taken.
func (b *bucket) passed(s state, ms int64) state {
	s.level = max(0, s.level-b.drain*ms)
	s.soon, s.wait, s.reset = max(0, s.soon-ms), max(0, s.wait-ms), max(0, s.reset-ms)
	if b.algorithm != TokenBucket && s.reset == 0 {
		s.level = 0
	}
	return s
}

// refuses reports whether a bucket that refused a charge of n tokens in a state does so still after so many
// milliseconds.
func (b *bucket) refuses(s state, ms, n int64) bool {
	if b.algorithm != TokenBucket {
		return s.wait > ms
	}
	return b.fit(s.level-b.drain*ms, 1, n) == 0
}

// full returns in how many milliseconds the bucket is full.
func (b *bucket) full(s state) int64 {
	if b.algorithm != TokenBucket {
		return s.reset
	}
	return s.level / b.drain
}

// flow returns how long it takes until so many units have flowed back, in whole milliseconds.
func (b *bucket) flow(units int64) time.Duration {
	if units <= 0 {
		return 0
	}
	return millis(ceilDiv(units, b.drain))
}

// blockLevel returns the lowest level from which not one token is to be had for d.
func (b *bucket) blockLevel(d time.Duration) (int64, error) {
	if longest := b.longestBlock(); ceilDiv(int64(d), int64(time.Millisecond)) > longest {
		return 0, fmt.Errorf("%w: a block of %s is too long under %s: at most %s", ErrInvalidLimit, d, b.limit, millis(longest))
	}
	return b.blockLevelUpTo(d), nil
}

// blockLevelUpTo is blockLevel for d or the longest time that a bucket can be blocked for.
func (b *bucket) blockLevelUpTo(d time.Duration) int64 {
	return b.capacity - b.cost + min(ceilDiv(int64(d), int64(time.Millisecond)), b.longestBlock())*b.drain
}

// longestBlock returns for how many milliseconds the bucket can be blocked.
func (b *bucket) longestBlock() int64 {
	if b.algorithm != TokenBucket {
		return maxUnits // longer than any Duration
	}
	return (maxUnits - b.drain - b.capacity) / b.drain
}

// shareOf returns the bucket of one of so many processes that share the limit evenly: Rate and Burst divided by
// their number, rounded down, but at least 1. It is told of as the whole limit.
func (b *bucket) shareOf(replicas int) bucket {
	part := Limit{Rate: max(1, b.limit.Rate/replicas), Period: b.limit.Period, Burst: max(1, int(b.burst)/replicas)}
	if b.algorithm != TokenBucket {
		part.Burst = 0
	}
	share, err := newBucket(b.algorithm, part)
	if err != nil { // a divided rate may need units too small: then it is divided a little more
		if rate, period := int64(part.Rate), part.Period.Milliseconds(); rate >= period {
			part.Rate -= int(rate % period) // a whole number of tokens per millisecond
		} else {
			part.Burst = int(min(int64(part.Burst), maxUnits/2/period))
		}
		share, _ = newBucket(b.algorithm, part) // it fits now
	}
	share.limit, share.policy, share.owes = b.limit, b.policy, true
	return share
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// ceilDiv divides two positive numbers and rounds up.
func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 {
		q++
	}
	return q
}

// millis returns ms milliseconds, or the longest Duration there is.
func millis(ms int64) time.Duration {
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(ms) * time.Millisecond
}

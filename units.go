package ginlimit

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// maxUnits is 2^53 - 1: up to here a Lua number is an exact integer.
const maxUnits = 1<<53 - 1

// never is the RetryAfter of what no waiting makes allowed.
const never time.Duration = -1

// bucket is a counted Limit in the integers of script.lua.
//
// With p the period in milliseconds and g = gcd(Rate, p), a token weighs p/g units and Rate/g units
// flow back per millisecond, so nothing is ever rounded. The level of a bucket is how many units it
// is short of full.
type bucket struct {
	limit    Limit  // as it was given
	period   string // the period's text, the last part of its key
	burst    int64  // tokens the bucket holds
	cost     int64  // units a token weighs
	drain    int64  // units that flow back per millisecond
	capacity int64  // units the bucket holds
}

// newBucket returns the bucket of a limit whose Rate and Period are positive and Burst not negative.
func newBucket(l Limit) (bucket, error) {
	period := l.Period.Milliseconds()
	g := gcd(int64(l.Rate), period)
	b := bucket{limit: l, period: periodText(l.Period), burst: int64(l.burst()), cost: period / g, drain: int64(l.Rate) / g}
	if b.burst > maxUnits/b.cost || b.burst*b.cost > maxUnits-b.drain {
		return bucket{}, fmt.Errorf("%w: %s is too large to be counted exactly", ErrInvalidLimit, l)
	}
	b.capacity = b.burst * b.cost
	return b, nil
}

// charge returns the units that weight tokens weigh, more than any level leaves room for if the
// bucket never holds so many.
func (b *bucket) charge(weight int64) int64 {
	if weight > b.burst {
		return b.capacity + 1
	}
	return weight * b.cost
}

// fit returns how many of the charges, each of weight tokens, the level found leaves room for.
func (b *bucket) fit(level, charges, weight int64) int64 {
	if level >= b.capacity {
		return 0
	}
	return min(charges, (b.capacity-level)/b.charge(weight))
}

// remaining returns the whole tokens left at a level.
func (b *bucket) remaining(level int64) int {
	return int(max(0, b.capacity-level) / b.cost)
}

// retryAfter returns how long until a charge of weight tokens fits, 0 if it does, and never if the
// bucket never holds so many.
func (b *bucket) retryAfter(level, weight int64) time.Duration {
	if weight > b.burst {
		return never
	}
	return b.flow(level + b.charge(weight) - b.capacity)
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
	ms := ceilDiv(int64(d), int64(time.Millisecond))
	longest := (maxUnits - b.drain - b.capacity) / b.drain
	if ms > longest {
		return 0, fmt.Errorf("%w: a block of %s is too long under %s: at most %s", ErrInvalidLimit, d, b.limit, millis(longest))
	}
	return b.capacity - b.cost + ms*b.drain, nil
}

// rules are the limits of one decision, checked and sorted by what deciding on them takes.
type rules struct {
	buckets    []bucket // the limits that are counted
	unlimited  Limit    // one that is never counted, where there is one
	prohibited Limit    // one that always denies, where denies is set
	denies     bool
}

// newRules checks limits and reports every fault in them.
func newRules(limits ...Limit) (rules, error) {
	var r rules
	if len(limits) == 0 {
		return r, fmt.Errorf("%w: no limit given", ErrInvalidLimit)
	}
	var faults []error
	for i, l := range limits {
		if err := l.validate(); err != nil {
			faults = append(faults, err)
			continue
		}
		switch {
		case l.Rate < 0:
			r.unlimited = l
			continue
		case l.Rate == 0:
			r.prohibited, r.denies = l, true
			continue
		}
		b, err := newBucket(l)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		r.buckets = append(r.buckets, b)
		for _, other := range limits[:i] {
			if other.Period == l.Period && other.Rate > 0 {
				faults = append(faults, fmt.Errorf("%w: %s and %s have the same period", ErrInvalidLimit, other, l))
				break
			}
		}
	}
	return r, errors.Join(faults...)
}

// burst returns the most tokens that one decision can ever take.
func (r *rules) burst() int64 {
	least := int64(math.MaxInt64)
	for i := range r.buckets {
		least = min(least, r.buckets[i].burst)
	}
	return least
}

// settled returns the Result that needs no bucket, if there is one, for a wish for n tokens.
func (r *rules) settled(n int) (Result, bool) {
	switch {
	case r.denies:
		return Result{Limit: r.prohibited, RetryAfter: never, Source: FromPolicy}, true
	case len(r.buckets) == 0:
		return Result{Allowed: true, Granted: n, Limit: r.unlimited, Remaining: math.MaxInt, Source: FromPolicy}, true
	}
	return Result{}, false
}

// result derives the Result of a wish for up to so many charges of weight tokens from the levels
// that the store found, by the arithmetic by which the store decided.
func (r *rules) result(levels []int64, charges, weight int64) Result {
	granted, allowed := charges, true
	for i := range r.buckets {
		granted = r.buckets[i].fit(levels[i], granted, weight)
		allowed = allowed && r.buckets[i].fit(levels[i], 1, weight) == 1
	}
	var closest Result
	for i := range r.buckets {
		b := &r.buckets[i]
		after := levels[i]
		if granted > 0 {
			after += granted * b.charge(weight)
		}
		this := Result{
			Allowed:    allowed,
			Granted:    int(granted * weight),
			Limit:      b.limit,
			Remaining:  b.remaining(after),
			ResetAfter: b.flow(after),
		}
		if !allowed {
			this.RetryAfter = b.retryAfter(levels[i], weight)
		}
		if i == 0 || this.closerThan(closest) {
			closest = this
		}
	}
	return closest
}

// closerThan reports whether r is closer to exhaustion than s: of two refusals the one that lasts
// longer, else the one with fewer tokens left, else the one that is full later.
func (r Result) closerThan(s Result) bool {
	// As unsigned numbers, never is the longest wait.
	if wait, other := uint64(r.RetryAfter), uint64(s.RetryAfter); wait != other {
		return wait > other
	}
	if r.Remaining != s.Remaining {
		return r.Remaining < s.Remaining
	}
	return r.ResetAfter > s.ResetAfter
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

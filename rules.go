package ginlimit

import (
	"errors"
	"fmt"
	"math"
)

// rules are the limits of one decision, checked and sorted by what deciding on them takes.
type rules struct {
	buckets    []bucket // the limits that are counted
	unlimited  Limit    // one that is never counted, where there is one
	prohibited Limit    // one that always denies, where denies is set
	denies     bool
	policy     *policy // how prohibited is told of; nil outside a handler
	policies   string  // how all limits are, in RateLimit-Policy
	failure    Failure // where the store does not decide
	share      *rules  // one process' share of the limits, if it was worked out
}

// newRules checks limits and reports every fault in them.
func newRules(a Algorithm, limits ...Limit) (rules, error) {
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
		if a != TokenBucket && l.burst() != l.Rate {
			faults = append(faults, fmt.Errorf("%w: %s: a %s has no burst of its own", ErrInvalidLimit, l, a))
			continue
		}
		b, err := newBucket(a, l)
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

// shareOf returns the rules of one of so many processes that share the limits evenly.
func (r *rules) shareOf(replicas int) *rules {
	if replicas <= 1 { // of a limiter without Redis too
		return r
	}
	if r.share != nil {
		return r.share
	}
	share := &rules{buckets: make([]bucket, len(r.buckets))}
	for i := range r.buckets {
		share.buckets[i] = r.buckets[i].shareOf(replicas)
	}
	return share
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

// result derives the Result of a wish for up to so many charges of n tokens from the states
// that the store found, by the arithmetic by which the store decided. It adds to what the client is told of
// each limit, if that is wanted.
func (r *rules) result(states []state, charges, n int64, told *standings) Result {
	granted, allowed := charges, true
	for i := range r.buckets {
		granted = r.buckets[i].fit(states[i].level, granted, n)
		allowed = allowed && r.buckets[i].fit(states[i].level, 1, n) == 1
	}
	var closest Result
	for i := range r.buckets {
		b := &r.buckets[i]
		after := states[i]
		if granted > 0 {
			after = b.charged(after, granted, n)
		}
		this := Result{
			Allowed:    allowed,
			Granted:    int(granted * n),
			Limit:      b.limit,
			Remaining:  b.remaining(after.level),
			ResetAfter: b.resetAfter(after),
		}
		if !allowed {
			this.RetryAfter = b.retryAfter(after, n)
		}
		if i == 0 || this.closerThan(closest) {
			closest = this
		}
		told.add(b, states[i], after, n)
	}
	return closest
}

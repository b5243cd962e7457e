// Package lease admits requests from tokens that this process has taken ahead, and never admits
// more than the limit.
//
// # What a lease is
//
// A call to Redis may take more tokens than its caller wants. They are charged like any others, and
// this process may then admit requests from them without calling Redis. That alone would admit too
// much. The bucket refills while tokens are held, so they would be used on top of a full bucket.
//
// # The rule
//
// For each key with a lease, a process keeps own: a lower bound, in units, of its own charges that
// are still in the bucket. Each charge of the process raises own, whether its tokens are used or
// leased. The drain, the units that flow back per millisecond, lowers own from the time at which
// the charge was sent. Let u be the leased tokens that are not used yet, and cost the units of one
// token. At any time only as many may be used as satisfy
//
//	u × cost ≤ own
//
// Tokens beyond that are void: they have flowed back already. With several limits, each must
// satisfy the rule.
//
// # Why it is enough
//
// A level is the sum of the charges that have not flowed back. Let the oldest charges flow back
// first. Then each charge is a section of the level. The sections of one process sum up to at least
// its own, because at worst everything that flows back comes out of them. So the own of all
// processes together is at most the level, which never exceeds the capacity.
//
// Let used be the level of a second bucket, which is charged with each token when it is used, and
// has the same drain. At any time, used + the sum of all u × cost ≤ level. A charge raises both
// sides equally. A use moves a token from u to used. While used is above 0, both sides drain
// equally. When used is 0, u × cost ≤ own for each process is enough. So used never exceeds the
// capacity either: over any span of time t, at most burst + rate × t tokens are used.
//
// The rule holds whatever others do to the level, as long as they remove no more than their own
// charges that are still in it. So a process that ends may give back its unused tokens that are not
// void. (The level after a charge would be another bound, which voids less. But then one process
// could give back tokens that another counts on.)
//
// A call for more tokens than the process holds takes all of them from Redis, so that one script
// charges them, all or none. The held tokens stay for later calls. Using them and requesting only
// the rest would need a give-back if Redis denied, and the held tokens may be void by the time of
// its answer.
//
// Times are rounded up to Redis' milliseconds, and by a thousandth in case Redis' clock is slightly
// faster. A fixed window has no drain: its tokens come back all at once, and its leases end with
// it. A sliding window has no leases, because its tokens count from the moment of use.
//
// A Reset, Refund or Block of this process voids the leases of its key, and no lease is made until
// it is done. After two of them within a few seconds, no tokens are taken ahead for as long,
// because void tokens are lost to others. A Reset or Block of another process, or its Refund of
// tokens that had already flowed back, shows at the next call to Redis, because own never exceeds
// the level found. Without such a call, it shows when the lease's life ends. Until then, as many
// more tokens may be used as were given back.
//
// The rule does not cover two cases. Redis may make a change after this process has given it up: a
// give-back of Close on a connection that hangs for longer than twice the timeout, or a Refund that
// Redis makes more than a second after it failed. And a process may be suspended, so that its clock
// stands still.
package lease

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// lease is a process's lease of a key. Only left changes.
type lease struct {
	// of each bucket: the least units of own charges left in it, at the time sent minus rest
	own            []int64
	rest           time.Duration  // time not yet drained from own, less than a millisecond
	after          []bucket.State // the buckets' states after the last decision
	sent, received time.Time      // the last decision's request, at the earliest, and its answer, at the latest
	life           time.Duration
	era            uint64       // of the Cache when the call was sent
	left           atomic.Int64 // unused tokens, including void ones
}

// usable returns how many tokens may be used at an age of the last decision.
func (l *lease) usable(buckets []bucket.Bucket, age time.Duration) int64 {
	if age < 0 || age >= l.life {
		return 0
	}
	return l.valid(buckets, age)
}

// valid returns how many tokens are not void at that age.
func (l *lease) valid(buckets []bucket.Bucket, age time.Duration) int64 {
	left, ms := l.left.Load(), drained(l.rest+age)
	for i := range buckets {
		b := &buckets[i]
		switch {
		case b.Kind == bucket.Token:
			left = min(left, undrained(b, l.own[i], ms)/b.Cost)
		case drained(age) >= l.after[i].Reset:
			return 0
		}
	}
	return left
}

// undrained returns the units that are left after ms milliseconds.
func undrained(b *bucket.Bucket, units, ms int64) int64 {
	if ms > units/b.Drain {
		return 0
	}
	return units - b.Drain*ms
}

// drained returns the most milliseconds that a bucket drains, by Redis' clock, in a time.
func drained(age time.Duration) int64 {
	return bucket.CeilDiv(redisTime(age), int64(time.Millisecond))
}

// redisTime returns the most nanoseconds that pass by Redis' clock in a time.
func redisTime(age time.Duration) int64 { return int64(age) + int64(age)/1024 }

// step splits a time into whole milliseconds of Redis' clock and a rest. For any further time t,
// drained(rest + t) is at most ms less than drained(age + t). The rest is carried on because a
// thousand trips a second, each rounding its time up, would drain a bucket twice as fast.
func step(age time.Duration) (ms int64, rest time.Duration) {
	ms = redisTime(age) / int64(time.Millisecond)
	if ms == 0 {
		return 0, age
	}
	ns := ms * int64(time.Millisecond)
	return ms, age - time.Duration(ns-ns/1025-2) // each division by 1024 or 1025 may round down by 1
}

// take uses n tokens, all or none, and returns how many remain usable.
func (l *lease) take(buckets []bucket.Bucket, age time.Duration, n int64) (left int64, ok bool) {
	for {
		held, usable := l.left.Load(), l.usable(buckets, age)
		if usable < n {
			return left, false
		}
		if l.left.CompareAndSwap(held, min(held, usable)-n) {
			return min(held, usable) - n, true
		}
	}
}

// void uses up all tokens, and returns how many were not void.
func (l *lease) void(buckets []bucket.Bucket, age time.Duration) int64 {
	valid := l.valid(buckets, age)
	return min(valid, l.left.Swap(0))
}

// charge adds a further charge, with the states that it found, to the lease before it. A level
// found limits own, as others may have given back more than their own. It does not limit own if the
// charge was sent before the earlier decision, which may have been charged since.
func (l *lease) charge(before *lease, buckets []bucket.Bucket, found []bucket.State, granted, n int64) {
	age := l.sent.Sub(before.sent) + before.rest
	late, rest := before.sent.After(l.sent), before.rest
	var ms int64
	if !late {
		ms, rest = step(age)
	}
	l.rest = rest
	for i := range buckets {
		b := &buckets[i]
		if b.Kind != bucket.Token {
			continue
		}
		units := granted * b.Charge(n)
		switch {
		case !late:
			l.own[i] = min(found[i].Level, undrained(b, before.own[i], ms)) + units
		case age < 0: // sent before own's time
			l.own[i] = before.own[i] + undrained(b, units, drained(-age))
		default:
			l.own[i] = before.own[i] + units
		}
	}
}

// perLife returns how many tokens of a bucket flow back in a lease's life.
func perLife(b *bucket.Bucket, life time.Duration) int64 {
	per, of := b.Drain, b.Cost // units per millisecond, units per token
	if b.Kind != bucket.Token {
		per, of = b.Burst, b.Period
	}
	ms := life.Milliseconds()
	if ms > 0 && per > math.MaxInt64/ms {
		return math.MaxInt64 / of
	}
	return per * ms / of
}

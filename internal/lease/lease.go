// Package lease admits from tokens that this process has taken ahead of their use, and admits
// nothing more.
//
// # What a lease is
//
// A decision that Redis makes anyway may take more tokens than its caller wants. They are charged
// like any others, and this process may then admit from them without asking. That alone would admit
// too much: the bucket refills while tokens are held, so that they would be used on top of a bucket
// that is full again.
//
// # The rule
//
// A process keeps, for each key that it leases tokens of, a lower bound of what is left in the
// bucket of its own charges: own, in units. It is raised by all that the process charges, used or
// leased, and lowered by drain, the units that flow back per millisecond, for all the time since
// the charge was asked for. Let u be the leased tokens that are not used yet, and cost the units
// that one weighs. Then at any time only as many may be used as
//
//	u × cost ≤ own
//
// and what passes that is void: the bucket has given those tokens back by itself. With several
// limits it must hold for each.
//
// # Why it is enough
//
// A level is what was charged and has not flowed back. Let what flows back come out of the oldest
// charges first. Then each charge is a section of the level. What is left of one process' sections
// is at least its own: at worst all that flows back comes out of them. So the own of all processes
// together is at most the level, which never passes the capacity.
//
// Let used be the level of a second bucket, which is charged with each token when it is used, and
// drains as the first does. At any time, used + the sum of all u × cost ≤ level. A charge raises
// both sides by the same; a use moves a token from u to used; while used is above 0 both sides
// drain by the same; and when it is 0, u × cost ≤ own for each process is enough. So used never
// passes the capacity either: over any span of time t no more is used than burst + rate × t.
//
// It holds whatever others do to the level as long as they remove no more than what is left of
// their own charges. So a process that ends may give back the tokens that it has not used and that
// are not void. (The level that a charge leaves would be a bound too, and one that voids less; but
// then what one process gives back could be what another counts on.)
//
// A call for more tokens than the process holds takes all of them from Redis, and what is held
// stays for later calls, so that it is charged by one script, all or none. To use what is held and
// to ask for the rest would need a give back if Redis refused, and what was held may be void by the
// time that Redis answers.
//
// Times are rounded up to Redis' milliseconds, and by a thousandth for a clock of Redis that is a
// little faster. A fixed window has no drain: its tokens come back all at once, and its leases end
// when it does. A sliding window has no leases: there a token counts from when it was used.
//
// A Reset, Refund or Block of this process voids the leases on its key, and none is made until that
// is done. After two within a few seconds, nothing is taken ahead for as long: what is void is
// missing to others. A Reset of another process, or a Refund of what had flowed back already, shows
// at the next decision by Redis, as own is no more than the level found, and else when the lease
// ends, within its life; so does a Block. Until then as many tokens more may be used as were given
// back.
//
// What the rule does not cover: a change that Redis makes after it was given up, such as what Close
// gives back on a connection that hangs for longer than twice the timeout, or a Refund that Redis
// makes more than a second after it failed; and a process that is suspended, whose clock stands
// still.
package lease

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// lease is what a process holds of a key. Only left changes.
type lease struct {
	own            []int64        // of each bucket: at least so many units of own charges were left in it, at the time sent less rest
	rest           time.Duration  // what the steps of a millisecond by which own is drained have left over
	after          []bucket.State // of each bucket, when the last decision was made
	sent, received time.Time      // when Redis was asked for that, at the earliest, and had answered, at the latest
	life           time.Duration
	era            uint64       // of the Cache, when Redis was asked
	left           atomic.Int64 // tokens that are not used; those that are void among them
}

// usable returns how many of the tokens may be used so long after the last decision was asked for.
func (l *lease) usable(buckets []bucket.Bucket, age time.Duration) int64 {
	if age < 0 || age >= l.life {
		return 0
	}
	return l.valid(buckets, age)
}

// valid returns how many of the tokens are not void so long after that.
func (l *lease) valid(buckets []bucket.Bucket, age time.Duration) int64 {
	left, ms := l.left.Load(), drained(l.rest+age)
	for i := range buckets {
		b := &buckets[i]
		switch {
		case b.Kind == bucket.Token:
			left = min(left, notDrained(b, l.own[i], ms)/b.Cost)
		case drained(age) >= l.after[i].Reset:
			return 0
		}
	}
	return left
}

// notDrained returns how many of the units are left after so many milliseconds.
func notDrained(b *bucket.Bucket, units, ms int64) int64 {
	if ms > units/b.Drain {
		return 0
	}
	return units - b.Drain*ms
}

// drained returns for how many milliseconds of Redis' clock a bucket has drained at most after so
// long.
func drained(age time.Duration) int64 {
	return bucket.CeilDiv(redisTime(age), int64(time.Millisecond))
}

// redisTime returns how many nanoseconds pass at most by Redis' clock.
func redisTime(age time.Duration) int64 { return int64(age) + int64(age)/1024 }

// step splits a time into whole milliseconds of Redis' clock and a rest, such that drained of the
// rest and more is at most so many milliseconds less than drained of the whole and more. If each
// trip rounded up the time since the one before, a thousand trips a second would drain a bucket
// twice as fast as it drains.
func step(age time.Duration) (ms int64, rest time.Duration) {
	ms = redisTime(age) / int64(time.Millisecond)
	if ms == 0 {
		return 0, age
	}
	ns := ms * int64(time.Millisecond)
	return ms, age - time.Duration(ns-ns/1025-2) // each division by 1024 or 1025 may have lost 1
}

// take uses n tokens, all or none, and returns how many are left to be used.
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

// void uses up all tokens, and returns how many of them are not void so long after the last
// decision was asked for.
func (l *lease) void(buckets []bucket.Bucket, age time.Duration) int64 {
	valid := l.valid(buckets, age)
	return min(valid, l.left.Swap(0))
}

// charge adds another charge of so many units of each bucket, which was asked for at a time and
// found these states. Own ends at the levels found, as others may have given back more than was
// theirs; but what was asked for later may have been charged since.
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
			l.own[i] = min(found[i].Level, notDrained(b, before.own[i], ms)) + units
		case age < 0: // it was asked for before the time of own
			l.own[i] = before.own[i] + notDrained(b, units, drained(-age))
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

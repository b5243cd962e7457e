// Package lease admits requests from tokens that this process has taken ahead, and never admits
// more than the limit. It owns these tokens, and what was asked for lately. It never calls Redis: the engine
// sends the calls that it plans, and gives back what it leaves.
//
// # What a lease is
//
// A call to Redis may take more tokens than its caller wants. They are charged like any others, and
// this process may then admit requests from them without calling Redis, for a while. That alone
// would admit too much. The bucket refills while tokens are held, so they would be used on top of a
// full bucket.
//
// # The rule
//
// Let B be the burst of a token bucket and R its rate. Two numbers make room for what is held:
//
//   - A policy with leases is decided by a capacity of B − H: the last H tokens of the burst are
//     never taken at once.
//   - All processes together hold at most H tokens that they took ahead and have not used. A second
//     bucket in Redis, the lease bucket, is charged with every token that is taken ahead. It has a
//     capacity of h = H/2 tokens and the rate of the limit. A process holds a token for at most d,
//     counted from before it sent the call, and the rate gives back at most h tokens in d.
//
// Toward the end of d a process uses its tokens no more, but its next call may hold them for longer:
// it charges the lease bucket with them again, and the limit's bucket not at all. They are held only
// if its answer comes within d. If the lease bucket has no room for them, the process uses all that it
// holds until the end of those, and no longer.
//
// # Why it is enough
//
// What is held at any time was charged to the lease bucket within the last d. A bucket of capacity h
// and rate h/d is charged with at most h + d × h/d = H in that time. So held ≤ H.
//
// Whoever uses a token between s and t took it in that time, or held it at s. What was taken from the
// bucket in that time is at most its capacity and what flowed back. So
//
//	used(s, t] ≤ taken(s, t] + held(s) ≤ (B − H) + R (t − s) + H = B + R (t − s)
//
// Giving back is another matter: tokens that nobody holds any more, and that have flowed back, would
// let others take as many. So a process gives back only what is left in the bucket of what it took
// (see bucket.Claim). It uses first what it took first. What its last call took are that call's last
// units; the others count as the last units of the first call that took some of them, as no more can be
// left of them. The bucket is then as if they had never been taken.
//
// Changes by others, a Refund, a Reset or a loss of data, let no more be used than they would without
// leases, so nothing held has to be void because of them. If Redis loses its data, the processes hold
// up to H more for a time d.
//
// With several limits, H is the same for all, and at most half of each burst. The lease bucket has the
// rate of the fastest: the inequality needs no more of it than h = d × its rate. All policies
// that share a limit, such as policies of one name in several processes, need the same lease bucket.
// tests/model visits every state of small numbers.
//
// A fixed window needs no room, because its tokens come back all at once. Its leases end with it, and
// what is used of a window was taken of it. Once a Reset or a loss of data has filled it, what others
// hold is used on top of it. A sliding window has no leases: its tokens count from when they are used.
//
// # What is given back
//
// A call asks for what the process used within the last d, less what it holds, and of a window for no
// more than an eighth of what is left. If the limit has no more, the process asks again after half
// a lease (see the engine), so that others find some too. The
// tokens of a lease that are used no more are held for longer by the next call, or given back at its
// end, so that a key that is still in use needs no further call.
//
// A change by this process, a Reset or a Block, and losing Redis end the leases: their tokens are
// used no more, and given back as far as they are left. While the client is blocked, Redis lets none
// be held for longer. A Reset or Block by another process shows when the lease ends, or at the next
// call.
//
// The time is counted by this process' clock, and Redis' clock may be faster by a thousandth (see
// rules.Set.AllowLeases). One case is not covered: a process may be suspended, so that its clock stands
// still.
package lease

import (
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// lease is a process's lease of a key. Only left changes.
type lease struct {
	taken               // by the last call
	own   int64         // tokens that this call took ahead; earlier calls took the others, which are used first
	first taken         // by the first call that took some of the tokens
	life  time.Duration // from sent on
	end   time.Duration // from sent on, of the first window; the longest Duration without windows
	era   uint64        // of the Cache when the call was sent
	left  atomic.Int64  // unused tokens
	over  bool          // what was left is given back or in another lease; the entry's mu guards it
}

// taken is what a call left that took tokens.
type taken struct {
	after          []bucket.State // the buckets' states
	sent, received time.Time      // its request, at the earliest, and its answer, at the latest
}

// firstOf returns the first call that took some of the last n tokens of a lease.
func (l *lease) firstOf(n int64) taken {
	if n <= l.own {
		return l.taken
	}
	return l.first
}

// usedFor returns how long the tokens of a lease are used. Then the next call may hold them for longer.
func usedFor(life time.Duration) time.Duration { return life - life/8 }

// usable returns how many tokens may be used at an age of the last decision.
func (l *lease) usable(age time.Duration) int64 {
	if age < 0 || age >= min(usedFor(l.life), l.end) {
		return 0
	}
	return l.left.Load()
}

// take uses n tokens, or what there is of them if that is at least least. It returns how many it uses, and how many
// remain usable.
func (l *lease) take(age time.Duration, n, least int64) (taken, left int64) {
	for {
		usable := l.usable(age)
		taken = min(n, usable)
		if taken < least || taken <= 0 {
			return 0, 0
		}
		if l.left.CompareAndSwap(usable, usable-taken) {
			return taken, usable - taken
		}
	}
}

// held returns how many tokens are not used, and may be held for longer.
func (l *lease) held(age time.Duration) int64 {
	if age >= min(l.life, l.end) {
		return 0
	}
	return l.left.Load()
}

// finish leaves no tokens, and returns those that were left. The entry's mu is held.
func (l *lease) finish() int64 {
	l.over = true
	return l.left.Swap(0)
}

// windowEnd returns the age at which the first of the windows may have ended, if they were found in
// these states. Redis counts milliseconds, and its clock may be a little faster.
func windowEnd(buckets []bucket.Bucket, states []bucket.State) time.Duration {
	const longest = time.Duration(1<<63 - 1)
	end := longest
	for i := range buckets {
		if !buckets[i].Flows() {
			end = min(end, endOf(states[i]))
		}
	}
	return end
}

// endOf returns the age at which a window may have ended.
func endOf(state bucket.State) time.Duration {
	ms := time.Duration(max(0, state.Reset-1))
	return (ms - ms/1024) * time.Millisecond
}

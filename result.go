package ginlimit

import "time"

// Source is where a decision was made.
type Source uint8

const (
	FromRedis  Source = iota // in Redis
	FromMemory               // in this process, from a refusal of Redis that it remembers
	FromLease                // in this process, from tokens that it has taken ahead (see [WithLease])
	FromLocal                // in this process, without Redis
	FromPolicy               // nowhere: the limit is unlimited or prohibits, or the request was not counted
)

// String returns the source in one word, or "unknown".
func (s Source) String() string {
	names := [...]string{FromRedis: "redis", FromMemory: "memory", FromLease: "lease", FromLocal: "local", FromPolicy: "policy"}
	if int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}

// Result is one decision.
//
// With several limits, Limit, Remaining, RetryAfter and ResetAfter are those of the one closest to
// exhaustion: of a refusal the one with the longest wait, else the one with the fewest tokens left.
type Result struct {
	Allowed    bool
	Granted    int           // tokens taken by this call
	Limit      Limit         // as given
	Name       string        // of the policy or identity it belongs to; "" for a method of a Limiter
	Remaining  int           // whole tokens left; math.MaxInt if unlimited
	RetryAfter time.Duration // 0 if allowed; above 0 it is after this wait; below 0 it never is
	ResetAfter time.Duration // until the bucket is full again
	Source     Source
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

package ginlimit

import (
	"errors"
	"time"

	"github.com/ginlimit/ginlimit/internal/engine"
)

// Match these with [errors.Is].
var (
	// ErrUnavailable says that no decision could be made: by Redis, by a plan, or by a closed
	// limiter.
	ErrUnavailable = engine.ErrUnavailable
	// ErrNoKey says that there is no key to count under.
	ErrNoKey = errors.New("ginlimit: no key")
	// ErrBadRequest says that the client is at fault. A [KeyFunc] that finds a malformed key
	// returns an error that wraps it, and the default error handler answers 400, without the
	// error's text. [ByFirst] and [FirstOf] do not look for another key: a client could leave its
	// bucket with a malformed one. If the key is missing, wrap [ErrNoKey] as well, and they do.
	ErrBadRequest = errors.New("ginlimit: bad request")
)

// Source is where a decision was made.
type Source uint8

const (
	FromRedis  Source = iota // in Redis
	FromMemory               // in this process, from a denial of Redis that it remembers
	FromLease                // in this process, from tokens that it has taken ahead (see [WithLease])
	FromLocal                // in this process, without Redis
	FromPolicy               // nowhere: the limit is unlimited or prohibits, or the request was not counted
)

// String returns the source in one word, or "unknown".
func (s Source) String() string {
	names := [...]string{
		FromRedis: "redis", FromMemory: "memory", FromLease: "lease", FromLocal: "local", FromPolicy: "policy",
	}
	if int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}

// Result is one decision.
//
// With several limits, Limit, Remaining, RetryAfter and ResetAfter are of the limit closest to
// exhaustion: of a denial the one with the longest wait, else the one with the fewest tokens left.
//
// A Result always marshals to JSON, with the Limit as text (see [Limit.MarshalText]).
type Result struct {
	Allowed    bool
	Granted    int           // tokens taken by this call
	Limit      Limit         // as given; InFlight for a slot of [WithConcurrency]; zero of an address that is denied
	Name       string        // of the policy or identity it belongs to; "" for a method of a Limiter
	Remaining  int           // whole tokens left; math.MaxInt if unlimited
	RetryAfter time.Duration // 0 if allowed; above 0 it is after this wait; below 0 it never is
	ResetAfter time.Duration // until the bucket is full again
	Source     Source
}

// closerThan reports whether r is closer to exhaustion than s: of two denials the one that lasts
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

// ErrUnknownClient says that a client has no plan. The default error handler answers it with 403.
var ErrUnknownClient = errors.New("ginlimit: unknown client")

// Failure chooses what happens when Redis makes no decision: it is unavailable, late, or denies.
type Failure uint8

const (
	// FailLocal has this process decide, by buckets of its own that hold and regain its share of
	// each limit (see [WithReplicas]). They start full, and are kept when Redis is back, so that an
	// outage that follows soon gives nobody another burst. A decision on more tokens than the share
	// holds is made when it is full, and leaves it as much longer to fill up.
	FailLocal Failure = iota
	// FailOpen allows, as if every bucket were full, and also what is blocked.
	FailOpen
	// FailClosed makes no decision: the error is [ErrUnavailable], which a handler answers with
	// 503.
	FailClosed
)

// String returns the failure in one word, or "unknown".
func (f Failure) String() string {
	names := [...]string{FailLocal: "local", FailOpen: "open", FailClosed: "closed"}
	if int(f) < len(names) {
		return names[f]
	}
	return "unknown"
}

package ginlimit

import (
	"encoding/json"
	"math"
	"time"

	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// Source is where a decision was made.
type Source uint8

const (
	FromRedis  Source = iota // in Redis
	FromCache                // in this process: Redis has denied the client before (see [WithDenyCache])
	FromLease                // in this process, by tokens that it has taken ahead (see [WithLease])
	FromLocal                // in this process, without Redis (see [FailLocal] and [NewLocal])
	FromOpen                 // nowhere: Redis did not decide (see [FailOpen])
	FromPolicy               // nowhere: a limit is unlimited or prohibits, a queue is full, or nothing was counted
)

// String returns the source in one word, or "unknown".
func (s Source) String() string {
	names := [...]string{
		FromRedis: "redis", FromCache: "cache", FromLease: "lease", FromLocal: "local", FromOpen: "open",
		FromPolicy: "policy",
	}
	if int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}

// Cause is why a request is denied. It is zero if the request is allowed.
type Cause uint8

const (
	CauseRate      Cause = iota + 1 // a limit has too few tokens, or is blocked
	CauseInFlight                   // too many requests are in flight (see [InFlight])
	CauseBan                        // the client is banned, by this denial or an earlier one (see [WithBan])
	CauseNever                      // no waiting helps: a limit prohibits, or never holds enough tokens
	CauseList                       // the address is denied (see [WithDenyList])
	CauseShare                      // the tenant has its share of a limit, which others share (see [WithShares])
	CauseQueueFull                  // the queue is full (see [WithQueue])
)

// String returns the cause in lower case, "" for zero, or "unknown".
func (c Cause) String() string {
	names := [...]string{
		0: "", CauseRate: "rate", CauseInFlight: "in_flight", CauseBan: "ban", CauseNever: "never", CauseList: "list",
		CauseShare: "share", CauseQueueFull: "queue_full",
	}
	if int(c) < len(names) {
		return names[c]
	}
	return "unknown"
}

// Never is the RetryAfter if no waiting helps: the longest Duration, 292 years. Add nothing to it.
const Never time.Duration = math.MaxInt64

// Result is one decision. With several limits, Limit, Remaining, RetryAfter and ResetAfter describe the limit
// closest to exhaustion: in a denial the limit with the longest wait, else the limit with the fewest tokens.
type Result struct {
	Allowed    bool
	Granted    int           // tokens taken by this call
	Limit      Limit         // as given; zero if the address is denied
	Name       string        // of the policy; ends in "-c" for an [InFlight] limit
	Remaining  int           // whole tokens left; math.MaxInt if unlimited
	RetryAfter time.Duration // 0 if allowed; Never if no waiting helps
	ResetAfter time.Duration // until the bucket is full again
	Source     Source
	Cause      Cause // why it is denied; 0 if allowed
}

// MarshalJSON returns the fields in lower case, such as retry_after, with times in seconds such as
// 1.5. remaining is null if unlimited, retry_after if no waiting helps; cause is absent if allowed.
// A Limit that is neither valid nor zero is an [ErrInvalidArgument].
func (r Result) MarshalJSON() ([]byte, error) {
	limit, err := r.Limit.MarshalText()
	if err != nil {
		return nil, err
	}
	out := struct {
		Allowed    bool     `json:"allowed"`
		Granted    int      `json:"granted"`
		Limit      string   `json:"limit"`
		Name       string   `json:"name"`
		Remaining  *int     `json:"remaining"`
		RetryAfter *float64 `json:"retry_after"`
		ResetAfter float64  `json:"reset_after"`
		Source     string   `json:"source"`
		Cause      string   `json:"cause,omitempty"`
	}{
		r.Allowed, r.Granted, string(limit), r.Name, &r.Remaining, new(float64), r.ResetAfter.Seconds(),
		r.Source.String(), r.Cause.String(),
	}
	if r.Remaining == math.MaxInt {
		out.Remaining = nil
	}
	if *out.RetryAfter = r.RetryAfter.Seconds(); r.RetryAfter == Never {
		out.RetryAfter = nil
	}
	return json.Marshal(out)
}

// closerThan reports whether r is closer to exhaustion than s: of two denials the one that lasts
// longer, else the one with fewer tokens left, else the one that is full later. Free slots say nothing of
// that, unless nothing else is counted.
func (r Result) closerThan(s Result) bool {
	free := func(r Result) bool { return r.Allowed && r.Limit.InFlight > 0 }
	uncounted := func(r Result) bool { return r.Allowed && r.Limit.Rate < 0 }
	switch own, other := free(r), free(s); {
	case own && !other:
		return uncounted(s)
	case other && !own:
		return !uncounted(r)
	}
	if r.RetryAfter != s.RetryAfter {
		return r.RetryAfter > s.RetryAfter
	}
	if r.Remaining != s.Remaining {
		return r.Remaining < s.Remaining
	}
	return r.ResetAfter > s.ResetAfter
}

// sources are the engine's by their names in this package, but for the store of a limiter without Redis.
var sources = [...]Source{
	engine.FromStore: FromRedis, engine.FromCache: FromCache, engine.FromLease: FromLease,
	engine.FromLocal: FromLocal, engine.FromOpen: FromOpen, engine.FromStatic: FromPolicy,
}

// causeOf returns why an answer denies.
func causeOf(set *rules.Set, a *engine.Answer) Cause {
	switch {
	case a.RetryAfter == Never:
		return CauseNever
	case a.Banned:
		return CauseBan
	case a.QueueFull:
		return CauseQueueFull
	case a.Resource >= 0 && a.Resource == set.Slots():
		return CauseInFlight
	case a.Shared:
		return CauseShare
	}
	return CauseRate
}

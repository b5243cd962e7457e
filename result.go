package ginlimit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ginlimit/ginlimit/internal/engine"
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

// Result is one decision. With several limits, Limit, Remaining, RetryAfter and ResetAfter describe the limit
// closest to exhaustion: in a denial the limit with the longest wait, else the limit with the fewest tokens.
type Result struct {
	Allowed    bool
	Granted    int           // tokens taken by this call
	Limit      Limit         // as given; zero if the address is denied
	Name       string        // of the policy; ends in "-c" for an [InFlight] limit
	Remaining  int           // whole tokens left; math.MaxInt if unlimited
	RetryAfter time.Duration // 0 if allowed; negative if no waiting helps
	ResetAfter time.Duration // until the bucket is full again
	Source     Source
	Cause      Cause // why it is denied; 0 if allowed
}

// MarshalJSON returns allowed, granted, limit, name, remaining, retry_after, reset_after, source and cause,
// with times in seconds such as 1.5. remaining is null if unlimited, retry_after if no waiting helps; cause
// is absent if allowed. It never fails.
func (r Result) MarshalJSON() ([]byte, error) {
	out := struct {
		Allowed    bool     `json:"allowed"`
		Granted    int      `json:"granted"`
		Limit      Limit    `json:"limit"`
		Name       string   `json:"name"`
		Remaining  *int     `json:"remaining"`
		RetryAfter *float64 `json:"retry_after"`
		ResetAfter float64  `json:"reset_after"`
		Source     string   `json:"source"`
		Cause      string   `json:"cause,omitempty"`
	}{
		r.Allowed, r.Granted, r.Limit, r.Name, &r.Remaining, new(float64), r.ResetAfter.Seconds(),
		r.Source.String(), r.Cause.String(),
	}
	if r.Remaining == math.MaxInt {
		out.Remaining = nil
	}
	if *out.RetryAfter = r.RetryAfter.Seconds(); r.RetryAfter < 0 {
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
	// As unsigned numbers, never is the longest wait.
	if wait, other := uint64(r.RetryAfter), uint64(s.RetryAfter); wait != other {
		return wait > other
	}
	if r.Remaining != s.Remaining {
		return r.Remaining < s.Remaining
	}
	return r.ResetAfter > s.ResetAfter
}

// FailureMode chooses who decides when Redis does not, or not in time.
type FailureMode uint8

const (
	FailLocal  FailureMode = iota // this process, by buckets of its own for its share of each limit (see [WithReplicas])
	FailOpen                      // nobody: everything is allowed, also what is blocked
	FailClosed                    // nobody: the error is ErrUnavailable, and the response 503
)

// String returns the mode in one word, or "unknown".
func (f FailureMode) String() string {
	names := [...]string{FailLocal: "local", FailOpen: "open", FailClosed: "closed"}
	if int(f) < len(names) {
		return names[f]
	}
	return "unknown"
}

// Event is one decision, for metrics and logs. It omits the key.
type Event struct {
	Name      string        // of the policy
	Outcome   Outcome       // what happened; in a dry run, what would have
	DryRun    bool          // of a policy [WithDryRun]
	Allowed   bool          // the request passes; in a dry run: would pass
	Limit     Limit         // the one closest to exhaustion; the zero Limit if no limit was checked
	Remaining int           // whole tokens left in it; math.MaxInt if unlimited
	Source    Source        // where the decision was made; FromPolicy if no limit was checked, and without a decision
	Cause     Cause         // why the request is denied; 0 if it is not
	Cost      int           // tokens requested
	Duration  time.Duration // of the decision; of a [Policy.Wait], the whole wait
	Waited    time.Duration // the part of Duration spent waiting for tokens or a slot (see [WithQueue])
	Reason    string        // why Redis did not decide, or why there is no decision: see docs/operations.md; else ""
}

// Outcome is what happened to a request. Later versions may add others.
type Outcome uint8

const (
	OutcomeAllowed Outcome = iota // it passes
	OutcomeDenied                 // see Cause
	OutcomeSkipped                // it was not counted: see [WithSkip] and [WithAllowList]
	OutcomeFailed                 // there is no decision: see Reason
)

var outcomeNames = [...]string{
	OutcomeAllowed: "allowed", OutcomeDenied: "denied", OutcomeSkipped: "skipped", OutcomeFailed: "failed",
}

// String returns the outcome in lower case, as a metric's label, or "unknown".
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "unknown"
}

// observation is an Event in the making. Without observers it does nothing.
type observation struct {
	observers []observer
	start     time.Time
	event     Event
	client    string // "" if it is not known
}

// observer is a function of [WithClientObserver], or one that leaves the client out.
type observer = func(ctx context.Context, e Event, client string)

// The functions of the application whose errors are reasons why there is no decision.
const (
	fromKeyFunc   = "key_func"
	fromLimitFunc = "limit_func"
)

// failure is why Redis did not decide, or why there is no decision.
type failure struct {
	err    error  // that there is no decision
	store  error  // what the store said last that did not decide
	origin string // of err, if that is a function of the application
}

// reason returns the Event's Reason of a decision, or of an error. The context is the caller's.
func (f failure) reason(ctx context.Context, r Result) string {
	switch {
	case f.err == nil && r.Source != FromLocal && r.Source != FromOpen:
		return "" // an earlier try of a Wait may have failed
	case f.err == nil:
		return engine.Reason(f.store)
	case errors.Is(f.err, ErrNoKey):
		return "no_key"
	case errors.Is(f.err, ErrBadRequest):
		return "bad_request"
	case errors.Is(f.err, ErrUnknownClient):
		return "unknown_client"
	case errors.Is(f.err, ErrInvalidArgument):
		return "invalid_argument"
	case errors.Is(f.err, ErrUnavailable) && f.origin == "":
		return engine.Reason(f.err)
	case f.origin != "" && ctx.Err() == nil: // it may wrap ErrUnavailable of Plans, or the end of a context of its own
		return f.origin
	case errors.Is(f.err, context.Canceled):
		return "canceled"
	case errors.Is(f.err, context.DeadlineExceeded):
		return "deadline"
	}
	return f.origin
}

// record calls the observers with the decision, or with what led to none.
func (o *observation) record(ctx context.Context, outcome Outcome, n int, allowed bool, r Result, f failure) {
	if o.observers == nil {
		return
	}
	o.event.Reason = f.reason(ctx, r)
	if r.Limit == (Limit{}) || outcome == OutcomeFailed {
		r.Source = FromPolicy
	}
	if outcome == OutcomeFailed { // the last try of a Wait may have been denied
		r.Cause = 0
	}
	o.event.Duration = time.Since(o.start)
	o.event.Outcome, o.event.Cost, o.event.Allowed = outcome, n, allowed
	o.event.Limit, o.event.Remaining, o.event.Source, o.event.Cause = r.Limit, r.Remaining, r.Source, r.Cause
	for _, observe := range o.observers {
		observe(ctx, o.event, o.client)
	}
}

// outcomeOf returns the Outcome of a decision, or of an error on the way to it.
func outcomeOf(r Result, err error) Outcome {
	switch {
	case err != nil:
		return OutcomeFailed
	case r.Allowed:
		return OutcomeAllowed
	}
	return OutcomeDenied
}

// Match these with [errors.Is].
var (
	ErrInvalidArgument = errors.New("ginlimit: invalid argument") // a limit, an option or an argument cannot be used
	ErrUnavailable     = engine.ErrUnavailable                    // no decision by Redis or a plan, or a closed limiter
	ErrClosed          = engine.ErrClosed                         // the limiter is closed; it is ErrUnavailable too
	ErrNoKey           = errors.New("ginlimit: no key")           // there is no key to count under
	ErrBadRequest      = errors.New("ginlimit: bad request")      // the client is at fault; answered 400
	ErrUnknownClient   = errors.New("ginlimit: unknown client")   // the client has no plan; answered 403
)

// invalidArgument is an [ErrInvalidArgument] whose text says by itself what is invalid.
type invalidArgument struct{ text string }

func (e *invalidArgument) Error() string        { return "ginlimit: " + e.text }
func (e *invalidArgument) Is(target error) bool { return target == ErrInvalidArgument }

// invalid returns an [ErrInvalidArgument].
func invalid(format string, args ...any) error {
	return &invalidArgument{fmt.Sprintf(format, args...)}
}

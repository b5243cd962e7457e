package ginlimit

import (
	"context"
	"errors"
	"time"

	"github.com/ginlimit/ginlimit/internal/engine"
)

// Event is one decision, for metrics and logs. It omits the key, so metrics cannot leak it.
type Event struct {
	Name      string // of the policy; "" for a method of a Limiter
	Outcome   Outcome
	Allowed   bool          // the request passes; in a dry run: would pass
	Limit     Limit         // the one closest to exhaustion; the zero Limit if no limit was checked
	Remaining int           // whole tokens left in it; math.MaxInt if unlimited
	Source    Source        // where the decision was made; FromPolicy if no limit was checked, and without a decision
	Cost      int           // tokens requested
	Duration  time.Duration // of the decision; of a [Limiter.Wait], the whole wait
	Waited    time.Duration // of Duration: for tokens, by a Wait, or for a slot (see [WithQueue])

	// Reason is why Redis did not decide, or why there is no decision; "" of a normal decision. It
	// is one of few words, for metrics.
	//
	// Redis did not decide: "late", "breaker_open", "queue_full", "connection_refused",
	// "unknown_host", "tls", "network", "pool" (the client has no free connection), "client"
	// (another error of the client or a hook of it), the code of a reply ("ASK", "BUSY",
	// "CLUSTERDOWN", "CROSSSLOT", "ERR", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOAUTH",
	// "NOPERM", "NOREPLICAS", "NOSCRIPT", "OOM", "READONLY", "TRYAGAIN", "WRONGPASS", "WRONGTYPE"),
	// or "reply" for one of another code.
	//
	// There is no decision: "canceled" or "deadline" (of the caller's context), "no_key"
	// ([ErrNoKey]), "bad_request" ([ErrBadRequest]), "key_func" (another error of a [KeyFunc]),
	// "unknown_client" ([ErrUnknownClient]), "limit_func" (another error of the function of
	// [WithLimitFunc]), "invalid_limit" ([ErrInvalidLimit]), or "closed" (the limiter is).
	Reason string
}

// Outcome is what happened to a request, and who decided. Version 1 adds no others.
type Outcome uint8

const (
	OutcomeAllowed           Outcome = iota // by Redis, by a limiter of [NewLocal], or unlimited
	OutcomeRefused                          // by Redis, by a limiter of [NewLocal], or prohibited
	OutcomeAllowedFromLease                 // without a call to Redis, by tokens taken ahead: see [WithLease]
	OutcomeRefusedFromMemory                // without a call to Redis, which had denied before
	OutcomeLocal                            // Redis did not decide: see [FailLocal]
	OutcomeOpen                             // Redis did not decide: see [FailOpen]
	OutcomeClosed                           // Redis did not decide: see [FailClosed]
	OutcomeSkipped                          // see [WithSkip]
	OutcomeListed                           // see [WithAllowList] and [WithDenyList]
	OutcomeDryRun                           // see [WithDryRun]
	OutcomeError                            // no decision for another reason, such as a canceled request
)

var outcomeNames = [...]string{
	OutcomeAllowed: "allowed", OutcomeRefused: "refused",
	OutcomeAllowedFromLease: "allowed_from_lease", OutcomeRefusedFromMemory: "refused_from_memory",
	OutcomeLocal: "local", OutcomeOpen: "open", OutcomeClosed: "closed",
	OutcomeSkipped: "skipped", OutcomeListed: "listed", OutcomeDryRun: "dry_run", OutcomeError: "error",
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
	observers []func(context.Context, Event)
	start     time.Time
	event     Event
}

// observe begins an Event, for each of the observers.
func observe(observers []func(context.Context, Event), name string) observation {
	if observers == nil {
		return observation{}
	}
	return observation{observers, time.Now(), Event{Name: name}}
}

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
	case f.err == nil && r.Source != FromLocal:
		return "" // an earlier try of a Wait may have failed
	case f.err == nil:
		return engine.Reason(f.store)
	case errors.Is(f.err, ErrNoKey):
		return "no_key"
	case errors.Is(f.err, ErrBadRequest):
		return "bad_request"
	case errors.Is(f.err, ErrUnknownClient):
		return "unknown_client"
	case errors.Is(f.err, ErrInvalidLimit):
		return "invalid_limit"
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
	if r.Limit == (Limit{}) || outcome == OutcomeError || outcome == OutcomeClosed {
		r.Source = FromPolicy
	}
	o.event.Duration = time.Since(o.start)
	o.event.Outcome, o.event.Cost, o.event.Allowed = outcome, n, allowed
	o.event.Limit, o.event.Remaining, o.event.Source = r.Limit, r.Remaining, r.Source
	for _, observer := range o.observers {
		observer(ctx, o.event)
	}
}

// outcomeOf returns the Outcome of a decision, or of an error on the way to it.
func outcomeOf(r Result, failure Failure, local bool, err error) Outcome {
	switch {
	case failure == FailClosed && errors.Is(err, ErrUnavailable) && !engine.IsClosed(err):
		return OutcomeClosed
	case err != nil:
		return OutcomeError
	case r.Source == FromMemory:
		return OutcomeRefusedFromMemory
	case r.Source == FromLease:
		return OutcomeAllowedFromLease
	case r.Source == FromLocal && !local && failure == FailOpen:
		return OutcomeOpen
	case r.Source == FromLocal && !local:
		return OutcomeLocal
	case r.Allowed:
		return OutcomeAllowed
	}
	return OutcomeRefused
}

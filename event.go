package ginlimit

import (
	"context"
	"errors"
	"time"

	"github.com/ginlimit/ginlimit/internal/engine"
)

// Event is one decision or settlement, for metrics and logs. It omits the key.
type Event struct {
	Name       string        // of the policy
	Outcome    Outcome       // what happened; in a dry run, what would have
	DryRun     bool          // of a policy [WithDryRun]
	Allowed    bool          // the request passes; in a dry run: would pass
	Limit      Limit         // the one closest to exhaustion; the zero Limit if no limit was checked
	Remaining  int           // whole tokens left in it; math.MaxInt if unlimited
	ResetAfter time.Duration // until it is full again
	Source     Source        // where the decision was made; FromPolicy if no limit was checked, and without a decision
	Cause      Cause         // why the request is denied; 0 if it is not
	Cost       int           // tokens requested; of a settlement, what the work took
	Charged    int           // tokens taken; of a settlement, how many more, or given back if negative
	Duration   time.Duration // of the decision; of a [Policy.Wait], the whole wait
	Waited     time.Duration // the part of Duration spent waiting for tokens or a slot (see [WithQueue])
	Reason     Reason        // why Redis did not decide, or why there is no decision; else ""
}

// Outcome is what happened to a request. Later versions may add others.
type Outcome uint8

const (
	OutcomeAllowed Outcome = iota // it passes
	OutcomeDenied                 // see Cause
	OutcomeSkipped                // it was not counted: see [WithSkip] and [WithAllowList]
	OutcomeFailed                 // there is no decision: see Reason
	OutcomeSettled                // no decision, but what became of an allowed request's charge: see [WithObserver]
)

var outcomeNames = [...]string{
	OutcomeAllowed: "allowed", OutcomeDenied: "denied", OutcomeSkipped: "skipped", OutcomeFailed: "failed",
	OutcomeSettled: "settled",
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
		r.Cause, r.Granted = 0, 0
	}
	o.event.Duration = time.Since(o.start)
	o.event.Outcome, o.event.Cost, o.event.Allowed = outcome, n, allowed
	o.event.Limit, o.event.Remaining, o.event.ResetAfter = r.Limit, r.Remaining, r.ResetAfter
	o.event.Source, o.event.Cause, o.event.Charged = r.Source, r.Cause, r.Granted
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

// Reason is why Redis did not decide, or why there is no decision: see docs/operations.md. Later
// versions may add others.
type Reason string

const (
	ReasonLate              Reason = "late"         // no answer in time
	ReasonBreakerOpen       Reason = "breaker_open" // the circuit breaker is open
	ReasonQueueFull         Reason = "queue_full"   // too many decisions wait for this server
	ReasonConnectionRefused Reason = "connection_refused"
	ReasonUnknownHost       Reason = "unknown_host"
	ReasonNetwork           Reason = "network"
	ReasonTLS               Reason = "tls"
	ReasonPool              Reason = "pool"   // the client had no free connection
	ReasonClient            Reason = "client" // the Redis client or a hook of it failed

	ReasonAsk, ReasonBusy, ReasonClusterDown, ReasonCrossSlot Reason = "ASK", "BUSY", "CLUSTERDOWN", "CROSSSLOT"
	ReasonErr, ReasonLoading, ReasonMasterDown, ReasonMisconf Reason = "ERR", "LOADING", "MASTERDOWN", "MISCONF"
	ReasonMoved, ReasonNoAuth, ReasonNoPerm, ReasonNoReplicas Reason = "MOVED", "NOAUTH", "NOPERM", "NOREPLICAS"
	ReasonNoScript, ReasonOOM, ReasonReadOnly, ReasonTryAgain Reason = "NOSCRIPT", "OOM", "READONLY", "TRYAGAIN"
	ReasonWrongPass, ReasonWrongType, ReasonReply             Reason = "WRONGPASS", "WRONGTYPE", "reply" // another code

	ReasonCanceled        Reason = "canceled"         // no decision: the client left
	ReasonDeadline        Reason = "deadline"         // the caller's context ends before
	ReasonNoKey           Reason = "no_key"           // [ErrNoKey]
	ReasonBadRequest      Reason = "bad_request"      // [ErrBadRequest]
	ReasonKeyFunc         Reason = "key_func"         // the [KeyFunc] failed
	ReasonUnknownClient   Reason = "unknown_client"   // [ErrUnknownClient]
	ReasonLimitFunc       Reason = "limit_func"       // the function of [WithLimitFunc] failed
	ReasonInvalidArgument Reason = "invalid_argument" // it returned unusable limits, or the cost is negative
	ReasonClosed          Reason = "closed"           // the limiter is closed
)

// failure is why Redis did not decide, or why there is no decision.
type failure struct {
	err    error  // that there is no decision
	store  error  // what the store said last that did not decide
	origin Reason // of err, if that is a function of the application
}

// reason returns the Event's Reason of a decision, or of an error. The context is the caller's.
func (f failure) reason(ctx context.Context, r Result) Reason {
	switch {
	case f.err == nil && r.Source != FromLocal && r.Source != FromOpen:
		return "" // an earlier try of a Wait may have failed
	case f.err == nil:
		return Reason(engine.Reason(f.store))
	case errors.Is(f.err, ErrNoKey):
		return ReasonNoKey
	case errors.Is(f.err, ErrBadRequest):
		return ReasonBadRequest
	case errors.Is(f.err, ErrUnknownClient):
		return ReasonUnknownClient
	case errors.Is(f.err, ErrInvalidArgument):
		return ReasonInvalidArgument
	case errors.Is(f.err, ErrUnavailable) && f.origin == "":
		return Reason(engine.Reason(f.err))
	case f.origin != "" && ctx.Err() == nil: // it may wrap ErrUnavailable of Plans, or the end of a context of its own
		return f.origin
	case errors.Is(f.err, context.Canceled):
		return ReasonCanceled
	case errors.Is(f.err, context.DeadlineExceeded):
		return ReasonDeadline
	}
	return f.origin
}

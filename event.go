package ginlimit

import (
	"context"
	"errors"
	"time"

	"github.com/ginlimit/ginlimit/internal/engine"
)

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

// observe begins an Event of the policy about a client, for each of the observers.
func (p *Policy) observe(client string) observation {
	if p.limiter.observers == nil {
		return observation{}
	}
	return observation{p.limiter.observers, time.Now(), Event{Name: p.name, DryRun: p.dryRun}, client}
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

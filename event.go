package ginlimit

import (
	"context"
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
	o.event.Limit, o.event.Remaining, o.event.ResetAfter = r.Limit, r.Remaining, r.ResetAfter
	o.event.Source, o.event.Cause = r.Source, r.Cause
	for _, observe := range o.observers {
		observe(ctx, o.event, o.client)
	}
}

// settle makes charges what the work took, and tells observers what is left: a function returns the part of a
// decision whose charge it is. It returns the errors.
func (l *Limiter) settle(ctx context.Context, actual []int64, charges []engine.Charge, of func(i int) *part) []error {
	began := time.Now()
	return l.engine.Settle(ctx, actual, charges, func(ctx context.Context, answers []engine.Answer) {
		for i := range answers {
			if t, a := of(i), &answers[i]; l.observers != nil && t.phase == settled && a.Failed == nil {
				t.recordSettled(ctx, began, actual[i], a)
			}
		}
	})
}

// recordSettled tells observers that a charge was settled.
func (t *part) recordSettled(ctx context.Context, began time.Time, actual int64, left *engine.Answer) {
	p, r := t.policy, t.result
	if left.Decided {
		r = t.limits.result(p.limiter.engine, left)
	}
	o := observation{p.limiter.observers, began, Event{Name: p.name, DryRun: p.dryRun}, t.client}
	o.record(ctx, OutcomeSettled, int(actual), true, r, failure{})
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

package ginlimit

import (
	"context"
	"errors"
	"time"
)

// Event is one decision, for metrics and logs. It does not say whose: keys are not for them.
type Event struct {
	Name     string // of the handler; "" for a method of the limiter
	Outcome  Outcome
	Allowed  bool          // the request passes; of a dry run: it would
	Limit    Limit         // the one closest to exhaustion; the zero Limit where none was looked at
	Cost     int           // tokens asked for
	Duration time.Duration // that it took to decide, or to skip
}

// Outcome tells what became of a request, and who decided. It is one of these, in all versions 1.
type Outcome uint8

const (
	OutcomeAllowed           Outcome = iota // by Redis, or unlimited; of a limiter of [NewLocal] by the process
	OutcomeRefused                          // likewise, or prohibited
	OutcomeRefusedFromMemory                // without asking Redis, which had refused
	OutcomeLocal                            // Redis did not decide: see [FailLocal]
	OutcomeOpen                             // Redis did not decide: see [FailOpen]
	OutcomeClosed                           // Redis did not decide: see [FailClosed]
	OutcomeSkipped                          // see [WithSkip]
	OutcomeListed                           // see [WithAllowList] and [WithDenyList]
	OutcomeDryRun                           // see [WithDryRun]
	OutcomeError                            // no decision for another reason, such as a client that has left
)

var outcomeNames = [...]string{
	OutcomeAllowed: "allowed", OutcomeRefused: "refused", OutcomeRefusedFromMemory: "refused_from_memory",
	OutcomeLocal: "local", OutcomeOpen: "open", OutcomeClosed: "closed",
	OutcomeSkipped: "skipped", OutcomeListed: "listed", OutcomeDryRun: "dry_run", OutcomeError: "error",
}

// String returns the outcome in lower case, as a label of a metric, or "unknown".
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "unknown"
}

// observation is an Event to be, and nothing where nobody observes.
type observation struct {
	observer func(context.Context, Event)
	start    time.Time
	event    Event
}

func (c *config) observe(name string) observation {
	if c.observer == nil {
		return observation{}
	}
	return observation{c.observer, time.Now(), Event{Name: name}}
}

// end tells the observer of a decision.
func (o *observation) end(ctx context.Context, outcome Outcome, n int, allowed bool, limit Limit) {
	if o.observer == nil {
		return
	}
	o.event.Duration = time.Since(o.start)
	o.event.Outcome, o.event.Cost, o.event.Allowed, o.event.Limit = outcome, n, allowed, limit
	o.observer(ctx, o.event)
}

// outcome returns that of a decision that the store was asked for.
func (l *Limiter) outcome(r Result, failure Failure, err error) Outcome {
	switch {
	case failure == FailClosed && errors.Is(err, ErrUnavailable) && !errors.Is(err, errLimiterClosed):
		return OutcomeClosed
	case err != nil:
		return OutcomeError
	case r.Source == FromMemory:
		return OutcomeRefusedFromMemory
	case r.Source == FromLocal && l.source != FromLocal && failure == FailOpen:
		return OutcomeOpen
	case r.Source == FromLocal && l.source != FromLocal:
		return OutcomeLocal
	case r.Allowed:
		return OutcomeAllowed
	}
	return OutcomeRefused
}

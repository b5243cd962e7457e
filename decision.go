// What a handler and ReserveAll share: one decision of several policies, and its part for each policy.

package ginlimit

import (
	"context"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/goroutine"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// phase is how far a request has come with a policy.
type phase uint8

const (
	undecided phase = iota
	absent          // a dry run that could not decide
	bypassed
	decided // its result does not change any more
)

// part is what a request asks of one of its policies, and what was decided.
type part struct {
	policy *Policy
	client string
	keyErr error // why there is no key
	hasKey bool  // it was looked for
	hasN   bool  // the cost is known
	asked  bool  // it had everything that a decision needs
	dry    bool  // it decides apart, and never denies
	phase  phase
	n      int // tokens that the request takes
	limits *policyLimits
	ask    *engine.Ask    // nil if nobody is asked, or the request has been answered
	answer *engine.Answer // likewise
	hash   uint64         // of the key; 0 if no bucket was asked
	result Result
}

// decision is what several policies decide on a request, in a handler or for a [Reservation].
type decision struct {
	limiter *Limiter // of all policies
	parts   []part
	trials  int             // how many of the last asks are of dry runs
	asks    []engine.Ask    // in the order in which they are decided, once arranged
	answers []engine.Answer // to the asks
	began   time.Time       // if there are observers
	slots   bool            // it may take some

	one *memory // for the ask of one policy; nil if there are several
}

// memory is for one ask.
type memory struct {
	asks     [1]engine.Ask
	answers  [1]engine.Answer
	statuses [1]rules.Status
}

// add adds an ask of a policy, which the caller fills in.
func (d *decision) add(i int) *engine.Ask {
	t, one := &d.parts[i], d.one
	t.asked, d.slots = true, d.slots || t.limits.slots > 0
	if one != nil {
		d.asks, d.answers, t.answer = one.asks[:], one.answers[:], &one.answers[0]
		*t.answer = engine.Answer{Statuses: one.statuses[:0]}
		if t.dry {
			d.trials = 1
		}
	} else if d.asks == nil {
		d.asks = make([]engine.Ask, len(d.parts))
	}
	t.ask = &d.asks[i]
	return t.ask
}

// arrange brings the asks of several policies into the order in which they are decided: dry runs last.
func (d *decision) arrange() {
	var few [4]*part // on the stack
	order, same, live := few[:0], true, 0
	for _, dry := range [...]bool{false, true} {
		for i := range d.parts {
			if t := &d.parts[i]; t.ask != nil && t.dry == dry {
				same = same && len(order) == i
				order = append(order, t)
			}
		}
		if !dry {
			live = len(order)
		}
	}
	d.trials = len(order) - live
	d.answers = make([]engine.Answer, len(order))
	if same {
		d.asks = d.asks[:len(order)]
	} else {
		d.asks = make([]engine.Ask, len(order))
	}
	for i, t := range order {
		d.asks[i] = *t.ask
		t.ask, t.answer = &d.asks[i], &d.answers[i]
		t.ask.Leases = false // also if the others are bypassed: those that are not would miss what it holds
		if i < live && live > 1 && t.n == 0 && t.ask.Failure == engine.FailClosed {
			t.ask.Failure = engine.FailOpen // it passes, and has no say in whether others do
		}
	}
}

// take decides on the request by the policies in force, and by dry runs at the same time. It returns the policy in
// force that has no decision, and why. The request says how it waits.
func (d *decision) take(ctx context.Context, r engine.Request) (failed *part, why failure) {
	r.Asks, r.Answers, r.Trials = d.asks, d.answers, d.trials
	if len(d.asks) > 0 {
		if err := d.limiter.engine.Take(ctx, r); err != nil {
			return d.undecided(err)
		}
	}
	return nil, failure{}
}

// leaveOutTrials leaves out the dry runs that have no decision. A function learns why.
func (d *decision) leaveOutTrials(failed func(*part, failure)) {
	for i := len(d.asks) - d.trials; i < len(d.asks); i++ {
		if a := &d.answers[i]; a.Failed != nil {
			t := d.partOf(i)
			t.phase = absent
			failed(t, failure{err: a.Failed, store: a.Err})
		}
	}
}

// undecided returns the part that has no decision, and why.
func (d *decision) undecided(err error) (failed *part, why failure) {
	for i := range d.parts {
		t := &d.parts[i]
		if t.ask == nil || t.dry || t.answer.Decided {
			continue
		}
		if failed == nil || failed.n == 0 && t.n > 0 {
			failed = t
		}
		if t.answer.Err != nil && t.n > 0 {
			failed = t
			break
		}
	}
	if failed == nil { // each was decided, and the limiter was closed
		failed = d.partOf(0)
	}
	return failed, failure{err: err, store: failed.answer.Err}
}

// partOf returns the part of an ask.
func (d *decision) partOf(ask int) *part {
	for i := range d.parts {
		if d.parts[i].ask == &d.asks[ask] {
			return &d.parts[i]
		}
	}
	return nil
}

// judge takes the results from the answers, and reports them to observers: of a denied request only the denials, of a
// failed request only what dry runs decided. It returns the part in force that denies for longest, or nil if the
// request is allowed.
func (d *decision) judge(ctx context.Context, failed bool) (denial *part) {
	for i := range d.parts {
		t := &d.parts[i]
		if t.phase != undecided || t.answer == nil || !t.answer.Decided || failed && !t.dry {
			continue
		}
		t.phase, t.hash, t.result = decided, t.answer.Hash, t.limits.result(t.answer)
		if t.result.Allowed {
			continue
		}
		if t.answer.BusyCost > 0 {
			t.policy.warnBurst(ctx, t.answer, t.result)
		}
		if !t.dry && (denial == nil || t.result.closerThan(denial.result)) {
			denial = t
		}
	}
	for i := 0; d.limiter.observers != nil && i < len(d.parts); i++ {
		if t := &d.parts[i]; t.decides() && (t.dry || t.result.Allowed == (denial == nil)) {
			d.record(ctx, t, outcomeOf(t.result, nil), t.result.Allowed, failure{store: t.answer.Err})
		}
	}
	return denial
}

// decides reports whether limits of the policy have decided, rather than a list.
func (t *part) decides() bool { return t.asked && t.phase == decided }

// record reports to observers what a policy decided.
func (d *decision) record(ctx context.Context, t *part, outcome Outcome, allowed bool, why failure) {
	p, r := t.policy, t.result
	if p.limiter.observers == nil {
		return
	}
	if outcome == OutcomeSkipped || outcome == OutcomeFailed {
		r = Result{}
	}
	o := observation{p.limiter.observers, d.began, Event{Name: p.name, DryRun: p.dryRun}, t.client}
	if t.answer != nil {
		o.event.Waited = t.answer.Waited
	}
	o.record(ctx, outcome, t.n, allowed, r, why)
}

// denies reports whether the request is denied by the policy.
func (t *part) denies() bool { return t.phase == decided && !t.result.Allowed && !t.dry }

// release gives the slots of the request back.
func (d *decision) release() {
	for i := range d.answers {
		if d.answers[i].HasSlot() {
			charge := d.answers[i].Charge(&d.asks[i])
			d.limiter.engine.Release(&charge)
		}
	}
}

// slowFunc is for how long functions of several policies are asked one after another: what they have in memory they
// return sooner.
const slowFunc = time.Millisecond

// foundLimits are the limits of a client as its policy has them, or why there are none.
type foundLimits struct {
	limits *policyLimits
	err    error
	known  bool // else nobody has looked
}

// findLimits returns the limits of a part of a decision: those that were found, if somebody has looked.
func (t *part) findLimits(ctx context.Context, found []foundLimits, i int) (*policyLimits, error) {
	if found != nil && found[i].known {
		return found[i].limits, found[i].err
	}
	return t.policy.limitsOf(ctx, t.client)
}

// askFuncs asks the functions of several policies for the limits of their clients, at the same time if they are slow.
// It returns nil if fewer than two are to be asked: then prepare asks. No policy in force that has no key, or comes
// after such a policy, is asked. Without hasKey each has one, and after an error of a policy in force no dry run is
// decided either.
//
// If a function can find a [gin.Context], nobody is asked here, as several goroutines may not use one. Functions of
// keys and costs get it, so they are called one after another in any case.
func askFuncs(ctx context.Context, parts []part, hasKey func(*part) bool) []foundLimits {
	funcs := 0
	for i := range parts {
		if t := &parts[i]; t.phase == undecided && t.policy.counts.limitFunc != nil {
			funcs++
		}
	}
	if funcs < 2 || ctx.Value(gin.ContextKey) != nil {
		return nil
	}
	asked := make([]int, 0, funcs)
	for i := range parts {
		t := &parts[i]
		if t.phase != undecided {
			continue
		}
		if has := hasKey == nil || hasKey(t); !has && !t.dry {
			break // nobody after it is asked
		} else if has && t.policy.counts.limitFunc != nil {
			asked = append(asked, i)
		}
	}
	if len(asked) < 2 {
		return nil
	}
	return askEach(ctx, parts, asked, hasKey == nil)
}

// askEach asks for the limits of some parts. After an error of a policy in force, the later ones do not count, but dry
// runs unless cutsDry: the context of what does not count ends.
func askEach(ctx context.Context, parts []part, asked []int, cutsDry bool) []foundLimits {
	found := make([]foundLimits, len(parts))
	goroutine.Together(ctx, len(asked), slowFunc, func(within context.Context, n int) (more bool) {
		i := asked[n]
		t, f := &parts[i], &found[i]
		if t.dry && !cutsDry {
			within = ctx
		}
		f.limits, f.err = t.policy.limitsOf(within, t.client)
		f.known = true
		return f.err == nil || t.dry
	})
	return found
}

// settle makes charges what the work took, and reports to observers what is left: a function returns the part of a
// decision whose charge it is. It returns the errors.
func (l *Limiter) settle(ctx context.Context, actual []int64, charges []engine.Charge, of func(i int) *part) []error {
	began := time.Now()
	return l.engine.Settle(ctx, actual, charges, func(ctx context.Context, answers []engine.Answer) {
		for i := range answers {
			if t, a := of(i), &answers[i]; l.observers != nil && t.result.Allowed && a.Failed == nil { // else nothing was taken
				t.recordSettled(ctx, began, actual[i], a)
			}
		}
	})
}

// recordSettled reports to observers that a charge was settled.
func (t *part) recordSettled(ctx context.Context, began time.Time, actual int64, left *engine.Answer) {
	p, r := t.policy, t.result
	if left.Decided {
		r = t.limits.result(left)
	}
	r.Granted = int(actual) - t.result.Granted
	o := observation{p.limiter.observers, began, Event{Name: p.name, DryRun: p.dryRun}, t.client}
	o.record(ctx, OutcomeSettled, int(actual), true, r, failure{})
}

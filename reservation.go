package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/engine"
)

// Charge is N tokens, at least 1, of each limit of a policy, and a slot if it has [InFlight], for one client.
type Charge struct {
	Policy *Policy
	Client string
	N      int
}

// Reservation is tokens and slots, for work whose cost is known afterwards.
//
// Take an estimate by [Policy.Reserve] or [ReserveAll], and do the work if Result allows it. Defer Release,
// and call Settle with what the work took, or Cancel. Tokens that are never settled stay as they were
// estimated. It may be used by several goroutines.
type Reservation struct {
	limiter  *Limiter
	result   Result
	results  []Result
	taken    []engine.Charge // one for each charge; the zero Charge is nothing
	settled  atomic.Bool
	released atomic.Bool

	one struct { // memory for one charge
		results [1]Result
		taken   [1]engine.Charge
	}
}

// errNotReserved is the error of a zero Reservation.
var errNotReserved = invalid("the reservation was not made by Reserve")

// Reserve takes n tokens of a client from each limit, and a slot if the policy has [InFlight], or nothing. It
// is [ReserveAll] of one charge.
func (p *Policy) Reserve(ctx context.Context, client string, n int) (*Reservation, error) {
	return ReserveAll(ctx, Charge{p, client, n})
}

// ReserveAll takes all charges or nothing, as [AllOf] does: outside HTTP, or in a handler that learns a key
// only late. If a policy denies, the Reservation holds nothing; with an error there is none. A policy
// [WithQueue] waits. A policy [WithDryRun] decides apart, waits for nothing and denies nothing; if all are
// dry runs, the Reservation says what they would have decided. Errors are as for [Policy], joined; no charge,
// policies of two limiters, two charges of the same keys and one [WithLease] beside others are an
// [ErrInvalidArgument].
func ReserveAll(ctx context.Context, charges ...Charge) (*Reservation, error) {
	if err := checkCharges(charges); err != nil {
		return nil, err
	}
	var q reserving
	if err := q.ask(ctx, charges); err != nil {
		return nil, err
	}
	r, kept := &Reservation{limiter: charges[0].Policy.limiter}, false
	defer func() { // an observer may panic
		if !kept {
			r.Release()
		}
	}()
	err := q.decide(ctx, r)
	if err != nil {
		return nil, err
	}
	kept = r.result.Allowed
	return r, nil
}

// checkCharges reports every error in the charges.
func checkCharges(charges []Charge) error {
	if len(charges) == 0 {
		return invalid("ReserveAll without a charge")
	}
	var errs []error
	for i, c := range charges {
		fault := func(err error) {
			if err != nil && len(charges) > 1 {
				err = fmt.Errorf("%w (charge %d)", err, i+1)
			}
			errs = append(errs, err)
		}
		fault(checkArguments(c.Client, c.N))
		if !c.Policy.made() {
			fault(errNoPolicy)
			continue
		}
		fault(c.Policy.checkTenant())
		if len(charges) > 1 && c.Policy.leases() {
			fault(excluded("WithLease", severalPolicies).err())
		}
		for j, before := range charges[:i] {
			switch {
			case !before.Policy.made():
			case before.Policy.limiter != c.Policy.limiter:
				fault(invalid("the policy is of another limiter than that of charge %d", j+1))
			case before.keys() == c.keys():
				fault(invalid("it has the keys of charge %d; make them one charge", j+1))
			}
		}
	}
	return errors.Join(errs...)
}

// keys is what the keys of a charge depend on.
func (c Charge) keys() [3]string { return [...]string{c.Policy.prefix, c.Client, c.Policy.tenant.Name} }

// reserving is a Reservation in the making.
type reserving struct {
	charges []pendingCharge // in the order of the charges
	asks    []engine.Ask    // in the order in which they are decided
	answers []engine.Answer // to the asks
	live    int             // how many of the asks are of policies in force: the first ones
}

// pendingCharge is a charge, and what is asked for it.
type pendingCharge struct {
	Charge
	observed observation
	limits   *policyLimits // nil if nobody is asked, as a dry run could not
	at       int           // of its ask
	result   Result
}

// ask prepares the questions. The error is that of a policy's function.
func (q *reserving) ask(ctx context.Context, charges []Charge) error {
	inForce := slices.ContainsFunc(charges, func(c Charge) bool { return !c.Policy.dryRun })
	q.charges, q.asks = make([]pendingCharge, len(charges)), make([]engine.Ask, 0, len(charges))
	var turns [3][]int
	for i, c := range charges {
		p := c.Policy
		t := &q.charges[i]
		t.Charge, t.observed = c, p.observe()
		limits, err := p.limitsOf(ctx, c.Client)
		p.warnNoClient(ctx, c.Client)
		apart := p.dryRun && inForce
		if err != nil {
			t.observed.record(ctx, OutcomeFailed, c.N, false, Result{}, failure{err: err, origin: fromLimitFunc})
			if apart {
				continue
			}
			return err
		}
		t.limits = limits
		turn := 0
		switch {
		case apart:
			turn = 2
		case limits.rules.Divided():
			turn = 1
		}
		turns[turn] = append(turns[turn], i)
	}
	for turn, parts := range turns {
		for _, i := range parts {
			q.charges[i].at = len(q.asks)
			q.asks = append(q.asks, q.charges[i].asks())
		}
		if turn < 2 {
			q.live = len(q.asks)
		}
	}
	q.answers = make([]engine.Answer, len(q.asks))
	return nil
}

// asks returns the question of a charge.
func (t *pendingCharge) asks() engine.Ask {
	ask := t.Policy.askOf(t.Client, t.limits)
	ask.N, ask.Settles = int64(t.N), true
	if !t.Policy.dryRun {
		ask.Queue = t.Policy.asks.queue
	}
	return ask
}

// decide has the policies decide, and fills in the Reservation.
func (q *reserving) decide(ctx context.Context, r *Reservation) error {
	e := r.limiter.engine
	began := time.Now()
	err := e.Take(ctx, &engine.Request{Asks: q.asks[:q.live], Answers: q.answers[:q.live]})
	for _, a := range q.answers[:q.live] {
		began = began.Add(a.Waited)
	}
	errs := make([]error, len(q.asks)-q.live) // of dry runs
	for i := range errs {
		at := q.live + i
		errs[i] = e.Take(ctx, &engine.Request{
			Asks: q.asks[at : at+1], Answers: q.answers[at : at+1], Began: began,
		})
	}
	denied := err == nil && slices.ContainsFunc(q.answers[:q.live], denies)
	r.hold(q, err == nil && !denied)
	q.record(ctx, err, errs, denied)
	return err
}

func denies(a engine.Answer) bool { return a.Decided && !a.Allowed }

// hold fills in what was decided and taken. If the request is not allowed, only dry runs have taken
// anything, of which the tokens stay taken.
func (r *Reservation) hold(q *reserving, allowed bool) {
	r.results, r.taken = r.one.results[:0], r.one.taken[:]
	if len(q.charges) > 1 {
		r.taken = make([]engine.Charge, len(q.charges))
	}
	found := false
	for i := range q.charges {
		t := &q.charges[i]
		if t.limits == nil || !q.answers[t.at].Decided {
			continue
		}
		a := &q.answers[t.at]
		dry := t.at >= q.live
		if a.Allowed && (allowed || dry) {
			r.taken[i] = a.Charge(&q.asks[t.at])
		}
		t.result = t.limits.result(r.limiter.engine, a)
		if t.result.Allowed != allowed && !dry || dry && !allowed {
			continue
		}
		r.results = append(r.results, t.result)
		if !dry && (!found || t.result.closerThan(r.result)) {
			r.result, found = t.result, true
		}
	}
}

// record has observers know what each policy decided: of a request that is denied those that deny it, of
// one that failed the one that has no decision.
func (q *reserving) record(ctx context.Context, err error, errs []error, denied bool) {
	failed := q.failed()
	for i := range q.charges {
		t := &q.charges[i]
		if t.limits == nil {
			continue
		}
		a, why := &q.answers[t.at], err
		switch {
		case t.at >= q.live:
			why = errs[t.at-q.live]
		case err != nil && t.at != failed, denied && !denies(*a):
			continue
		}
		if why == nil {
			t.Policy.warnBurst(ctx, a, t.result)
		}
		t.observed.event.Waited = a.Waited
		t.observed.record(ctx, outcomeOf(t.result, why), t.N, t.result.Allowed, t.result, failure{err: why, store: a.Err})
	}
}

// failed returns which of the asks in force has no decision, if the request has none.
func (q *reserving) failed() int {
	undecided := func(a engine.Answer) bool { return !a.Decided }
	late := func(a engine.Answer) bool { return !a.Decided && a.Err != nil }
	return max(0, slices.IndexFunc(q.answers[:q.live], undecided), slices.IndexFunc(q.answers[:q.live], late))
}

// Result returns the decision: the result of [Reservation.Results] closest to exhaustion, a dry run's only if
// all are. It is zero for a nil Reservation.
func (r *Reservation) Result() Result {
	if r == nil {
		return Result{}
	}
	return r.result
}

// Results returns what each policy decided. If the reservation is allowed, that is a Result of each charge,
// in the order given, dry runs too; if it is denied, of each charge that denies.
func (r *Reservation) Results() []Result {
	if r == nil {
		return nil
	}
	return slices.Clone(r.results)
}

// Settle replaces the tokens of each charge by what the work took, one number for each charge, and leaves the
// slots alone. It does so once: further calls, and Cancel, change no tokens and return nil.
//
// If the work took less, the rest is given back, except what has flowed back by itself, or may have; after a
// [Policy.Reset] nothing is given back. If it took more, the difference is charged, and a limit may go into
// debt by up to one burst. A window's debt ends with the window.
//
// A missing, superfluous or negative number is [ErrInvalidArgument], and changes nothing. A context that has
// ended, or a closed limiter, changes nothing either. [ErrUnavailable] means that Redis did not answer: the
// estimate stands, or Redis settles it late. It is not tried again, as that could charge twice.
func (r *Reservation) Settle(ctx context.Context, actual ...int) error {
	if !r.made() {
		return errNotReserved
	}
	var errs []error
	if len(actual) != len(r.taken) {
		errs = append(errs, invalid("settled with %d numbers; want one for each charge, %d", len(actual), len(r.taken)))
	}
	tokens := make([]int64, len(actual))
	for i, n := range actual {
		if tokens[i] = int64(n); n < 0 {
			errs = append(errs, invalid("settled with %d tokens; want at least 0", n))
		}
	}
	if errs != nil {
		return errors.Join(errs...)
	}
	return r.settle(ctx, tokens)
}

func (r *Reservation) settle(ctx context.Context, actual []int64) error {
	if err := r.limiter.engine.Ready(ctx); err != nil {
		return err
	}
	if r.settled.Swap(true) || !r.result.Allowed {
		return nil
	}
	return errors.Join(r.limiter.engine.Settle(ctx, actual, r.taken)...)
}

// Cancel is Settle with 0 for each charge, then Release, also after an error.
func (r *Reservation) Cancel(ctx context.Context) error {
	if !r.made() {
		return errNotReserved
	}
	defer r.Release()
	return r.settle(ctx, make([]int64, len(r.taken)))
}

// Release gives the slots back, without waiting for Redis. The tokens stay taken. More than once is once.
func (r *Reservation) Release() {
	if !r.made() || r.released.Swap(true) {
		return
	}
	for i := range r.taken {
		r.limiter.engine.Release(&r.taken[i])
	}
}

// made reports whether the reservation was made by [ReserveAll].
func (r *Reservation) made() bool { return r != nil && r.limiter != nil }

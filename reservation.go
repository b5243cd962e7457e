package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/traits"
)

// Charge is N tokens, 1 or more, of each limit, and a slot of [InFlight].
type Charge struct {
	Policy *Policy
	Client string
	N      int
}

// Reservation is tokens and slots, for work whose cost is known afterwards. Take an estimate by
// [Policy.Reserve] or [ReserveAll], and do the work if the Reservation is OK. Defer Release, and
// call Settle with what the work took, or Cancel. Without Settle the estimate stays. Slots of a
// Reservation that is dropped without Release become free when it is collected, and the log says
// so. Several goroutines may use it.
type Reservation struct {
	limiter  *Limiter
	parts    []part // of the charges
	result   Result
	results  []Result
	taken    []engine.Charge // one for each charge; the zero Charge is nothing
	dry      bool            // all policies are dry runs, which deny nothing
	settled  atomic.Bool
	released atomic.Bool
	dropped  runtime.Cleanup // what releases the slots if nobody does

	one struct { // memory for one charge
		results [1]Result
		taken   [1]engine.Charge
	}
}

// Errors of a Reservation that holds nothing.
var (
	errNotReserved = invalid("the reservation was not made by Reserve")
	errNotOK       = invalid("the reservation is not OK: it was denied, and holds nothing to settle")
)

// Reserve takes n tokens of a client from each limit, and a slot if the policy has [InFlight], or nothing. It
// is [ReserveAll] of one charge.
func (p *Policy) Reserve(ctx context.Context, client string, n int) (*Reservation, error) {
	return ReserveAll(ctx, Charge{p, client, n})
}

// ReserveAll takes all charges or nothing, as [AllOf] does: outside HTTP, or in a handler that
// learns a key only late. If a policy denies, the Reservation is not OK and holds nothing; with an
// error there is none. A policy [WithQueue] waits. A policy [WithDryRun] decides apart and denies
// nothing. Errors are as for [Policy]; what AllOf panics on is an [ErrInvalidArgument].
func ReserveAll(ctx context.Context, charges ...Charge) (*Reservation, error) {
	return reserve(ctx, traits.Waiting{}, charges...)
}

// reserve is ReserveAll, of a request that waits as its policies say or, of one charge, as it says itself.
func reserve(ctx context.Context, w traits.Waiting, charges ...Charge) (*Reservation, error) {
	if err := checkCharges(charges); err != nil {
		return nil, err
	}
	var d decision
	l := charges[0].Policy.limiter
	waited := l.upkeep.Use(ctx, l.timeout)
	if err := d.charge(ctx, charges); err != nil {
		return nil, err
	}
	if w.Length > 0 {
		d.asks[0].Queue = engine.Queue{Length: w.Length, Wait: w.Max}
	}
	r, kept := &Reservation{limiter: l}, false
	defer func() { // an observer may panic
		if !kept {
			r.released.Store(true)
			d.release()
		}
	}()
	failed, why := d.take(waitContext(ctx), engine.Request{Waited: waited, Since: w.Since, Leaves: w.Leaves})
	if why.err == engine.ErrLeft {
		return nil, traits.ErrLeft
	}
	d.leaveOutTrials(func(t *part, why failure) { d.record(ctx, t, OutcomeFailed, false, why) })
	denial := d.judge(ctx, failed != nil)
	if failed != nil {
		d.record(ctx, failed, OutcomeFailed, false, why)
		return nil, why.err
	}
	r.hold(&d, denial == nil)
	if kept = r.result.Allowed; kept {
		r.releaseWhenDropped(&d)
	}
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
				fault(invalid("the policy is of another limiter than charge %d's", j+1))
			case before.keys() == c.keys():
				fault(invalid("it has the keys of charge %d; make them one charge", j+1))
			}
		}
	}
	return errors.Join(errs...)
}

// checkArguments reports every error in the arguments that all methods have.
func checkArguments(client string, n int) error {
	if client != "" && n >= 1 {
		return nil
	}
	var errs []error
	if client == "" {
		errs = append(errs, errEmptyClient())
	}
	if n < 1 {
		errs = append(errs, fmt.Errorf("%w: a cost of %d; want at least 1", ErrInvalidArgument, n))
	}
	return errors.Join(errs...)
}

// keys is what the keys of a charge depend on.
func (c Charge) keys() [3]string { return [...]string{c.Policy.prefix, c.Client, c.Policy.tenant.Name} }

// charge fills in what charges ask, and which of them are dry runs: all in force if no other is. The error is
// of a policy's function.
func (d *decision) charge(ctx context.Context, charges []Charge) error {
	if len(charges) == 1 {
		one := new(struct {
			memory
			parts [1]part
		})
		d.one, d.parts = &one.memory, one.parts[:]
	} else {
		d.parts = make([]part, len(charges))
	}
	if d.limiter = charges[0].Policy.limiter; d.limiter.observers != nil {
		d.began = time.Now()
	}
	inForce := slices.ContainsFunc(charges, func(c Charge) bool { return !c.Policy.dryRun })
	for i, c := range charges {
		t := &d.parts[i]
		t.policy, t.client, t.n, t.dry = c.Policy, c.Client, c.N, c.Policy.dryRun && inForce
	}
	var found []foundLimits
	if len(charges) > 1 {
		found = askFuncs(ctx, d.parts, nil)
	}
	for i, c := range charges {
		p, t := c.Policy, &d.parts[i]
		p.publish()
		var err error
		t.limits, err = t.findLimits(ctx, found, i)
		p.warnNoClient(ctx, c.Client)
		if err != nil {
			d.record(ctx, t, OutcomeFailed, false, failure{err: err, origin: ReasonLimitFunc})
			if !t.dry {
				return err
			}
			t.phase = absent
			continue
		}
		ask := d.add(i)
		*ask = p.askOf(c.Client, t.limits)
		ask.N, ask.Queue, ask.Settles, ask.Recalls = int64(c.N), p.asked.Queue, true, true
	}
	if len(charges) > 1 {
		d.arrange()
	}
	return nil
}

// hold fills in what was decided and taken. If the request is denied, only dry runs have taken anything, of
// which the tokens stay taken.
func (r *Reservation) hold(d *decision, allowed bool) {
	r.dry = !slices.ContainsFunc(d.parts, func(t part) bool { return !t.policy.dryRun })
	r.parts, r.results, r.taken = d.parts, r.one.results[:0], r.one.taken[:]
	if len(d.parts) > 1 {
		r.taken = make([]engine.Charge, len(d.parts))
	}
	found := false
	for i := range d.parts {
		t := &d.parts[i]
		if t.phase != decided {
			continue
		}
		if t.result.Allowed && (allowed || t.dry) {
			r.taken[i] = t.answer.Charge(t.ask)
		}
		if allowed || t.denies() {
			r.results = append(r.results, t.result)
		}
		if !t.dry && t.result.Allowed == allowed && (!found || t.result.closerThan(r.result)) {
			r.result, found = t.result, true
		}
	}
}

// releaseWhenDropped has the slots released when nobody has the reservation any more.
func (r *Reservation) releaseWhenDropped(d *decision) {
	var slots []engine.Abandoned
	for i := range r.taken {
		if r.taken[i].HasSlot() {
			slots = append(slots, engine.Abandoned{Charge: r.taken[i], Log: d.parts[i].policy.warnDropped})
		}
	}
	if slots != nil {
		r.dropped = runtime.AddCleanup(r, r.limiter.engine.Abandon, slots)
	}
}

// warnDropped logs, once in a while, that a reservation was dropped with a slot of the policy.
func (p *Policy) warnDropped() {
	if p.logged.dropped.Allow() {
		p.limiter.logger.Warn("ginlimit: a Reservation was dropped without Release; its slot was taken until now",
			"name", p.name)
	}
}

// OK reports whether all charges were allowed, or are dry runs, so that the work may begin. It stays
// so after Release and Cancel.
func (r *Reservation) OK() bool { return r.made() && (r.result.Allowed || r.dry) }

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

// Settle replaces the tokens of each charge by what the work took, one number for each charge, and
// leaves the slots alone. It does so once: further calls, and Cancel, change no tokens and return
// nil. If the work took less, the rest is given back, except what has flowed back by itself or was
// reset. If it took more, a limit may go into debt by up to one burst.
//
// The context bounds only for how long Settle waits, as the client may have left: then it returns
// the context's error and goes on in the background, for no longer than [WithTimeout];
// [Limiter.Close] waits for that. After [ErrUnavailable] the estimate stands, or Redis settles it
// late. After [ErrInvalidArgument], such as for a negative number, nothing has changed.
func (r *Reservation) Settle(ctx context.Context, actual ...int) error {
	switch {
	case !r.made():
		return errNotReserved
	case !r.OK():
		return errNotOK
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
	if err := r.limiter.engine.Ready(context.Background()); err != nil { // it is closed
		return err
	}
	if r.settled.Swap(true) || !r.result.Allowed { // dry runs that would have denied hold nothing
		return nil
	}
	return errors.Join(r.limiter.settle(ctx, actual, r.taken, func(i int) *part { return &r.parts[i] })...)
}

// Cancel is Settle with 0 for each charge, then Release, also after an error. It does nothing if
// the Reservation is not OK.
func (r *Reservation) Cancel(ctx context.Context) error {
	switch {
	case !r.made():
		return errNotReserved
	case !r.OK():
		return nil
	}
	defer r.Release()
	return r.settle(ctx, make([]int64, len(r.taken)))
}

// Release frees the slots, without waiting for Redis. The tokens stay taken. A second call does nothing.
func (r *Reservation) Release() {
	if !r.made() || r.released.Swap(true) {
		return
	}
	r.dropped.Stop()
	for i := range r.taken {
		r.limiter.engine.Release(&r.taken[i])
	}
	runtime.KeepAlive(r) // until it is stopped
}

// made reports whether the reservation was made by [ReserveAll].
func (r *Reservation) made() bool { return r != nil && r.limiter != nil }

// waitContext returns the context by which a caller waits: for a [gin.Context] its request's, as a gin.Context
// itself ends only if its engine has ContextWithFallback.
func waitContext(ctx context.Context) context.Context {
	if c, ok := ctx.(*gin.Context); ok && c.Request != nil {
		return requestContext{c.Request.Context(), c}
	}
	return ctx
}

// requestContext is the context of a request, with the values of its gin.Context too.
type requestContext struct {
	context.Context
	values *gin.Context
}

// Value implements [context.Context].
func (c requestContext) Value(key any) any {
	if v := c.values.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

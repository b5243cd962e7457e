package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/overrides"
	"github.com/ginlimit/ginlimit/internal/traits"
)

// question is what a method asks about a client, and its memory. It is used again.
type question struct {
	policy   *Policy
	observed observation
	set      *policyLimits
	asks     [1]engine.Ask
	answers  [1]engine.Answer
	waited   time.Duration // for a look at the overrides

	override  []Limit     // that the question goes by, if it waits; nil is none
	stops     func() bool // reports that whoever waits does so no longer; may be nil
	leavesNow func() bool // leaves
}

// ask makes a question from a method's arguments, or returns all faults in them. The caller puts it back.
func (p *Policy) ask(ctx context.Context, client string, n int) (*question, error) {
	if !p.made() {
		return nil, errNoPolicy
	}
	if err := errors.Join(checkArguments(client, n), p.checkTenant()); err != nil {
		return nil, err
	}
	waited := p.limiter.upkeep.Use(ctx, p.limiter.timeout)
	limits, err := p.limitsOf(ctx, client)
	p.warnNoClient(ctx, client)
	if err != nil {
		return nil, err
	}
	q, ok := p.limiter.questions.Get().(*question)
	if !ok {
		q = new(question)
		q.leavesNow = q.leaves
	}
	q.policy, q.set, q.observed, q.waited = p, limits, observation{}, waited
	q.asks[0], q.answers[0] = p.askOf(client, limits), engine.Answer{}
	q.asks[0].N = int64(n)
	q.override, q.stops = nil, nil
	return q, nil
}

// observed is ask for a method that takes tokens, which observers see. An error of the policy's
// function makes an Event too.
func (p *Policy) observed(ctx context.Context, client string, n int) (*question, error) {
	if !p.made() {
		return nil, errNoPolicy
	}
	p.publish()
	o := p.observe(client)
	q, err := p.ask(ctx, client, n)
	if err != nil && client != "" && n > 0 && p.checkTenant() == nil {
		o.record(ctx, OutcomeFailed, n, false, Result{}, failure{err: err, origin: ReasonLimitFunc})
	}
	if err != nil {
		return nil, err
	}
	q.observed = o
	return p.askedForTokens(q, client, n)
}

// askedForTokens returns a question whose limits have no slots.
func (p *Policy) askedForTokens(q *question, client string, n int) (*question, error) {
	if q.set.slots == 0 {
		return q, nil
	}
	if set := p.withoutSlots(client, q.set); set != nil {
		q.set, q.asks[0] = set, p.askOf(client, set)
		q.asks[0].N = int64(n)
		return q, nil
	}
	q.putBack()
	return nil, errTakesSlots
}

// errTakesSlots is returned by methods that take tokens but could not release a slot.
var errTakesSlots = invalid("the policy has InFlight, and a slot has to be released: call Reserve")

// observe begins an Event of the policy about a client, for each of the observers.
func (p *Policy) observe(client string) observation {
	if p.limiter.observers == nil {
		return observation{}
	}
	return observation{p.limiter.observers, time.Now(), Event{Name: p.name, DryRun: p.dryRun}, client}
}

// putBack keeps a question's memory for the next question.
func (q *question) putBack() { q.policy.limiter.questions.Put(q) }

// result returns the Result of the answer.
func (q *question) result() Result { return q.set.result(&q.answers[0]) }

// take takes the tokens of the question. The request says how it waits.
func (q *question) take(ctx context.Context, r engine.Request) error {
	r.Asks, r.Answers, r.Waited = q.asks[:], q.answers[:], q.waited
	return q.policy.limiter.engine.Take(ctx, r)
}

// rest returns a context for a call that takes no tokens.
func (q *question) rest(ctx context.Context) (context.Context, context.CancelFunc) {
	return q.policy.limiter.engine.Rest(ctx, q.waited)
}

// end records the decision on n tokens, and returns its Result.
func (q *question) end(ctx context.Context, n int, err error) (Result, error) {
	var r Result
	if q.answers[0].Decided {
		r = q.result()
	}
	return q.endWith(ctx, n, r, err)
}

// endWith records a result, and returns it.
func (q *question) endWith(ctx context.Context, n int, r Result, err error) (Result, error) {
	if err == nil {
		q.policy.warnBurst(ctx, &q.answers[0], r)
	}
	if q.observed.observers != nil {
		a := &q.answers[0]
		q.observed.event.Waited = a.Waited
		q.observed.record(ctx, outcomeOf(r, err), n, r.Allowed, r, failure{err: err, store: a.Err})
	}
	return r, err
}

// Allow is [Policy.AllowN] with n = 1.
func (p *Policy) Allow(ctx context.Context, client string) (Result, error) {
	return p.AllowN(ctx, client, 1)
}

// AllowN takes n tokens of a client, at least 1, from each limit, or none.
func (p *Policy) AllowN(ctx context.Context, client string, n int) (Result, error) {
	q, err := p.observed(ctx, client, n)
	if err != nil {
		return Result{}, err
	}
	defer q.putBack()
	return q.end(ctx, n, q.take(ctx, engine.Request{}))
}

// AllowUpTo takes up to n tokens, at least 1: Granted, the same of each limit.
func (p *Policy) AllowUpTo(ctx context.Context, client string, n int) (Result, error) {
	q, err := p.observed(ctx, client, n)
	if err != nil {
		return Result{}, err
	}
	defer q.putBack()
	q.asks[0].UpTo = true
	return q.end(ctx, n, q.take(ctx, engine.Request{}))
}

// Wait is [Policy.WaitN] with n = 1.
func (p *Policy) Wait(ctx context.Context, client string) error { return p.WaitN(ctx, client, 1) }

// WaitN takes n tokens of a client, at least 1, as soon as they are available, in order of arrival
// in this process; bound yourself how many wait. It returns at once if they would come after the
// context's deadline, with an error that wraps [context.DeadlineExceeded], and if a limit never
// holds n tokens, with [ErrInvalidArgument]. With [FailClosed] it waits through an outage. Derive a
// context from c.Request.Context(), not from a [gin.Context].
func (p *Policy) WaitN(ctx context.Context, client string, n int) error {
	return p.waitN(ctx, client, n, traits.Waiting{})
}

func (p *Policy) waitN(ctx context.Context, client string, n int, w traits.Waiting) error {
	var override []Limit
	if p.made() {
		override = p.overrideOf(client)
	}
	q, err := p.observed(ctx, client, n)
	if err != nil {
		return err
	}
	defer func() { q.putBack() }()
	if w.Since.IsZero() {
		w.Since = time.Now()
	}
	waits := waitContext(ctx)
	for {
		q.override, q.stops = override, w.Leaves
		q.asks[0].Recalls = true
		q.asks[0].Queue = engine.Queue{Length: engine.Endless, Wait: w.Max}
		if err = q.take(waits, engine.Request{Since: w.Since, Leaves: q.leavesNow}); err != engine.ErrLeft {
			break
		}
		if w.Leaves != nil && w.Leaves() {
			return traits.ErrLeft
		}
		override = p.overrideOf(client) // another one
		next, fault := p.ask(ctx, client, n)
		if fault == nil {
			next.answers[0].Waited = q.answers[0].Waited
			next, fault = p.askedForTokens(next, client, n)
		}
		if err = fault; err != nil {
			break
		}
		next.observed = q.observed
		q.putBack()
		q = next
	}
	r, err := q.end(ctx, n, err)
	if err == nil && !r.Allowed {
		return fmt.Errorf("%w: %s never allows %d at once, so there is nothing to wait for",
			ErrInvalidArgument, r.Limit, n)
	}
	return err
}

// leaves reports whether a question waits under these limits no longer.
func (q *question) leaves() bool {
	return q.stops != nil && q.stops() || !slices.Equal(q.override, q.policy.overrideOf(q.asks[0].Client))
}

// Peek returns what a request for one token of a client, and for a slot if there is [InFlight],
// would get now, and takes nothing.
func (p *Policy) Peek(ctx context.Context, client string) (Result, error) {
	q, err := p.ask(ctx, client, 1)
	if err != nil {
		return Result{}, err
	}
	defer q.putBack()
	ctx, cancel := q.rest(ctx)
	defer cancel()
	if err := p.limiter.engine.Peek(ctx, &q.asks[0], &q.answers[0]); err != nil {
		return Result{}, err
	}
	return q.result(), nil
}

// Status is [Policy.Peek] for each limit of the policy, in the order given, in one round trip.
// Remaining of [InFlight] is its free slots.
func (p *Policy) Status(ctx context.Context, client string) ([]Result, error) {
	q, err := p.ask(ctx, client, 1)
	if err != nil {
		return nil, err
	}
	defer q.putBack()
	ctx, cancel := q.rest(ctx)
	defer cancel()
	if err := p.limiter.engine.Status(ctx, &q.asks[0], &q.answers[0]); err != nil {
		return nil, err
	}
	return q.set.rows(&q.answers[0]), nil
}

// Refund gives n tokens, at least 1, back to a client in each limit, up to a full bucket, also
// tokens that have flowed back, which [Reservation.Settle] does not. Without Redis it does so in
// this process, and returns [ErrUnavailable].
func (p *Policy) Refund(ctx context.Context, client string, n int) error {
	q, err := p.ask(ctx, client, n)
	if err != nil {
		return err
	}
	defer q.putBack()
	ctx, cancel := q.rest(ctx)
	defer cancel()
	return p.limiter.engine.Refund(ctx, int64(n), &q.asks[0])
}

// Block denies a client every token for d, above 0, in every process, at once, but not requests
// that cost nothing. Only [Policy.Reset] ends it earlier. Afterwards a bucket has one token at
// most. It does not block a limit of another period that comes later. A policy without tokens, or
// [WithShares], has no blocks; d is at most thousands of years, or 31 periods of a calendar. If
// Redis is down it returns [ErrUnavailable], and with [FailLocal] the block holds in this process.
func (p *Policy) Block(ctx context.Context, client string, d time.Duration) error {
	return p.change(ctx, client, func(set *policyLimits) error { return set.checkBlockable(d) },
		func(ctx context.Context, ask *engine.Ask) error { return p.limiter.engine.Block(ctx, d, ask) })
}

// Reset fills a client's buckets, and ends a block and a ban. Slots stay taken, and earlier tokens
// are not given back later. [WithShares] it is of all tenants, by [Policy.Share] of one. Without
// Redis it is as [Policy.Refund].
func (p *Policy) Reset(ctx context.Context, client string) error {
	return p.ofAll().change(ctx, client, func(*policyLimits) error { return nil },
		func(ctx context.Context, ask *engine.Ask) error { return p.limiter.engine.Reset(ctx, ask) })
}

// change makes a change that outlasts an override: to the limits of a client, and to those that an override
// replaces, if they have a bucket.
func (p *Policy) change(
	ctx context.Context, client string, check func(*policyLimits) error, do func(context.Context, *engine.Ask) error,
) error {
	q, err := p.ask(ctx, client, 1)
	if err != nil {
		return err
	}
	defer q.putBack()
	sets := []*policyLimits{q.set}
	if _, is := p.limiter.overrides.Find(p.name, client); is {
		own, err := p.limits, error(nil)
		if p.counts.limitFunc != nil {
			own, err = p.funcLimits(ctx, client)
		}
		switch {
		case errors.Is(err, ErrUnknownClient): // it has limits by the override alone
		case err != nil:
			return err
		case own != q.set && len(own.limits) > 0:
			sets = append(sets, own)
		}
	}
	for _, set := range sets {
		err = errors.Join(err, check(set))
	}
	if err != nil {
		return err
	}
	ctx, cancel := q.rest(ctx)
	defer cancel()
	for _, set := range sets {
		ask := p.askOf(client, set)
		if fault := do(ctx, &ask); err == nil {
			err = fault
		}
	}
	return err
}

// Traits is for packages of this module.
func (p *Policy) Traits(traits.Key) (traits.Traits[Limit, *Reservation], bool) {
	if !p.made() {
		return traits.Traits[Limit, *Reservation]{}, false
	}
	return traits.Traits[Limit, *Reservation]{
		Options: p.used, Shares: p.counts.shares != nil, Bans: p.counts.ban != nil, DryRun: p.dryRun,
		LimitFunc: p.counts.limitFunc != nil, Leases: p.counts.lease > 0 && !p.limiter.engine.IsLocal(),
		CheckBlock: p.limits.checkBlockable, Lower: p.lower, Wait: p.waitN, Later: p.limiter.engine.Later,
		Override: func(client string) []Limit {
			p.limiter.upkeep.Use(context.Background(), 0)
			return p.overrideOf(client)
		},
		Reserve: func(ctx context.Context, client string, n int, w traits.Waiting) (*Reservation, error) {
			return reserve(ctx, w, Charge{p, client, n})
		},
	}, true
}

// Traits is for packages of this module.
func (l *Limiter) Traits(traits.Key) traits.Limiter[Limit, Override, overrides.Entry, overrides.Loss] {
	return traits.Limiter[Limit, Override, overrides.Entry, overrides.Loss]{
		TakeHashes: func() { l.engine.Keys = clientkey.Hashes() },
		CheckOverrides: func(ctx context.Context, all []Override) error {
			_, err := operate(ctx, l, func(ctx context.Context) (struct{}, error) {
				_, err := l.changes(ctx, all)
				return struct{}{}, err
			})
			return err
		},
		Overrides: func(ctx context.Context) ([]overrides.Entry, error) { return operate(ctx, l, l.inForce) },
		Read:      readOverrides,
		Loss:      l.overrides.Loss,
		CheckBlock: func(limits []Limit, d time.Duration) error {
			set, err := newLimitSet(limits)
			if err == nil {
				err = set.checkBlockable(d)
			}
			return err
		},
		BucketID: Limit.bucketID,
	}
}

// lower takes at most limit tokens of a client's only limit, down to a floor, and no slot: to returns both.
func (p *Policy) lower(ctx context.Context, client string, to func(Limit) (floor, limit int)) error {
	q, err := p.ask(ctx, client, 1)
	if err != nil {
		return err
	}
	defer q.putBack()
	if len(q.set.limits) != 1 {
		return nil
	}
	own := q.set.limits[0]
	floor, limit := to(own)
	if limit < 1 || floor >= own.burst() {
		return nil
	}
	counts := p.counts
	counts.floor += floor
	if q.set, err = counts.newLimits(p.name, []Limit{own}, 0, p.limiter.engine.IsLocal()); err != nil {
		return err
	}
	q.asks[0].Subject.Set = q.set.rules.Now()
	q.asks[0].N, q.asks[0].UpTo = int64(limit), true
	return q.take(ctx, engine.Request{})
}

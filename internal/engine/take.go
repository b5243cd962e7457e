package engine

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/denycache"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// Take takes what a request asks for, or nothing, and fills in its answers.
//
// Answers that are not Decided are of Asks that nobody looked at, as another one was denied.
func (e *Engine) Take(ctx context.Context, r *Request) error {
	if !r.Began.IsZero() {
		within, cancel := e.within(ctx, r.Began)
		defer cancel()
		return e.takeNow(ctx, within, r.Asks, r.Answers)
	}
	if slices.ContainsFunc(r.Asks, func(a Ask) bool { return a.queues() }) {
		return e.takeInLine(ctx, r)
	}
	return e.takeNow(ctx, ctx, r.Asks, r.Answers)
}

// takeNow takes the tokens of each Ask, or none of any. The store is given less time than the caller has
// if within ends before ctx.
func (e *Engine) takeNow(ctx, within context.Context, asks []Ask, answers []Answer) error {
	if len(asks) == 1 {
		return e.takeOne(ctx, within, &asks[0], &answers[0])
	}
	if err := e.ready(ctx); err != nil {
		return err
	}
	counted := 0
	for i := range asks {
		ask, answer := &asks[i], &answers[i]
		answer.reset()
		if !e.static(ask.N, ask, answer) {
			counted++
		} else if !answer.Allowed {
			for j := range answers[:i] {
				answers[j].Decided = false
			}
			return nil // nobody else is asked
		}
	}
	if counted == 0 {
		return nil
	}
	return e.takeSeveral(ctx, within, asks, answers, counted)
}

// takeOne takes the tokens of an Ask, or none.
func (e *Engine) takeOne(ctx, within context.Context, ask *Ask, answer *Answer) error {
	answer.reset()
	if err := e.ready(ctx); err != nil {
		return err
	}
	if e.static(ask.N, ask, answer) {
		return nil
	}
	return e.take(ctx, within, takeAll(ask), ask.N, ask, answer)
}

// TakeUpTo takes as many tokens as there are, up to n.
func (e *Engine) TakeUpTo(ctx context.Context, n int64, ask *Ask, answer *Answer) error {
	if err := e.ready(ctx); err != nil {
		return err
	}
	answer.reset()
	if e.static(n, ask, answer) {
		return nil
	}
	ask.Bans = bucket.NoBans // who takes fewer tokens than n is not denied
	return e.take(ctx, ctx, bucket.Op{Verb: bucket.Take, Charges: min(n, ask.Set.Burst()), N: 1}, n, ask, answer)
}

// Peek looks at what one token would meet under each Ask, one after another, within one timeout. It
// ends at an Ask that no waiting makes allowed; later answers are not Decided.
func (e *Engine) Peek(ctx context.Context, asks []Ask, answers []Answer) error {
	if err := e.ready(ctx); err != nil {
		return err
	}
	within := ctx
	if len(asks) > 1 {
		var cancel context.CancelFunc
		within, cancel = e.within(ctx, time.Now())
		defer cancel()
	}
	for i := range asks {
		answers[i].reset()
		if !e.static(0, &asks[i], &answers[i]) {
			if err := e.take(ctx, within, bucket.Peek(1), 1, &asks[i], &answers[i]); err != nil {
				return err
			}
		}
		if answers[i].RetryAfter < 0 {
			return nil
		}
	}
	return nil
}

// Status looks at every resource of an Ask, also if a limit prohibits: the answer's Statuses are of
// one token each.
func (e *Engine) Status(ctx context.Context, ask *Ask, answer *Answer) error {
	if err := e.ready(ctx); err != nil {
		return err
	}
	answer.reset()
	if !ask.Set.Counts(ask.Scope) {
		return nil
	}
	ask.Report = rules.ReportFull
	return e.take(ctx, ctx, bucket.Peek(1), 1, ask, answer)
}

// static answers an Ask that needs no bucket.
func (e *Engine) static(n int64, ask *Ask, answer *Answer) bool {
	verdict, ok := ask.Set.Static(ask.Scope, n)
	if !ok {
		return false
	}
	answer.Verdict, answer.Decided, answer.Source = verdict, true, FromStatic
	if !verdict.Allowed && ask.Report != rules.ReportNone {
		answer.Statuses = append(answer.Statuses, rules.Status{Resource: rules.Prohibited, Denies: true})
	}
	return true
}

// takeAll returns the operation that takes the tokens of an Ask or none. It only looks for 0 tokens, and
// for more than there ever are.
func takeAll(ask *Ask) bucket.Op {
	switch n := ask.N; {
	case n == 0:
		return bucket.Peek(1)
	case n > ask.Set.Burst():
		return bucket.Peek(n)
	default:
		return bucket.Op{Verb: bucket.Take, Charges: 1, N: n}
	}
}

// take decides on one Ask that has buckets. The store is given less time than the caller has if
// within ends before ctx.
func (e *Engine) take(ctx, within context.Context, op bucket.Op, n int64, ask *Ask, answer *Answer) error {
	attempts := ask.attempts()
	if attempts { // Close reports how the attempt ends
		if !e.background.Begin() {
			return errClosed()
		}
		defer e.background.Done()
	}
	c := e.call(op, ask, ask.Scope)
	defer e.release(c)
	answer.begin(e, ask, c)
	if ask.bans() {
		c.Op.Bans = ask.Bans
	}
	if attempts {
		defer e.beginAttempt(c, ask)()
	}
	err := e.decide(ctx, within, c, ask, answer)
	if err == nil {
		e.noteBan(c, ask, answer)
	}
	e.endAttempt(c, answer, err)
	answer.allowFree(n)
	return err
}

// begin fills in what is known of an answer before the decision.
func (a *Answer) begin(e *Engine, ask *Ask, c *dispatch.Call) {
	if a.Hash = c.Hash; ask.Settles {
		a.receipt = e.newReceipt()
	}
}

// allowFree allows a request for 0 tokens, whatever is left.
func (a *Answer) allowFree(n int64) {
	if n == 0 {
		a.Allowed, a.RetryAfter = true, 0
	}
}

// decide decides by the first of these that can: a lease, the deny cache, the store, this process.
func (e *Engine) decide(ctx, within context.Context, c *dispatch.Call, ask *Ask, answer *Answer) error {
	op, leases := c.Op, e.mayLease(c, ask)
	if leases && e.decideByLease(c, ask, answer, ask.again) {
		return nil
	}
	var err error
	switch denied := e.isDenied(c, ask); {
	case denied && leases:
		err = e.decideDenied(within, c, ask, answer)
	case denied:
		answer.judge(c, c.Op, ask, FromCache)
		return nil
	case leases:
		err = e.sendLeased(within, c, ask, answer)
	default:
		err = e.store.Do(within, c)
	}
	if err != nil {
		if ctx.Err() == nil && !redisstore.IsCommandError(err) && !errors.Is(err, dispatch.ErrQueueFull) {
			e.leases.Lose() // else Redis may be well
		}
		return e.fallBack(ctx, c, op, ask, answer, err)
	}
	if leases {
		return nil
	}
	answer.receipt.Fill(c.Sent, c.States)
	answer.judge(c, c.Op, ask, FromStore)
	if answer.Allowed {
		e.forgetDenial(c)
	} else {
		e.remember(c)
		e.peekAtLease(c, ask, answer)
	}
	return nil
}

// judge fills in the answer from the states of a call.
func (a *Answer) judge(c *dispatch.Call, op bucket.Op, ask *Ask, source Source) {
	a.Verdict, a.Statuses = ask.Set.Judge(ask.Scope, c.States, op, ask.Report, a.Statuses)
	a.Decided, a.Source = true, source
}

// denial returns what the deny cache knows a call by.
func denial(c *dispatch.Call) denycache.Subject {
	s := denycache.Subject{Key: c.Key, Hash: c.Hash, Buckets: c.Buckets, N: c.Op.N}
	if c.Op.Tenant.Name != "" {
		s.Shared = c.Hash
		s.Key = subject(c.Key, c.Op.Tenant)
		s.Key = strconv.AppendInt(append(s.Key, ' '), c.Op.Tenant.Weight, 10)
		s.Hash = clientkey.Hash(s.Key)
	}
	return s
}

// forgetDenial forgets what the deny cache knows of a call, which Redis has allowed.
func (e *Engine) forgetDenial(c *dispatch.Call) { e.denied.Charge(denial(c)) }

// isDenied reports whether a call is known to be denied, and if so sets its states.
func (e *Engine) isDenied(c *dispatch.Call, ask *Ask) bool {
	subject := denial(c)
	subject.Waits = ask.Waits
	if c.Op.Charges == 0 || !e.denied.Lookup(subject, c.States) {
		return false
	}
	for i := range c.Buckets {
		if c.Buckets[i].Kind == bucket.Ban && c.Op.Bans != bucket.NoBans && c.States[i].Wait == 0 {
			return false // that denial banned nobody, and this one is to
		}
	}
	return true
}

// remember keeps that Redis denied a call.
func (e *Engine) remember(c *dispatch.Call) {
	if c.Op.Charges > 0 {
		e.denied.Remember(denial(c), denycache.Denial{States: c.States, Sent: c.Sent, Received: c.Received})
	}
}

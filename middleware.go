package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"

	"github.com/gin-gonic/gin"
)

// Handler returns the policy's middleware.
//
// It sets X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset, or what [WithHeaders] says, and aborts a refused
// request with 429, and with Retry-After unless no waiting helps. If several handlers decide on one request, these headers
// report the limit closest to exhaustion. It panics on a zero Policy.
func (p *Policy) Handler() gin.HandlerFunc {
	if p == nil || p.limiter == nil {
		panic(errNoPolicy)
	}
	p.serves.Store(true)
	return func(c *gin.Context) { p.serve(c, p.clientKey) }
}

// clientKey returns the key of a request.
func (p *Policy) clientKey(c *gin.Context) (string, error) {
	client, err := p.key(c)
	if err == nil && client == "" {
		err = fmt.Errorf("%w: the key function returned none", ErrNoKey)
	}
	return client, err
}

// serve decides on a request, counted under the key that the function returns.
func (p *Policy) serve(c *gin.Context, key KeyFunc) {
	o := p.observe(p.name)
	c.Set(policyKey, p)
	if p.bypass(c, &o) {
		return
	}
	n := 1
	if p.cost != nil {
		n = p.cost(c)
	}
	state := p.newState()
	state.cost = n
	d, err := p.decide(c, n, key, state)
	if d.slot > 0 { // until the handlers that follow return, or anything before them panics
		defer p.limiter.releaseSlot(p.limiter.keys.Append(nil, p.slotKeyName(), state.subject.client), d.slot)
	}
	outcome, free := p.outcome(d, err), n == 0 && errors.Is(err, ErrUnavailable)
	o.event.Waited = state.subject.waited
	why := failure{err, d.failure, d.origin}
	o.record(c.Request.Context(), outcome, n, free || d.result.Allowed, d.result, why)
	switch {
	case free:
		return // whatever is left
	case err != nil:
		p.fail(c, why)
		return
	}
	state.set(c, d)
	if !p.dryRun {
		state.writeHeaders(c.Writer.Header())
	}
	if !d.result.Allowed && !p.dryRun {
		c.Status(http.StatusTooManyRequests)
		c.Abort()
		p.deniedHandler(c, d.result)
		return
	}
	switch {
	case p.settleFunc != nil && len(d.taken) > 0:
		p.serveSettling(c, n, d.taken)
	case d.slot > 0:
		c.Next()
	}
}

// outcome returns the outcome of a decision, or of an error on the way to one.
func (p *Policy) outcome(d decision, err error) Outcome {
	switch {
	case p.dryRun && err == nil:
		return OutcomeDryRun
	case d.limits == nil:
		return OutcomeError
	}
	return p.limiter.outcome(d.result, p.failure, err)
}

// bypass reports whether a request is not counted. A request from a denied address is answered.
func (p *Policy) bypass(c *gin.Context, o *observation) bool {
	outcome := OutcomeSkipped
	if len(p.allow) > 0 || len(p.deny) > 0 {
		addr, err := clientAddress(c)
		switch {
		case err != nil:
			why := failure{err: err, origin: fromKeyFunc}
			o.record(c.Request.Context(), OutcomeError, 0, false, Result{}, why)
			p.fail(c, why)
			return true
		case p.allowed.Contains(addr):
			outcome = OutcomeListed
		case p.forbidden.Contains(addr):
			o.record(c.Request.Context(), OutcomeListed, 0, false, Result{}, failure{})
			p.newState().set(c, decision{result: Result{Name: p.name, RetryAfter: never, Source: FromPolicy}})
			if !p.dryRun {
				c.Abort()
				answerStatus(c, http.StatusForbidden)
			}
			return true
		}
	}
	if outcome != OutcomeListed && (p.skip == nil || !p.skip(c)) {
		return false
	}
	o.record(c.Request.Context(), outcome, 0, true, Result{}, failure{})
	p.newState().set(c, decision{result: Result{
		Name: p.name, Allowed: true, Limit: Limit{Rate: -1}, Remaining: math.MaxInt, Source: FromPolicy,
	}})
	return true
}

// decision is what a policy decided on a request.
type decision struct {
	result Result
	hash   uint64    // of the policy's own key; 0 if no bucket was asked
	taken  []charge  // which may have to be given back
	slot   int64     // the attempt that holds a slot; 0 is none
	limits *limitSet // of the policy's own key; nil if they were not asked

	identities []subject // with the limits that they had: a calendar period may be over when headers are written

	failure error  // of the store, if it has not decided
	origin  string // of an error, if that is a function of the application
}

// decide decides on a request of n tokens.
func (p *Policy) decide(c *gin.Context, n int, key KeyFunc, state *requestState) (decision, error) {
	if n < 0 {
		return decision{}, fmt.Errorf("%w: a cost of %d; want at least 0", ErrInvalidLimit, n)
	}
	client, err := key(c)
	if err != nil {
		return decision{origin: fromKeyFunc}, err
	}
	ctx := c.Request.Context()
	limits, err := p.limitsOf(ctx, client)
	if err != nil {
		return decision{origin: fromLimitFunc}, err
	}
	own := &state.subject
	*own = subject{keyName: p.keyName, client: client, limits: limits, status: &state.statuses, bans: p.banning(), acquires: p.slots > 0}
	var d decision
	var subjects []subject
	switch {
	case len(p.identities) > 0 || p.trial != nil:
		if p.trial != nil && p.settleFunc != nil {
			own.receipt = p.limiter.newReceipt()
		}
		if subjects, err = p.subjects(c, *own); err != nil {
			return decision{origin: fromKeyFunc}, err
		}
		if p.trial != nil {
			d, err = p.tryOut(ctx, n, subjects...)
		} else if d, err = p.limiter.allowAll(ctx, p.receipted(subjects), n); len(d.taken) > 0 {
			d.slot = d.taken[0].slot
		}
	default:
		if p.settleFunc != nil {
			own.receipt = p.limiter.newReceipt()
		}
		if own.acquires {
			d.result, d.hash, err = p.acquire(ctx, own, n)
		} else {
			d.result, d.hash, err = p.limiter.allow(ctx, own, n)
		}
		d.slot, d.failure = own.slot, own.failure
		if p.settleFunc != nil && d.result.Allowed {
			d.taken = []charge{{*own, d.result.Granted, d.result.Source}}
		}
	}
	d.limits = own.limits // later ones, if it has waited into another calendar period
	if len(subjects) > 1 {
		d.identities = subjects[1:]
	}
	return d, err
}

// receipted has subjects that are decided on together keep how what is taken is found again, if it may be given back.
func (p *Policy) receipted(subjects []subject) []subject {
	if p.settleFunc != nil {
		for i := range subjects {
			subjects[i].receipt = p.limiter.newReceipt()
		}
	}
	return subjects
}

// serveSettling serves the request, and has what was taken for it become what it really took.
func (p *Policy) serveSettling(c *gin.Context, n int, taken []charge) {
	served := false
	defer func() { // not recover, which would hide where a panic came from
		if !served && !c.Writer.Written() {
			c.Status(http.StatusInternalServerError)
		}
		actual := p.settleFunc(c, n)
		if actual < 0 {
			_ = c.Error(fmt.Errorf("%w: settled with %d tokens; want at least 0", ErrInvalidLimit, actual))
			return
		}
		ctx := context.WithoutCancel(c.Request.Context()) // its client may be gone
		for _, err := range p.limiter.settleEach(ctx, taken, actual) {
			_ = c.Error(err) // for the application's log; it returns what it was given
		}
	}()
	c.Next()
	served = true
}

// fail answers a request without a decision, and logs why if the application is at fault.
func (p *Policy) fail(c *gin.Context, why failure) {
	if p.dryRun {
		_ = c.Error(why.err) // for the application's log; it returns what it was given
		p.logFault(c, why)
		return
	}
	if s := stateOf(c); s != nil {
		s.listLimits(c.Writer.Header(), true)
	}
	status, size := c.Writer.Status(), c.Writer.Size() // -1 until something is written
	p.errorHandler(c, why.err)
	if c.Writer.Status() != status || c.Writer.Size() != size {
		c.Abort()
	}
	if c.Writer.Status() == http.StatusInternalServerError {
		p.logFault(c, why)
	}
}

// logFault logs, once in a while, why there is no decision if the application is at fault. The line omits the error's text,
// which may name a client.
func (p *Policy) logFault(c *gin.Context, why failure) {
	if ErrorStatus(why.err) != http.StatusInternalServerError || !p.faults.Allow() {
		return
	}
	ctx := c.Request.Context()
	p.logger.WarnContext(ctx, "ginlimit: the application gives a request no usable key, limits or cost",
		"name", p.name, "route", c.FullPath(), "reason", why.reason(ctx, Result{}))
}

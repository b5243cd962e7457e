package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/engine"
)

// Handler returns the policy's middleware.
//
// It sets X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset, or what [WithHeaders]
// says, and aborts a denied request with 429, and with Retry-After unless no waiting helps. If
// several handlers decide on one request, these headers report the limit closest to exhaustion. It
// panics on a zero Policy, and if another policy of its name has another key.
func (p *Policy) Handler() gin.HandlerFunc {
	if !p.made() {
		panic(errNoPolicy)
	}
	p.mustServe()
	return func(c *gin.Context) { p.serve(c, p.clientKey) }
}

// mustServe notes that the policy has a handler. Without [WithKey] its key counts from now on.
func (p *Policy) mustServe() {
	if err := p.limiter.names.keep(p.name, p.key); err != nil {
		panic(err)
	}
	p.serves.Store(true)
}

// clientKey returns the key of a request.
func (p *Policy) clientKey(c *gin.Context) (string, error) {
	if !p.keyed { // ByClientIP need not look for the policy
		p.useAddress(c)
		return keyOfAddress(c, clientkey.BitsV4, clientkey.BitsV6)
	}
	return keyOf(p.key, c)
}

// serve decides on a request, counted under the key that the function returns.
func (p *Policy) serve(c *gin.Context, key KeyFunc) {
	o, state := p.observe(), newState(c, p)
	if p.bypass(c, &o, state) {
		return
	}
	n := 1
	if p.cost != nil {
		n = p.cost(c)
	}
	state.cost = n
	result, why := p.decide(c, n, key, state)
	slots := state.hasSlots()
	if slots { // until the handlers that follow return, or anything before them panics
		defer state.release(p.limiter.engine)
	}
	free := n == 0 && errors.Is(why.err, ErrUnavailable)
	for i := range state.answers {
		o.event.Waited += state.answers[i].Waited
	}
	if p.observers != nil {
		o.record(c.Request.Context(), outcomeOf(result, why.err), n, free || result.Allowed, result, why)
	}
	switch {
	case free:
		return // whatever is left
	case why.err != nil:
		p.fail(c, why)
		return
	}
	state.set(c, result)
	if !p.dryRun {
		state.writeHeaders(c.Writer.Header())
	}
	if !result.Allowed && !p.dryRun {
		c.Status(http.StatusTooManyRequests)
		c.Abort()
		if p.deniedHandler != nil {
			p.deniedHandler(c, result)
		} else {
			state.answerDenied(c, result)
		}
		return
	}
	switch {
	case p.settleFunc != nil && result.Allowed:
		p.serveSettling(c, n, state.taken())
	case slots:
		c.Next()
	}
}

// bypass reports whether a request is not counted. A request from a denied address is answered.
func (p *Policy) bypass(c *gin.Context, o *observation, state *requestState) bool {
	ctx, listed := c.Request.Context(), false
	if len(p.allow) > 0 || len(p.deny) > 0 {
		p.useAddress(c)
		addr, _, err := clientAddress(c)
		switch {
		case err != nil:
			why := failure{err: err, origin: fromKeyFunc}
			o.record(ctx, OutcomeFailed, 0, false, Result{}, why)
			p.fail(c, why)
			return true
		case p.allowed.Contains(addr) && p.mayAllow(c):
			listed = true
		case p.forbidden.Contains(addr):
			denied := Result{Name: p.name, RetryAfter: never, Source: FromPolicy, Cause: CauseList}
			o.record(ctx, OutcomeDenied, 0, false, denied, failure{})
			state.set(c, denied)
			if !p.dryRun {
				c.Abort()
				answerStatus(c, http.StatusForbidden)
			}
			return true
		}
	}
	if !listed && (p.skip == nil || !p.skip(c)) {
		return false
	}
	o.record(ctx, OutcomeSkipped, 0, true, Result{}, failure{})
	state.set(c, Result{
		Name: p.name, Allowed: true, Limit: Unlimited(), Remaining: math.MaxInt, Source: FromPolicy,
	})
	return true
}

// decide decides on a request of n tokens, or says why there is no decision.
func (p *Policy) decide(c *gin.Context, n int, key KeyFunc, state *requestState) (Result, failure) {
	if n < 0 {
		return Result{}, failure{err: fmt.Errorf("%w: a cost of %d; want at least 0", ErrInvalidArgument, n)}
	}
	client, err := key(c)
	if err != nil {
		return Result{}, failure{err: err, origin: fromKeyFunc}
	}
	ctx := c.Request.Context()
	limits, err := p.limitsOf(ctx, client)
	if err != nil {
		return Result{}, failure{err: err, origin: fromLimitFunc}
	}
	if err := state.ask(c, p, client, limits); err != nil {
		return Result{}, failure{err: err, origin: fromKeyFunc}
	}
	if err := state.take(ctx, p, n); err != nil {
		return Result{}, failure{err: err, store: state.failure()}
	}
	r := state.decision.result(p)
	p.warnBurst(ctx, &state.answers[0], r)
	return r, failure{store: state.failure()}
}

// serveSettling serves the request, and has what was taken for it become what it really took.
func (p *Policy) serveSettling(c *gin.Context, n int, taken []engine.Charge) {
	served := false
	defer func() { // not recover, which would hide where a panic came from
		if !served && !c.Writer.Written() {
			c.Status(http.StatusInternalServerError)
		}
		actual := p.settleFunc(c, n)
		if actual < 0 {
			_ = c.Error(fmt.Errorf("%w: settled with %d tokens; want at least 0", ErrInvalidArgument, actual))
			return
		}
		ctx := context.WithoutCancel(c.Request.Context()) // its client may be gone
		for _, err := range p.limiter.engine.Settle(ctx, int64(actual), taken...) {
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
	if p.errorHandler != nil {
		p.errorHandler(c, why.err)
	} else {
		answerError(c, why.err)
	}
	if c.Writer.Status() != status || c.Writer.Size() != size {
		c.Abort()
	}
	if c.Writer.Status() == http.StatusInternalServerError {
		p.logFault(c, why)
	}
}

// logFault logs, once in a while, why there is no decision if the application is at fault. The line
// omits the error's text, which may name a client, but for limits that cannot be used.
func (p *Policy) logFault(c *gin.Context, why failure) {
	if ErrorStatus(why.err) != http.StatusInternalServerError || !p.faults.Allow() {
		return
	}
	ctx := c.Request.Context()
	args := []any{"name", p.name, "route", c.FullPath(), "reason", why.reason(ctx, Result{})}
	if bad := (*unusable)(nil); errors.As(why.err, &bad) && len(bad.limits) > 0 {
		args = append(args, "limits", bad.text())
	}
	p.logger.WarnContext(ctx, "ginlimit: the application gives a request no usable key, limits or cost", args...)
}

// FirstOf returns middleware that limits a request by the first of the policies whose [KeyFunc]
// finds a key.
//
// So a request counts under its API key, say, or else under its address. A key function finds none
// if it returns an error that wraps [ErrNoKey], or an empty key. Any other error, such as
// [ErrBadRequest], and every error after a key was found, such as [ErrUnknownClient] of
// [WithLimitFunc], is that policy's to answer. If no policy finds a key, the error is the last
// policy's to answer. It panics without a policy, on a nil one, and on policies of two limiters.
func FirstOf(policies ...*Policy) gin.HandlerFunc {
	if len(policies) == 0 {
		panic(invalid("FirstOf without a policy"))
	}
	policies = slices.Clone(policies)
	var errs []error
	first := -1
	for i, p := range policies {
		switch {
		case !p.made():
			errs = append(errs, invalid("FirstOf: policy %d is nil or was not made by Limiter.Policy", i+1))
		case first < 0:
			first = i
		case p.limiter != policies[first].limiter:
			errs = append(errs, invalid("FirstOf: policy %d is of another limiter than policy %d", i+1, first+1))
		}
	}
	if err := errors.Join(errs...); err != nil {
		panic(err)
	}
	for _, p := range policies {
		p.mustServe()
	}
	return func(c *gin.Context) {
		for i, p := range policies {
			newState(c, p)
			client, err := p.clientKey(c)
			if i == len(policies)-1 || !errors.Is(err, ErrNoKey) {
				p.serve(c, func(*gin.Context) (string, error) { return client, err })
				return
			}
		}
	}
}

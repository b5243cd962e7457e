package ginlimit

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/gintrust"
)

// New returns middleware that limits requests: [NewLimiter] with the defaults, and [Limiter.Handler], in one.
// It panics on a bad configuration, with all errors at once. Redis need not be reachable yet. Each New makes
// a limiter, with round trips and a deny cache of its own: for several routes, or for an option such as
// [WithTimeout], make one by [NewLimiter].
func New(rdb redis.UniversalClient, name string, opts ...PolicyOption) gin.HandlerFunc {
	l, errs := newRedisLimiter(rdb, nil)
	p, err := l.Policy(name, opts...)
	if err := errors.Join(append(errs, err)...); err != nil {
		panic(err)
	}
	return p.Handler()
}

// Handler is [Limiter.Policy] and [Policy.Handler] in one. It panics on a bad configuration, with all errors
// at once.
func (l *Limiter) Handler(name string, opts ...PolicyOption) gin.HandlerFunc {
	p, err := l.Policy(name, opts...)
	if err != nil {
		panic(err)
	}
	return p.Handler()
}

// Handler returns the policy's middleware: [AllOf] of this policy alone. It sets the header fields of
// [WithHeaders], and aborts a denied request with 429. It panics on a zero Policy.
func (p *Policy) Handler() gin.HandlerFunc {
	if !p.made() {
		panic(errNoPolicy)
	}
	return AllOf(p)
}

// AllOf returns middleware that limits a request by all of the policies: all must allow it, or none is
// charged.
//
// Each policy counts the request under its own key, at its own cost, and settles or refunds its own charge. A
// policy that skips the request is left out, and a policy [WithDryRun] decides apart. If several deny, the
// policy with the longest wait answers, with its own headers, handler and body. If a key, a cost or a
// client's limits cannot be found, nothing is charged, and that policy's [WithErrorHandler] answers. A
// request waits in one queue at a time, in all no longer than the longest wait of its policies [WithQueue].
// X-RateLimit reports the policy closest to exhaustion, RateLimit lists all.
//
// If one Redis server has all keys, one script decides. Otherwise, for two policies [WithBan], and for
// policies [WithShares], which come last, one policy is asked after another. If a later policy denies, what
// was taken is given back; until then another request may be denied because of it. Handlers that follow each
// other are different: each charges when its turn comes, and keeps its charge if a later handler denies.
//
// It panics without a policy, on a nil one, on two with the same keys, on one [WithLease] beside others, and
// on policies of two limiters.
func AllOf(policies ...*Policy) gin.HandlerFunc {
	policies = usable("AllOf", policies, func(p, before *Policy) error {
		switch {
		case p.prefix == before.prefix && (p.policyState == before.policyState):
			return errors.New("is given twice")
		case p.prefix == before.prefix:
			return errors.New("has the keys of another: both would charge one bucket")
		}
		return nil
	})
	return func(c *gin.Context) { newState(c, policies).serve(c) }
}

// FirstOf returns middleware that limits a request by the first policy whose [KeyFunc] finds a key: by its
// API key, say, or else its address. A key function finds none if its key is empty or its error wraps
// [ErrNoKey]. Any other error is that policy's to answer; if none finds a key, the last answers. It panics
// without a policy, on nil, and on policies of two limiters.
func FirstOf(policies ...*Policy) gin.HandlerFunc {
	policies = usable("FirstOf", policies, func(_, _ *Policy) error { return nil })
	return func(c *gin.Context) {
		for i := range policies {
			s := newState(c, policies[i:i+1])
			s.parts[0].findKey(c, s)
			if i == len(policies)-1 || !errors.Is(s.parts[0].keyErr, ErrNoKey) {
				s.serve(c)
				return
			}
		}
	}
}

// usable returns a copy of the policies of a handler, which serve requests from now on. It panics with all
// faults in them: a function finds those of two.
func usable(of string, policies []*Policy, fault func(p, before *Policy) error) []*Policy {
	var errs []error
	if len(policies) == 0 {
		errs = append(errs, invalid("%s without a policy", of))
	}
	policies = slices.Clone(policies)
	for i, p := range policies {
		if !p.made() {
			errs = append(errs, invalid("%s: policy %d is nil or was not made by Limiter.Policy", of, i+1))
			continue
		}
		if len(policies) > 1 && of == "AllOf" && p.leases() {
			errs = append(errs, invalid("AllOf: policy %d: %s", i+1, excluded("WithLease", severalPolicies)))
		}
		for j, before := range policies[:i] {
			if !before.made() {
				continue
			}
			if p.limiter != before.limiter {
				errs = append(errs, invalid("%s: policy %d is of another limiter than policy %d", of, i+1, j+1))
				break
			}
			if err := fault(p, before); err != nil {
				errs = append(errs, invalid("%s: policy %d %v", of, i+1, err))
				break
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		panic(err)
	}
	for _, p := range policies {
		p.serves.Store(true)
	}
	return policies
}

// serve decides on a request, and answers it if it is denied.
func (s *requestState) serve(c *gin.Context) {
	if s.bypass(c) {
		return
	}
	ctx := c.Request.Context()
	failed, why := s.ask(c)
	if failed == nil {
		failed, why = s.take(ctx)
	}
	defer s.release() // of slots, when the handlers that follow return, or anything before them panics
	s.tryDryRuns(c)
	s.judge(ctx, failed != nil)
	if failed != nil {
		failed.fail(c, s, why)
		return
	}
	s.set(c)
	denial := s.denial()
	s.writeHeaders(c.Writer.Header(), denial)
	switch {
	case denial != nil:
		s.deny(c, denial)
	case s.settles():
		s.serveSettling(c)
	case s.hasSlots():
		c.Next()
	}
}

// deny answers a denied request.
func (s *requestState) deny(c *gin.Context, by *part) {
	c.Status(http.StatusTooManyRequests)
	c.Abort()
	if by.policy.answers.deniedHandler != nil {
		by.policy.answers.deniedHandler(c, by.result)
	} else {
		s.answerDenied(c, by)
	}
}

// bypass leaves out the policies that do not count the request. It reports whether the request is over: its
// address is denied, or cannot be read.
func (s *requestState) bypass(c *gin.Context) (over bool) {
	for i := range s.parts {
		if s.parts[i].bypass(c, s) {
			return true
		}
	}
	return false
}

// bypass is bypass of one policy.
func (t *part) bypass(c *gin.Context, s *requestState) (over bool) {
	p, ctx, listed := t.policy, c.Request.Context(), false
	s.asking = p
	if !p.exempts.allowed.IsEmpty() || !p.exempts.denied.IsEmpty() {
		p.useAddress(c)
		addr, text, ok := gintrust.ClientAddress(c)
		switch {
		case !ok:
			t.phase = absent
			t.fail(c, s, failure{err: unreadable(text), origin: fromKeyFunc})
			return !p.dryRun
		case p.exempts.allowed.Contains(addr) && p.trust.MayAllow(c, p.limiter.logger, p.name):
			listed = true
		case p.exempts.denied.Contains(addr):
			t.phase, t.result = settled, Result{Name: p.name, RetryAfter: never, Source: FromPolicy, Cause: CauseList}
			s.record(ctx, t, OutcomeDenied, false, failure{})
			if !p.dryRun {
				s.set(c)
				c.Abort()
				answerStatus(c, http.StatusForbidden)
			}
			return !p.dryRun
		}
	}
	if listed || p.exempts.skip != nil && p.exempts.skip(c) {
		t.phase = skipped
		s.record(ctx, t, OutcomeSkipped, true, failure{})
		t.result = Result{
			Name: p.name, Allowed: true, Limit: Unlimited(), Remaining: math.MaxInt, Source: FromPolicy,
		}
	}
	return false
}

// findKey finds the key of the request, once.
func (t *part) findKey(c *gin.Context, s *requestState) {
	if t.hasKey {
		return
	}
	p := t.policy
	s.asking, t.hasKey = p, true
	if p.key != nil {
		t.client, t.keyErr = keyOf(p.key, c)
		return
	}
	p.useAddress(c) // ByClientIP need not look for the policy
	for i := range s.parts {
		if other := &s.parts[i]; other.hasKey && other.policy.key == nil && other != t {
			t.client, t.keyErr = other.client, other.keyErr
			return
		}
	}
	t.client, t.keyErr = keyOfAddress(c, clientkey.BitsV4, clientkey.BitsV6)
}

// fail answers a request on which a policy has no decision, and logs why if the application is at fault.
func (t *part) fail(c *gin.Context, s *requestState, why failure) {
	p := t.policy
	free := t.n == 0 && t.asked && errors.Is(why.err, ErrUnavailable)
	s.record(c.Request.Context(), t, OutcomeFailed, free, why)
	switch {
	case free:
		return // whatever is left
	case p.dryRun:
		_ = c.Error(why.err) // for the application's log; it returns what it was given
		p.logFault(c, why)
		return
	}
	if s := stateOf(c); s != nil {
		s.listLimits(c.Writer.Header(), true)
	}
	if p.answers.errorHandler != nil {
		p.answers.errorHandler(c, why.err)
	} else {
		answerError(c, why.err)
	}
	c.Abort()
	if c.Writer.Status() == http.StatusInternalServerError {
		p.logFault(c, why)
	}
}

// logFault logs, once in a while, why there is no decision if the application is at fault. The line
// omits the error's text, which may name a client, but for limits that cannot be used.
func (p *Policy) logFault(c *gin.Context, why failure) {
	if ErrorStatus(why.err) != http.StatusInternalServerError || !p.logged.faults.Allow() {
		return
	}
	ctx := c.Request.Context()
	args := []any{"name", p.name, "route", c.FullPath(), "reason", why.reason(ctx, Result{})}
	if bad := (*unusable)(nil); errors.As(why.err, &bad) && len(bad.limits) > 0 {
		args = append(args, "limits", bad.text())
	}
	p.limiter.logger.WarnContext(ctx, "ginlimit: the application gives a request no usable key, limits or cost", args...)
}

// checkCost returns the error of a cost that cannot be.
func checkCost(n int) error {
	if n >= 0 {
		return nil
	}
	return fmt.Errorf("%w: a cost of %d; want at least 0", ErrInvalidArgument, n)
}

package ginlimit

import (
	"errors"
	"slices"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
)

// New returns middleware that limits requests: [NewLimiter] with the defaults, and [Limiter.Handler], in one.
// It panics on a bad configuration, with all errors at once. Redis need not be reachable yet. Each New makes
// a limiter, with round trips and a deny cache of its own: for several routes, or for an option such as
// [WithTimeout], make one by [NewLimiter].
func New(rdb redis.UniversalClient, name string, opts ...PolicyOption) gin.HandlerFunc {
	l, errs := newRedisLimiter(rdb, nil)
	p, err := l.Policy(name, opts...)
	if err := errors.Join(append(errs, faultsIn(err)...)...); err != nil {
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
// client's limits cannot be found, nothing is charged, and that policy's [WithErrorHandler] answers.
// X-RateLimit reports the policy closest to exhaustion, RateLimit lists all.
//
// If one Redis server has all keys, one script decides; without Redis, this process decides under one lock.
// Where that cannot be, as on a cluster, for [WithShares] and for a second policy [WithBan], all are asked at the
// same time. If one denies, what the others took is given back; until then it is missing to other requests.
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
	h := newHandler(policies)
	return func(c *gin.Context) { h.state(c).serve(c) }
}

// FirstOf returns middleware that limits a request by the first policy whose [KeyFunc] finds a key: by its
// API key, say, or else its address. A key function finds none if its key is empty or its error wraps
// [ErrNoKey]. Any other error is answered by that policy; if none finds a key, by the last. It panics
// without a policy, on nil, and on two limiters' policies.
func FirstOf(policies ...*Policy) gin.HandlerFunc {
	policies = usable("FirstOf", policies, func(_, _ *Policy) error { return nil })
	var handlers []*handler
	for i := range policies {
		handlers = append(handlers, newHandler(policies[i:i+1]))
	}
	return func(c *gin.Context) {
		for i, h := range handlers {
			s := h.state(c)
			s.parts[0].findKey(c, s)
			if i == len(handlers)-1 || !errors.Is(s.parts[0].keyErr, ErrNoKey) {
				s.serve(c)
				return
			}
		}
	}
}

// usable returns a copy of the policies of a handler, which serve requests from now on. It panics with all
// faults in them: a function finds the faults of two.
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
		if !p.serves.Swap(true) {
			p.isPublished.Store(false) // operators see it anew
		}
	}
	return policies
}

// FromContext returns the result of [Results] that is closest to exhaustion, an unlimited one if all policies
// skip the request, or false without a decision.
func FromContext(c *gin.Context) (Result, bool) {
	s := stateOf(c)
	t := s.closest((*part).denies)
	if t == nil {
		t = s.closest(func(t *part) bool { return t.phase >= bypassed })
	}
	if t == nil {
		return Result{}, false
	}
	return t.result, true
}

// Results returns what each policy decided on the request, in the order of the handlers and of [AllOf]. If
// the request is allowed, that is every policy that did not skip it, dry runs too; if it is denied, only
// those that deny. It is empty without a decision.
func Results(c *gin.Context) (all []Result) {
	s := stateOf(c)
	parts := s.chain((*part).denies)
	if parts == nil {
		parts = s.chain(func(t *part) bool { return t.phase == settled })
	}
	for _, t := range parts {
		all = append(all, t.result)
	}
	return all
}

package ginlimit

import (
	"errors"
	"slices"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/rules"
)

// New returns middleware that limits requests: [NewLimiter] with the defaults, and
// [Limiter.Handler], in one. It panics with all faults. Each New makes a limiter: for several
// routes, or [WithTimeout], make one by [NewLimiter].
func New(rdb redis.UniversalClient, name string, opts ...PolicyOption) gin.HandlerFunc {
	l, errs := newRedisLimiter(rdb, nil)
	p, err := l.Policy(name, opts...)
	if err := errors.Join(append(errs, faultsIn(err)...)...); err != nil {
		panic(err)
	}
	return p.Handler()
}

// Handler is [Limiter.Policy] and [Policy.Handler]. It panics with all faults.
func (l *Limiter) Handler(name string, opts ...PolicyOption) gin.HandlerFunc {
	p, err := l.Policy(name, opts...)
	if err != nil {
		panic(err)
	}
	return p.Handler()
}

// Handler is [AllOf] of this policy alone. It panics on a zero Policy.
func (p *Policy) Handler() gin.HandlerFunc {
	if !p.made() {
		panic(errNoPolicy)
	}
	return AllOf(p)
}

// AllOf returns middleware that limits a request by all of the policies: all must allow it, or none
// is charged. It panics without a policy, on a nil one, on two with the same keys, on one
// [WithLease] beside others, and on two limiters' policies.
//
// Each policy counts under its own key, at its own cost, and settles its own charge. One that skips
// the request is left out, and one [WithDryRun] decides apart. If several deny, the policy with the
// longest wait answers, with its own headers, handler and body. If a key, a cost or limits cannot
// be found, that policy's [WithErrorHandler] does.
func AllOf(policies ...*Policy) gin.HandlerFunc {
	policies = serving("AllOf", policies, func(p, before *Policy) error {
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

// FirstOf returns middleware that limits a request by the first policy whose [KeyFunc] finds a key:
// by its API key, say, or else its address. A key function finds none if its key is empty or its
// error wraps [ErrNoKey]; any other error is that policy's, and if none finds a key, the last
// policy's. Keys that clients invent need a check in front, or each is a full bucket. It panics
// without a policy, on a nil one, and on two limiters' policies.
func FirstOf(policies ...*Policy) gin.HandlerFunc {
	policies = serving("FirstOf", policies, func(_, _ *Policy) error { return nil })
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
			s.end()
		}
	}
}

// handler is the middleware of policies, with what is known of all requests. It leaves out what no policy has.
type handler struct {
	limiter  *Limiter // of all policies
	policies []*Policy
	exempts  bool // a policy does not count all requests
	queues   bool // a request may wait
	settles  bool // a charge is settled once the request was served
	drafts   bool // RateLimit-Policy and RateLimit list limits
	reports  bool // these fields, or a function of header fields, need the status of each limit
	plain    bool // nobody needs the answer of its only policy once the request was answered, unless it has a slot
}

// newHandler prepares the middleware of policies.
func newHandler(policies []*Policy) *handler {
	h := &handler{limiter: policies[0].limiter, policies: policies}
	for _, p := range policies {
		h.exempts = h.exempts || p.exempts.any()
		h.queues = h.queues || p.asks.queue.Length > 0
		h.settles = h.settles || p.asks.settle != nil
		h.drafts = h.drafts || p.answers.headers&RateLimitDraft != 0 && !p.dryRun
		h.reports = h.reports || p.asked.Report >= rules.ReportEvery
	}
	h.plain = len(policies) == 1 && !h.queues && !h.settles && !h.reports
	return h
}

// serving returns a copy of the policies of a handler, which serve requests from now on. It panics with all
// faults in them: a function finds the faults of two.
func serving(of string, policies []*Policy, fault func(p, before *Policy) error) []*Policy {
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

// FromContext returns the result of [Results] that is closest to exhaustion, an unlimited one if
// all policies skip the request, or false without a decision.
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

// Results returns what each policy decided on the request, in the order of the handlers and of
// [AllOf]: if it is allowed, each that did not skip it, dry runs too; if it is denied, those that
// deny.
func Results(c *gin.Context) (all []Result) {
	s := stateOf(c)
	parts := s.chain((*part).denies)
	if parts == nil {
		parts = s.chain(func(t *part) bool { return t.phase == decided })
	}
	for _, t := range parts {
		all = append(all, t.result)
	}
	return all
}

// stateOf returns the newest state of a request of a handler that has decided, or nil.
func stateOf(c *gin.Context) *requestState {
	newest, _ := c.Get(stateKey)
	s, _ := newest.(*requestState)
	return s.orBefore()
}

// orBefore returns a state, or if its handler has not decided the one before. Of nil it is nil.
func (s *requestState) orBefore() *requestState {
	if s != nil && !s.decided.Load() {
		return s.before.Load()
	}
	return s
}

// link links the state to those of other handlers, and warns if one of them has charged the same bucket.
func (s *requestState) link(c *gin.Context) {
	if s.follows.Load() { // another handler has decided in a callback of this one
		s.before.Store(stateOf(c))
		c.Set(stateKey, s)
	}
	for other := s.before.Load(); other != nil; other = other.before.Load() {
		for i := range s.parts {
			t := &s.parts[i]
			if t.sharesWith(other) && !t.policy.logged.twice.Swap(true) {
				t.policy.limiter.logger.WarnContext(c.Request.Context(),
					"ginlimit: two handlers charge one bucket for one request; if that is not meant, "+
						"give them different names",
					"name", t.policy.name)
			}
		}
	}
}

// sharesWith reports whether another handler has decided about the same bucket.
func (t *part) sharesWith(s *requestState) bool {
	for i := range s.parts {
		other := &s.parts[i]
		if t.hash != 0 && t.hash == other.hash && t.limits.rules.Now().Shares(other.limits.rules.Now()) &&
			t.policy.limiter.engine.SharesStore(s.limiter.engine) {
			return true
		}
	}
	return false
}

// chain returns the parts of all handlers so far for which a function is true, in the order in which they
// were decided.
func (s *requestState) chain(is func(*part) bool) (all []*part) {
	if s == nil {
		return nil
	}
	all = s.before.Load().chain(is)
	for i := range s.parts {
		if is(&s.parts[i]) {
			all = append(all, &s.parts[i])
		}
	}
	return all
}

// closest returns the part, of those of all handlers so far for which a function is true, whose result is
// closest to exhaustion, or nil of none.
func (s *requestState) closest(is func(*part) bool) (closest *part) {
	if s == nil {
		return nil
	}
	closest = s.before.Load().closest(is)
	for i := range s.parts {
		if t := &s.parts[i]; is(t) && (closest == nil || t.result.closerThan(closest.result)) {
			closest = t
		}
	}
	return closest
}

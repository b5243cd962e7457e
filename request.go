package ginlimit

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/httpfields"
	"github.com/ginlimit/ginlimit/internal/readahead"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// handler is the middleware of policies, with what is known of all requests. It leaves out what no policy has.
type handler struct {
	policies []*Policy
	exempts  bool // a policy does not count all requests
	queues   bool // a request may wait
	settles  bool // a charge is settled once the request was served
	drafts   bool // RateLimit-Policy and RateLimit list limits
	reports  bool // these fields, or a function of header fields, need the status of each limit
}

// newHandler prepares the middleware of policies.
func newHandler(policies []*Policy) *handler {
	h := &handler{policies: policies}
	for _, p := range policies {
		h.exempts = h.exempts || p.exempts.any()
		h.queues = h.queues || p.asks.queue.Length > 0
		h.settles = h.settles || p.asks.settle != nil
		h.drafts = h.drafts || p.answers.headers&RateLimitDraft != 0 && !p.dryRun
		h.reports = h.reports || p.asked.Report >= rules.ReportEvery
	}
	return h
}

// requestState is what the policies of one handler have decided on a request, linked to what earlier
// handlers have. Once its headers are written it does not change, but for fields, as a copy of the
// [gin.Context] shares it.
type requestState struct {
	decision
	*handler
	asking  *Policy                      // whose key function runs
	address *clientAddress               // while lists and keys ask for it; nil if one of them does
	decided atomic.Bool                  // results do not change any more
	follows atomic.Bool                  // another handler has begun to decide since
	before  atomic.Pointer[requestState] // of the handler that decided before; nil if there is none
	fields  httpfields.Fields            // memory
}

// state returns the newest state of a request, which the handler is about to decide on. A state and its memory are
// one allocation.
func (h *handler) state(c *gin.Context) (s *requestState) {
	if len(h.policies) == 1 {
		all := new(struct {
			requestState
			memory
		})
		s, all.one = &all.requestState, &all.memory
	} else {
		all := new(struct {
			requestState
			clientAddress
		})
		s, all.address = &all.requestState, &all.clientAddress
	}
	s.handler, s.asking = h, h.policies[0]
	s.begin(len(h.policies), s.asking.limiter)
	for i, p := range h.policies {
		s.parts[i].policy, s.parts[i].dry = p, p.dryRun
	}
	if newest := newestState(c); newest != nil {
		newest.follows.Store(true)
		s.before.Store(newest.orBefore())
	}
	c.Set(stateKey, s)
	return s
}

// newestState returns the state of the handler that began to decide last, or nil.
func newestState(c *gin.Context) *requestState {
	v, _ := c.Get(stateKey)
	s, _ := v.(*requestState)
	return s
}

// stateOf returns the newest state of a request of a handler that has decided, or nil.
func stateOf(c *gin.Context) *requestState { return newestState(c).orBefore() }

// orBefore returns a state, or if its handler has not decided the one before. Of nil it is nil.
func (s *requestState) orBefore() *requestState {
	if s != nil && !s.decided.Load() {
		return s.before.Load()
	}
	return s
}

// serve decides on a request, and answers it if it is denied.
func (s *requestState) serve(c *gin.Context) {
	if s.exempts && s.bypass(c) {
		return
	}
	ctx := c.Request.Context()
	waited := s.limiter.upkeep.Use(ctx, s.limiter.timeout)
	failed, why := s.ask(c)
	if s.slots { // they are free again when the handlers that follow return, or anything before them panics
		defer s.release()
	}
	s.address = nil // a handler that follows may change the request
	none, reason := (*part)(nil), failure{}
	if s.queues && readsAhead(c.Request) {
		none, reason = s.takeReadingAhead(c.Request, waited)
	} else {
		none, reason = s.take(c.Request.Context(), engine.Request{Waited: waited})
	}
	if failed == nil {
		failed, why = none, reason
	}
	if s.live < len(s.asks) {
		s.leaveOutTrials(func(t *part, why failure) { t.fail(c, s, why) })
	}
	denial := s.judge(ctx, failed != nil)
	if failed != nil {
		failed.fail(c, s, why)
		return
	}
	s.set(c)
	s.writeHeaders(c.Writer.Header(), denial)
	switch {
	case denial != nil:
		s.deny(c, denial)
	case s.settles:
		s.serveSettling(c)
	case s.slots:
		c.Next()
	}
}

const (
	// maxReadAhead is the longest body that is read ahead. Of one as long net/http's server reads the rest itself
	// before it answers, so that a read that is not over delays no response.
	maxReadAhead = 256<<10 - 1
	// maxAllReadAhead is how much memory bodies that were read ahead take, of all requests of a limiter.
	maxAllReadAhead = 32 << 20
)

// takeReadingAhead is take that reads the body of a request ahead while the request waits: else the place in the
// queue, and then a token, could be a client's that has left.
func (s *requestState) takeReadingAhead(r *http.Request, waited time.Duration) (failed *part, why failure) {
	n, all, body := r.ContentLength, &s.limiter.readAhead, (*readahead.Body)(nil)
	defer func() {
		if body != nil {
			body.Stop()
		}
	}()
	return s.take(r.Context(), engine.Request{Waited: waited, Waits: func() {
		switch {
		case body != nil:
		case all.Add(n) > maxAllReadAhead:
			all.Add(-n)
		default:
			body = readahead.Begin(r.Body, n, http.ErrBodyReadAfterClose)
			r.Body = body
			context.AfterFunc(r.Context(), func() { // the handlers have returned, and read it no more
				body.Wait()
				all.Add(-n)
			})
		}
	}})
}

// readsAhead reports whether a body can be read ahead: one that HTTP/1.1's server reads from the connection, and
// nobody else. A body that asks the client to send it (Expect), one of HTTP/2, and one that other middleware has
// wrapped, are of other types. The connection of an Upgrade is not only the body's.
func readsAhead(r *http.Request) bool {
	if r.ContentLength < 1 || r.ContentLength > maxReadAhead || r.Header["Upgrade"] != nil {
		return false
	}
	body := reflect.TypeOf(r.Body)
	if body == nil || body.Kind() != reflect.Pointer {
		return false
	}
	return body.Elem().Name() == "body" && body.Elem().PkgPath() == "net/http"
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
		if s.address == nil {
			s.address = new(clientAddress) // for the key
		}
		address := s.findAddress(c)
		switch {
		case !address.ok:
			t.phase = absent
			if !p.dryRun {
				s.address = nil
			}
			t.fail(c, s, failure{err: unreadable(address.text), origin: ReasonKeyFunc})
			return !p.dryRun
		case p.exempts.allowed.Contains(address.addr) && p.trust.MayAllow(c, p.limiter.logger, p.name):
			listed = true
		case p.exempts.denied.Contains(address.addr):
			t.phase, t.result = settled, Result{Name: p.name, RetryAfter: Never, Source: FromPolicy, Cause: CauseList}
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
		t.phase = bypassed
		s.record(ctx, t, OutcomeSkipped, true, failure{})
		t.result = Result{
			Name: p.name, Allowed: true, Limit: Unlimited(), Remaining: math.MaxInt, Source: FromPolicy,
		}
	}
	return false
}

// ask prepares the questions of a request. It returns the first policy whose key, cost or limits cannot be
// had, and why. Then only dry runs are asked.
func (s *requestState) ask(c *gin.Context) (failed *part, why failure) {
	var found []foundLimits
	if len(s.parts) > 1 {
		found = askFuncs(c.Request.Context(), s.parts, func(t *part) bool { return t.identify(c, s).err == nil })
	}
	for i := range s.parts {
		t := &s.parts[i]
		if t.phase != undecided || failed != nil && !t.policy.dryRun {
			continue
		}
		ask, fault := t.prepare(c, s, found, i)
		switch {
		case fault.err == nil:
			s.add(i, ask)
		case t.policy.dryRun:
			t.phase = absent
			t.fail(c, s, fault)
		default:
			failed, why = t, fault
		}
	}
	for i := range s.parts {
		if t := &s.parts[i]; failed != nil && !t.policy.dryRun {
			t.ask, t.answer = nil, nil
		}
	}
	if len(s.parts) > 1 {
		s.arrange()
	}
	return failed, why
}

// identify finds the cost and the key of the request, each once.
func (t *part) identify(c *gin.Context, s *requestState) (why failure) {
	p := t.policy
	s.asking = p
	if !t.hasN {
		t.n, t.hasN = 1, true
		if !p.isPublished.Load() {
			p.publish()
		}
		if p.asks.cost != nil {
			t.n = p.asks.cost(c)
		}
	}
	if t.n < 0 {
		return failure{err: fmt.Errorf("%w: a cost of %d; want at least 0", ErrInvalidArgument, t.n)}
	}
	if !t.hasKey {
		t.findKey(c, s)
	}
	if t.keyErr != nil {
		return failure{err: t.keyErr, origin: ReasonKeyFunc}
	}
	return failure{}
}

// prepare returns what the request asks of the policy.
func (t *part) prepare(c *gin.Context, s *requestState, found []foundLimits, i int) (ask engine.Ask, why failure) {
	p := t.policy
	if why = t.identify(c, s); why.err != nil {
		return ask, why
	}
	var err error
	if found != nil && found[i].known {
		t.limits, err = found[i].limits, found[i].err
	} else {
		t.limits, err = p.limitsOf(c.Request.Context(), t.client)
	}
	if err != nil {
		return ask, failure{err: err, origin: ReasonLimitFunc}
	}
	ask = p.asked
	ask.Client, ask.N, ask.Set = t.client, int64(t.n), t.limits.rules.Now()
	if p.counts.shares != nil {
		if ask.Tenant, err = p.tenantOfRequest(c, t.limits); err != nil {
			return ask, failure{err: err, origin: ReasonKeyFunc}
		}
	}
	t.asked = true
	return ask, failure{}
}

// findKey finds the key of the request, once.
func (t *part) findKey(c *gin.Context, s *requestState) {
	p := t.policy
	s.asking, t.hasKey = p, true
	if p.key != nil {
		t.client, t.keyErr = keyOf(p.key, c)
		return
	}
	for i := range s.parts {
		if other := &s.parts[i]; other.hasKey && other.policy.key == nil && other != t {
			t.client, t.keyErr = other.client, other.keyErr
			return
		}
	}
	t.client, t.keyErr = s.findAddress(c).key(clientkey.BitsV4, clientkey.BitsV6) // ByClientIP would look for the state
}

// findAddress implements addressFinder. Gin reads all of a header, which a client may have filled, so several
// policies and lists ask for the address once.
func (s *requestState) findAddress(c *gin.Context) clientAddress {
	if s.address != nil && s.address.known {
		return *s.address
	}
	p := s.asking // it logs a warning if clients can spoof the address by which it knows them
	p.trust.Warn(c, p.limiter.logger, &p.limiter.addresses)
	found := clientAddressOf(c)
	if s.address != nil {
		*s.address = found
	}
	return found
}

func (t *part) settles() bool {
	return t.policy.asks.settle != nil && t.answer != nil && t.result.Allowed
}

// serveSettling serves the request, and settles what was taken for it to what it really took.
func (s *requestState) serveSettling(c *gin.Context) {
	served := false
	var parts []*part
	var charges []engine.Charge
	var actual []int64
	defer func() { // all at the same time; not recover, which would hide where a panic came from
		ctx := context.WithoutCancel(c.Request.Context()) // it waits for the errors, also if its client has left
		of := func(i int) *part { return parts[i] }
		for _, err := range s.limiter.settle(ctx, actual, charges, of) {
			_ = c.Error(err) // for the application's log; it returns what it was given
		}
	}()
	for i := range slices.Backward(s.parts) { // what is deferred last is done first
		t := &s.parts[i]
		if !t.settles() {
			continue
		}
		defer func() {
			if !served && !c.Writer.Written() {
				c.Status(http.StatusInternalServerError)
			}
			if n := t.policy.asks.settle(c, t.n); n >= 0 { // else it is not known, and the estimate stands
				parts, charges, actual = append(parts, t), append(charges, t.answer.Charge(t.ask)), append(actual, int64(n))
			}
		}()
	}
	c.Next()
	served = true
}

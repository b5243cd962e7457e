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

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/gintrust"
	"github.com/ginlimit/ginlimit/internal/httpfields"
	"github.com/ginlimit/ginlimit/internal/readahead"
)

// requestState is what the policies of one handler have decided on a request, linked to what earlier
// handlers have. A copy of the [gin.Context] shares it, for as long as it likes: so once it has decided, only
// deciding and fields change, and the asks and answers of parts.
type requestState struct {
	*handler
	parts    []part
	deciding *decision                    // nil once nobody needs it: another request has it then
	asking   *Policy                      // whose key function runs
	address  *gintrust.Address            // while lists and keys ask for it; nil if one of them does
	decided  atomic.Bool                  // results do not change any more
	follows  atomic.Bool                  // another handler has begun to decide since
	before   atomic.Pointer[requestState] // of the handler that decided before; nil if there is none
	fields   httpfields.Fields            // memory
}

// state returns the newest state of a request, which the handler is about to decide on.
func (h *handler) state(c *gin.Context) (s *requestState) {
	if len(h.policies) == 1 {
		one := new(struct {
			requestState
			parts [1]part
		})
		s, one.requestState.parts = &one.requestState, one.parts[:]
		if s.deciding, _ = h.limiter.decisions.Get().(*decision); s.deciding == nil {
			s.deciding = &decision{one: new(memory)}
		}
	} else {
		several := new(struct {
			requestState
			decision decision
			address  gintrust.Address
		})
		s, several.deciding, several.requestState.address = &several.requestState, &several.decision, &several.address
		s.parts = make([]part, len(h.policies))
	}
	s.handler, s.asking = h, h.policies[0]
	s.deciding.limiter, s.deciding.parts = h.limiter, s.parts
	if h.limiter.observers != nil {
		s.deciding.began = time.Now()
	}
	for i, p := range h.policies {
		s.parts[i].policy, s.parts[i].dry = p, p.dryRun
	}
	last, _ := c.Get(stateKey)
	if newest, follows := last.(*requestState); follows {
		newest.follows.Store(true)
		s.before.Store(newest.orBefore())
	}
	c.Set(stateKey, s)
	return s
}

// end gives the memory of the decision to another request. No handler that follows reads it, and no copy of the
// context; after an error or a panic, the garbage collector has it.
func (s *requestState) end() {
	d := s.deciding
	s.parts[0].ask, s.parts[0].answer, s.deciding = nil, nil, nil
	*d = decision{one: d.one}
	s.limiter.decisions.Put(d)
}

// serve decides on a request, and answers it if it is denied.
func (s *requestState) serve(c *gin.Context) {
	if s.exempts && s.bypass(c) {
		return
	}
	ctx, d, r := c.Request.Context(), s.deciding, engine.Request{}
	if u := s.limiter.upkeep; u != nil && !u.Used.Load() {
		r.Waited = u.Use(ctx, s.limiter.timeout)
	}
	failed, why := (*part)(nil), failure{}
	if t := &s.parts[0]; len(s.parts) > 1 {
		failed, why = s.ask(c)
	} else if t.phase == undecided {
		if why = t.prepare(c, s, nil, 0); why.err != nil {
			failed = t
		}
	}
	if d.slots { // they are free again when the handlers that follow return, or anything before them panics
		defer d.release()
	}
	s.address = nil // a handler that follows may change the request
	none, reason := (*part)(nil), failure{}
	if s.queues && readsAhead(c.Request) {
		none, reason = d.takeReadingAhead(c.Request, r)
	} else {
		none, reason = d.take(c.Request.Context(), r)
	}
	if failed == nil {
		failed, why = none, reason
	}
	if d.trials > 0 {
		d.leaveOutTrials(func(t *part, why failure) { t.fail(c, s, why) })
	}
	denial := d.judge(ctx, failed != nil)
	if failed != nil {
		failed.fail(c, s, why)
		return
	}
	if s.follows.Load() || s.before.Load() != nil {
		s.link(c)
	}
	s.decided.Store(true)
	s.writeHeaders(c.Writer.Header(), denial)
	switch {
	case denial != nil:
		s.deny(c, denial)
	case s.settles:
		s.serveSettling(c)
	case d.slots:
		c.Next()
	}
	if s.plain && !d.slots {
		s.end()
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
		if s.address == nil {
			s.address = new(gintrust.Address) // for the key
		}
		address := s.findAddress(c)
		switch {
		case !address.OK:
			t.phase = absent
			if !p.dryRun {
				s.address = nil
			}
			t.fail(c, s, failure{err: unreadable(address.Text), origin: ReasonKeyFunc})
			return !p.dryRun
		case p.exempts.allowed.Contains(address.Addr) && p.trust.MayAllow(c, p.limiter.logger, p.name):
			listed = true
		case p.exempts.denied.Contains(address.Addr):
			t.phase, t.result = decided, Result{Name: p.name, RetryAfter: Never, Source: FromPolicy, Cause: CauseList}
			s.deciding.record(ctx, t, OutcomeDenied, false, failure{})
			if !p.dryRun {
				s.link(c)
				s.decided.Store(true)
				c.Abort()
				answerStatus(c, http.StatusForbidden)
			}
			return !p.dryRun
		}
	}
	if listed || p.exempts.skip != nil && p.exempts.skip(c) {
		t.phase = bypassed
		s.deciding.record(ctx, t, OutcomeSkipped, true, failure{})
		t.result = Result{
			Name: p.name, Allowed: true, Limit: Unlimited(), Remaining: math.MaxInt, Source: FromPolicy,
		}
	}
	return false
}

// ask prepares what is asked of several policies. It returns the first policy whose key, cost or limits cannot be
// had, and why. Then only dry runs are asked.
func (s *requestState) ask(c *gin.Context) (failed *part, why failure) {
	found := askFuncs(c.Request.Context(), s.parts, func(t *part) bool { return t.identify(c, s).err == nil })
	for i := range s.parts {
		t := &s.parts[i]
		if t.phase != undecided || failed != nil && !t.policy.dryRun {
			continue
		}
		switch fault := t.prepare(c, s, found, i); {
		case fault.err == nil:
		case t.policy.dryRun:
			t.phase = absent
			t.fail(c, s, fault)
		default:
			failed, why = t, fault
		}
	}
	for i := range s.parts {
		if t := &s.parts[i]; failed != nil && !t.policy.dryRun {
			t.ask = nil
		}
	}
	s.deciding.arrange()
	return failed, why
}

// identify finds the cost and the key of the request, each once.
func (t *part) identify(c *gin.Context, s *requestState) (why failure) {
	p := t.policy
	if s.asking = p; !p.isPublished.Load() {
		p.publish()
	}
	if p.asks.cost == nil {
		t.n = 1
	} else if err := t.findCost(c); err != nil {
		return failure{err: err}
	}
	if !t.hasKey {
		t.findKey(c, s)
	}
	if t.keyErr != nil {
		return failure{err: t.keyErr, origin: ReasonKeyFunc}
	}
	return failure{}
}

// prepare adds what the request asks of the policy.
func (t *part) prepare(c *gin.Context, s *requestState, found []foundLimits, i int) (why failure) {
	if why = t.identify(c, s); why.err != nil {
		return why
	}
	p, tenant, err := t.policy, bucket.Tenant{}, error(nil)
	if t.limits = p.limits; p.counts.limitFunc != nil || s.limiter.overrides.Any.Load() {
		if t.limits, err = t.findLimits(c.Request.Context(), found, i); err != nil {
			return failure{err: err, origin: ReasonLimitFunc}
		}
	}
	if p.counts.shares != nil {
		if tenant, err = p.tenantOfRequest(c, t.limits); err != nil {
			return failure{err: err, origin: ReasonKeyFunc}
		}
	}
	ask := s.deciding.add(i)
	*ask = p.asked
	ask.Client, ask.Tenant, ask.N, ask.Set = t.client, tenant, int64(t.n), &t.limits.rules
	if t.limits.renews {
		ask.Set = t.limits.rules.Now()
	}
	return failure{}
}

// findCost finds the cost of the request, once.
func (t *part) findCost(c *gin.Context) error {
	if !t.hasN {
		t.n, t.hasN = t.policy.asks.cost(c), true
	}
	if t.n < 0 {
		return fmt.Errorf("%w: a cost of %d; want at least 0", ErrInvalidArgument, t.n)
	}
	return nil
}

// findKey finds the key of the request, once.
func (t *part) findKey(c *gin.Context, s *requestState) {
	if t.hasKey = true; t.policy.key != nil {
		t.client, t.keyErr = keyOf(t.policy.key, c)
	} else if a := s.findAddress(c); a.OK && a.Text != "" { // ByClientIP would look for the state
		t.client = a.Text
	} else {
		t.client, t.keyErr = keyOfAddress(a, clientkey.BitsV4, clientkey.BitsV6)
	}
}

// findAddress implements addressFinder. Gin reads all of a header, which a client may have filled, so several
// policies and lists ask for the address once.
func (s *requestState) findAddress(c *gin.Context) gintrust.Address {
	if s.address != nil && s.address.Known {
		return *s.address
	}
	// The policy logs a warning if clients can spoof the address by which it knows them.
	found := s.asking.trust.ClientAddress(c, s.limiter.logger, &s.limiter.addresses)
	if s.address != nil {
		*s.address = found
	}
	return found
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
		if t.policy.asks.settle == nil || t.answer == nil || !t.result.Allowed {
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

const (
	// maxReadAhead is the longest body that is read ahead. Of one as long net/http's server reads the rest itself
	// before it answers, so that a read that is not over delays no response.
	maxReadAhead = 256<<10 - 1
	// maxAllReadAhead is how much memory bodies that were read ahead take, of all requests of a limiter.
	maxAllReadAhead = 32 << 20
)

// takeReadingAhead is take that reads the body of a request ahead while the request waits: else the place in the
// queue, and then a token, could be a client's that has left.
func (d *decision) takeReadingAhead(r *http.Request, how engine.Request) (failed *part, why failure) {
	n, all, body := r.ContentLength, &d.limiter.readAhead, (*readahead.Body)(nil)
	defer func() {
		if body != nil {
			body.Stop()
		}
	}()
	how.Waits = func() {
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
	}
	return d.take(r.Context(), how)
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

package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/readahead"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// serve decides on a request, and answers it if it is denied.
func (s *requestState) serve(c *gin.Context) {
	if s.bypass(c) {
		return
	}
	ctx := c.Request.Context()
	defer s.release() // of slots, when the handlers that follow return, or anything before them panics
	l := s.parts[0].policy.limiter
	waited := l.upkeep.Use(ctx, l.timeout)
	failed, why := s.ask(c)
	s.address = nil // a handler that follows may change the request
	none, reason := s.takeFor(c.Request, waited)
	if failed == nil {
		failed, why = none, reason
	}
	if s.live < len(s.asks) {
		s.leaveOutTrials(func(t *part, why failure) { t.fail(c, s, why) })
	}
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

// queues reports whether the request may wait.
func (s *requestState) queues() bool {
	for i := range s.parts {
		if s.parts[i].policy.asks.queue.Length > 0 {
			return true
		}
	}
	return false
}

const (
	// maxReadAhead is the longest body that is read ahead. Of one as long net/http's server reads the rest itself
	// before it answers, so that a read that is not over delays no response.
	maxReadAhead = 256<<10 - 1
	// maxAllReadAhead is how much memory bodies that were read ahead take, of all requests of a limiter.
	maxAllReadAhead = 32 << 20
)

// takeFor is take for a request in a handler. Its body is read ahead while it waits: else the place in the queue, and
// then a token, could be a client's that has left.
func (s *requestState) takeFor(r *http.Request, waited time.Duration) (failed *part, why failure) {
	if !s.queues() || !readsAhead(r) {
		return s.take(r.Context(), waited, nil)
	}
	n, all, body := r.ContentLength, &s.parts[0].policy.limiter.readAhead, (*readahead.Body)(nil)
	defer func() {
		if body != nil {
			body.Stop()
		}
	}()
	return s.take(r.Context(), waited, func() {
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
	})
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
	s.arrange()
	return failed, why
}

// identify finds the cost and the key of the request, each once.
func (t *part) identify(c *gin.Context, s *requestState) (why failure) {
	p := t.policy
	s.asking = p
	if !t.hasN {
		p.publish()
		if t.n, t.hasN = 1, true; p.asks.cost != nil {
			t.n = p.asks.cost(c)
		}
	}
	if err := checkCost(t.n); err != nil {
		return failure{err: err}
	}
	t.findKey(c, s)
	if t.keyErr != nil {
		return failure{err: t.keyErr, origin: ReasonKeyFunc}
	}
	return failure{}
}

// prepare returns the question to the policy.
func (t *part) prepare(c *gin.Context, s *requestState, found []foundLimits, i int) (ask engine.Ask, why failure) {
	p := t.policy
	if why = t.identify(c, s); why.err != nil {
		return ask, why
	}
	var err error
	if t.limits, err = t.findLimits(c.Request.Context(), found, i); err != nil {
		return ask, failure{err: err, origin: ReasonLimitFunc}
	}
	ask = p.askFor(t.client, t.limits, t.n)
	tenant, err := p.tenantOfRequest(c)
	if err != nil {
		return ask, failure{err: err, origin: ReasonKeyFunc}
	}
	if t.limits.rules.Divided() {
		ask.Tenant = tenant
	}
	ask.Report, ask.Settles = p.report(), p.asks.settle != nil
	t.asked = true
	return ask, failure{}
}

// report returns which statuses a response needs.
func (p *Policy) report() rules.Report {
	switch {
	case p.answers.headerFunc != nil:
		return rules.ReportFull
	case p.answers.headers&RateLimitDraft != 0:
		return rules.ReportEvery
	}
	return rules.ReportDenying
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
	for i := range s.parts {
		if other := &s.parts[i]; other.hasKey && other.policy.key == nil && other != t {
			t.client, t.keyErr = other.client, other.keyErr
			return
		}
	}
	t.client, t.keyErr = s.findAddress(c).key(clientkey.BitsV4, clientkey.BitsV6) // ByClientIP would look for the state
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

// settles reports whether what the request took is settled once it was served.
func (s *requestState) settles() bool {
	for i := range s.parts {
		if s.parts[i].settles() {
			return true
		}
	}
	return false
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
		ctx := context.WithoutCancel(c.Request.Context()) // its client may be gone
		limiter, of := s.parts[0].policy.limiter, func(i int) *part { return parts[i] }
		for _, err := range limiter.settle(ctx, actual, charges, of) {
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

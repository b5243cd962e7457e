package ginlimit

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/httpfields"
)

// setXRateLimit sets the X-RateLimit fields, unless the request is unlimited.
func setXRateLimit(f *httpfields.Fields, h http.Header, r Result) {
	if r.Limit.Rate >= 0 {
		f.SetXRateLimit(h, int64(r.Limit.burst()), int64(r.Remaining), httpfields.Seconds(r.ResetAfter))
	}
}

// requestState is what one policy has decided on a request, linked to what earlier policies have.
// Once its headers are written it does not change, but for fields, as a copy of the [gin.Context]
// shares it.
type requestState struct {
	decision
	result  Result
	cost    int // tokens that the request takes
	by      *Policy
	decided atomic.Bool                  // result does not change any more
	follows atomic.Bool                  // another policy has begun to decide since
	before  atomic.Pointer[requestState] // of the policy that decided before; nil if there is none
	fields  httpfields.Fields            // memory
}

// newState returns the newest state of a request, of a policy that is about to decide.
func newState(c *gin.Context, by *Policy) *requestState {
	s := &requestState{by: by}
	if newest := newestState(c); newest != nil {
		newest.follows.Store(true)
		s.before.Store(newest.orBefore())
	}
	c.Set(stateKey, s)
	return s
}

// newestState returns the state of the policy that began to decide last, or nil.
func newestState(c *gin.Context) *requestState {
	v, _ := c.Get(stateKey)
	s, _ := v.(*requestState)
	return s
}

// stateOf returns the newest state of a request of a policy that has decided, or nil.
func stateOf(c *gin.Context) *requestState { return newestState(c).orBefore() }

// orBefore returns a state, or if its policy has not decided the one before. Of nil it is nil.
func (s *requestState) orBefore() *requestState {
	if s != nil && !s.decided.Load() {
		return s.before.Load()
	}
	return s
}

// useAddress implements addressUser.
func (s *requestState) useAddress(c *gin.Context) { s.by.useAddress(c) }

// set keeps a result in the state, and warns if the same bucket has been charged already.
func (s *requestState) set(c *gin.Context, r Result) {
	s.result = r
	if s.follows.Load() { // another policy has decided in a callback of this one
		s.before.Store(stateOf(c))
		c.Set(stateKey, s)
	}
	s.decided.Store(true)
	for other := s.before.Load(); other != nil; other = other.before.Load() {
		if s.shares(other) && !s.by.warned.Swap(true) {
			s.by.logger.WarnContext(c.Request.Context(),
				"ginlimit: two handlers charge one bucket for one request; if that is not meant, "+
					"give them different names",
				"name", s.by.name)
		}
	}
}

// hash returns the hash of the policy's own key, or 0 if no bucket was asked.
func (s *requestState) hash() uint64 {
	if len(s.answers) == 0 {
		return 0
	}
	return s.answers[0].Hash
}

// shares reports whether two decisions were about the same bucket.
func (s *requestState) shares(other *requestState) bool {
	return s.hash() != 0 && s.hash() == other.hash() &&
		s.asks[0].Set.Shares(other.asks[0].Set) && s.by.limiter.engine.SharesStore(other.by.limiter.engine)
}

// closest returns the denial, or else the decision closest to exhaustion.
func (s *requestState) closest() Result {
	closest := s.result
	for ; s != nil && closest.Allowed; s = s.before.Load() {
		if s.result.closerThan(closest) {
			closest = s.result
		}
	}
	return closest
}

// writeHeaders sets the headers of a decision. Headers that report only one limit do not change if
// an earlier decision is closer to exhaustion.
func (s *requestState) writeHeaders(header http.Header) {
	result, by := s.result, s.by
	if result.Allowed { // a cost of 0 is allowed, even if a limit has no tokens
		for i := range s.answers {
			for j := range s.answers[i].Statuses {
				s.answers[i].Statuses[j].Denies = false
			}
		}
	}
	if by.headers&RateLimitDraft != 0 || !result.Allowed {
		s.listLimits(header, !result.Allowed)
	}
	if by.headers&XRateLimit != 0 && s.reports(func(p *Policy) bool { return p.headers&XRateLimit != 0 }) {
		setXRateLimit(&s.fields, header, result)
	}
	if !result.Allowed {
		s.fields.SetDenied(header, httpfields.Seconds(result.RetryAfter))
	}
	if by.headers != NoHeaders && by.isDegraded(result) {
		s.fields.Text(header, httpfields.XRateLimitStatus, httpfields.Degraded)
	}
	if by.headerFunc != nil && s.reports(func(p *Policy) bool { return p.headerFunc != nil }) {
		by.headerFunc(header, result)
	}
}

// isDegraded reports whether Redis should have decided and did not.
func (p *Policy) isDegraded(r Result) bool {
	return r.Source == FromOpen || r.Source == FromLocal && !p.limiter.engine.IsLocal()
}

// reports whether fields of one limit report this decision: unless an earlier policy that sets them
// is closer to exhaustion.
func (s *requestState) reports(sets func(*Policy) bool) bool {
	for other := s.before.Load(); other != nil && s.result.Allowed; other = other.before.Load() {
		if other.reported() && sets(other.by) && other.result.closerThan(s.result) {
			return false
		}
	}
	return true
}

// reported reports whether header fields may report the decision.
func (s *requestState) reported() bool { return len(s.answers) > 0 && !s.by.dryRun }

// listLimits sets RateLimit-Policy and RateLimit from the decisions so far whose policies set these
// fields. If the request is denied, by a limit or an error, only limits that deny have the
// parameter t: the others' may be longer than Retry-After, and clients need not wait for it.
func (s *requestState) listLimits(header http.Header, denied bool) {
	var all []*requestState
	for ; s != nil; s = s.before.Load() {
		if s.inFields() {
			all = append(all, s)
		}
	}
	policies, limits := make([]byte, 0, 256), make([]byte, 0, 256) // on the stack
	for _, one := range slices.Backward(all) {
		list := one.listed(make([]httpfields.Status, 0, 8))
		policies = list.AppendPolicy(policies)
		limits = list.AppendRateLimit(limits, denied)
	}
	httpfields.SetDraft(header, policies, limits) // without a field if all are unlimited
}

// inFields reports whether RateLimit-Policy and RateLimit list the limits of the decision.
func (s *requestState) inFields() bool {
	return s.by.headers&RateLimitDraft != 0 && s.reported()
}

// list returns the limits in the header fields, without their statuses.
func (s *requestState) list() httpfields.List {
	var list httpfields.List
	for i := range s.asks {
		set := s.setOf(s.by, i)
		fields := set.fieldsOf(s.asks[i].Set)
		if i == 0 {
			list.Limits = slices.Clip(fields)
		} else {
			list.Limits = append(list.Limits, fields...)
		}
	}
	return list
}

// listed returns the limits in the header fields, with their statuses in the given memory.
func (s *requestState) listed(statuses []httpfields.Status) httpfields.List {
	list, first := s.list(), 0
	for i := range s.asks {
		set := s.setOf(s.by, i)
		for _, one := range s.answers[i].Statuses {
			statuses = append(statuses, httpfields.Status{
				Limit: first + set.fieldOf(int(one.Resource)), Remaining: one.Remaining, Full: one.Full,
				More: httpfields.Seconds(one.More), Denies: one.Denies,
			})
		}
		first += len(set.fields)
	}
	list.Statuses = statuses
	return list
}

// problem returns the body of a denial, which names the limits that deny: none if the client is
// banned and no limit denies.
func (s *requestState) problem(detail string) []byte {
	list := s.listed(make([]httpfields.Status, 0, 8)) // on the stack
	return list.Problem(detail)
}

// answerDenied is the default of [WithDeniedHandler].
//
// It is [gin.Context.Data] with the memory for the header fields in the request's state.
func (s *requestState) answerDenied(c *gin.Context, r Result) {
	body := s.problem(detailOf(r, s.cost, s.by.floorOf(r)))
	h := c.Writer.Header()
	s.fields.Text(h, httpfields.ContentType, httpfields.TypeProblem)
	s.fields.Number(h, httpfields.ContentLength, int64(len(body)))
	if _, err := c.Writer.Write(body); err != nil {
		_ = c.Error(err) // for the application's log; it returns what it was given
	}
}

// detailOf explains a denial that no retry avoids, or by shares. It is "" for any other denial.
func detailOf(r Result, cost, floor int) string {
	switch {
	case r.Cause == CauseShare:
		return httpfields.ShareDetail
	case r.RetryAfter >= 0:
		return ""
	case r.Limit.Rate == 0 && r.Limit.InFlight == 0:
		return httpfields.ProhibitedDetail
	default:
		return httpfields.CostDetail(cost, max(0, r.Limit.burst()-floor))
	}
}

// floorOf returns how many tokens of a limit the policy leaves to others.
func (p *Policy) floorOf(r Result) int {
	if r.Name == p.name {
		return p.floor
	}
	return 0
}

// answerStatus answers with a problem that only repeats its status.
func answerStatus(c *gin.Context, status int) {
	answer(c, status, httpfields.StatusProblem(http.StatusText(status), status))
}

// answer answers with a problem.
func answer(c *gin.Context, status int, problem string) {
	c.Header(httpfields.CacheControl, httpfields.NoStore)
	c.Data(status, httpfields.TypeProblem, []byte(problem))
}

// ErrorStatus returns the status with which the default of [WithErrorHandler] answers an error.
//
// It is 400 for [ErrBadRequest], 403 for [ErrUnknownClient], 503 for [ErrUnavailable] or if a
// context has ended, and 500 otherwise. Of nil it is 200.
func ErrorStatus(err error) int {
	switch {
	case err == nil:
		return http.StatusOK
	case errors.Is(err, ErrBadRequest):
		return http.StatusBadRequest
	case errors.Is(err, ErrUnknownClient):
		return http.StatusForbidden
	case errors.Is(err, ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// answerError is the default of [WithErrorHandler].
func answerError(c *gin.Context, err error) {
	_ = c.Error(err) // for the application's log; it returns what it was given
	c.Abort()
	var missing *missingHeader
	status := ErrorStatus(err)
	switch {
	case errors.As(err, &missing):
		answer(c, status, httpfields.HeaderProblem(missing.name))
	case status == http.StatusServiceUnavailable && errors.Is(err, ErrUnavailable):
		c.Header(httpfields.RetryAfter, "1") // Redis decides again within a second of its return
		answer(c, status, httpfields.CapacityProblem)
	default:
		answerStatus(c, status)
	}
}

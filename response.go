package ginlimit

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/httpfields"
)

// writeHeaders sets the headers of a decision: of a denial, the answering part's. Headers that
// report one limit do not change if an earlier decision is closer to exhaustion.
func (s *requestState) writeHeaders(header http.Header, denial *part) {
	if s.reports {
		s.allowFree()
	}
	if s.drafts || denial != nil && s.before.Load() != nil { // an earlier handler may list limits
		s.listLimits(header, denial != nil)
	}
	if denial != nil {
		s.report(header, denial)
		s.fields.SetDenied(header, httpfields.Seconds(denial.result.RetryAfter))
		if denial.policy.answers.headerFunc != nil {
			denial.callHeaderFunc(header)
		}
		return
	}
	if len(s.parts) > 1 || s.before.Load() != nil {
		s.reportClosest(header)
	} else if t := &s.parts[0]; t.reported() {
		s.report(header, t)
		if t.policy.answers.headerFunc != nil {
			t.callHeaderFunc(header)
		}
	}
}

// allowFree has no limit deny in header fields what is allowed: a cost of 0 is, even if a limit has no tokens.
func (s *requestState) allowFree() {
	for i := range s.parts {
		if t := &s.parts[i]; t.answer != nil && t.answer.Allowed {
			for j := range t.answer.Statuses {
				t.answer.Statuses[j].Denies = false
			}
		}
	}
}

// reportClosest reports an allowed request of which several policies have decided.
func (s *requestState) reportClosest(header http.Header) {
	for i := range s.parts {
		if t := &s.parts[i]; t.reported() {
			s.reportDegraded(header, t)
		}
	}
	closest := s.closest(func(t *part) bool { return t.reported() && t.policy.answers.headers&XRateLimit != 0 })
	for i := range s.parts { // else an earlier handler has reported it
		if &s.parts[i] == closest {
			s.report(header, closest)
		}
	}
	funcs := s.chain(func(t *part) bool { return t.reported() && t.policy.answers.headerFunc != nil })
	slices.SortStableFunc(funcs, func(a, b *part) int { // of fields of one name the closest counts
		switch {
		case a.result.closerThan(b.result):
			return 1
		case b.result.closerThan(a.result):
			return -1
		}
		return 0
	})
	for _, t := range funcs {
		t.callHeaderFunc(header)
	}
}

// report sets the X-RateLimit fields to the result of a policy, if it sets them and the request is not
// unlimited.
func (s *requestState) report(h http.Header, t *part) {
	if r := &t.result; t.policy.answers.headers&XRateLimit != 0 && r.Limit.Rate >= 0 {
		s.fields.SetXRateLimit(h, int64(r.Limit.burst()), int64(r.Remaining), httpfields.Seconds(r.ResetAfter))
	}
	s.reportDegraded(h, t)
}

// reportDegraded sets the field that says that Redis should have decided and did not.
func (s *requestState) reportDegraded(h http.Header, t *part) {
	from := t.result.Source
	degraded := from == FromOpen || from == FromLocal && !s.limiter.engine.IsLocal()
	if degraded && t.policy.answers.headers != NoHeaders {
		s.fields.Text(h, httpfields.XRateLimitStatus, httpfields.Degraded)
	}
}

// callHeaderFunc has the policy's function set further fields.
func (t *part) callHeaderFunc(h http.Header) {
	t.policy.answers.headerFunc(h, t.limits.rows(t.policy.limiter.engine, t.answer))
}

// reported reports whether header fields may report the decision.
func (t *part) reported() bool { return t.answer != nil && t.phase == settled && !t.policy.dryRun }

// inDraft reports whether RateLimit-Policy and RateLimit list the limits of the decision.
func (t *part) inDraft() bool {
	return t.answer != nil && !t.policy.dryRun && t.policy.answers.headers&RateLimitDraft != 0
}

// listLimits sets RateLimit-Policy and RateLimit from the decisions so far whose policies set these
// fields. If the request is denied, by a limit or an error, only limits that deny have the
// parameter t: the others' may be longer than Retry-After, and clients need not wait for it.
func (s *requestState) listLimits(header http.Header, denied bool) {
	policies, limits := make([]byte, 0, 256), make([]byte, 0, 256) // on the stack
	if before := s.before.Load(); before != nil || len(s.parts) > 1 {
		for _, t := range s.chain((*part).inDraft) {
			policies, limits = t.appendDraft(policies, limits, s.fieldsOf(t), denied)
		}
	} else if t := &s.parts[0]; t.inDraft() {
		policies, limits = t.appendDraft(policies, limits, t.limits.fields, denied)
	}
	httpfields.SetDraft(header, policies, limits) // without a field if all are unlimited
}

// appendDraft appends the Items of a policy.
func (t *part) appendDraft(policies, limits []byte, fields []httpfields.Limit, denied bool) (morePolicies,

	moreLimits []byte) {
	list := t.listed(fields, make([]httpfields.Status, 0, 8))
	window := func(limit int) time.Duration { return t.limits.window(limit, t.ask.Set) }
	return list.AppendPolicy(policies, window), list.AppendRateLimit(limits, denied)
}

// listed returns the limits in the header fields, with their statuses in the given memory.
func (t *part) listed(fields []httpfields.Limit, statuses []httpfields.Status) httpfields.List {
	for _, one := range t.answer.Statuses {
		if int(one.Resource) == t.ask.Set.Ban() && one.Resource >= 0 {
			continue
		}
		statuses = append(statuses, httpfields.Status{
			Limit: t.limits.fieldOf(int(one.Resource)), Remaining: one.Remaining, Full: one.Full,
			More: httpfields.Seconds(one.More), Denies: one.Denies,
		})
	}
	return httpfields.List{Limits: fields, Statuses: statuses}
}

// fieldsOf returns the limits of a part as header fields and bodies name them. A name that a limit of an earlier policy
// has gets a number.
func (s *requestState) fieldsOf(t *part) []httpfields.Limit {
	for state := s; state != nil; state = state.before.Load() {
		for i := range state.parts {
			if other := &state.parts[i]; other != t && t.policy.mayShareNames(other.policy) {
				return s.renamed(t)
			}
		}
	}
	return t.limits.fields
}

// mayShareNames reports whether a limit of each of two policies can have one name. The name of a limit is its policy's,
// or begins with it and a hyphen.
func (p *Policy) mayShareNames(other *Policy) bool {
	short, long := p.field, other.field
	if len(short) > len(long) {
		short, long = long, short
	}
	return strings.HasPrefix(long, short) && (len(long) == len(short) || long[len(short)] == '-')
}

// renamed is fieldsOf if other policies may have the names of its policy. What a policy has without an override, or
// when it is not skipped, keeps its names: so a later policy has the same names in each response.
func (s *requestState) renamed(t *part) []httpfields.Limit {
	var taken []string
	take := func(fields []httpfields.Limit) {
		for i := range fields {
			taken = append(taken, fields[i].Name)
		}
	}
	for _, other := range s.chain(func(other *part) bool { return !other.policy.dryRun }) {
		usual := other.policy.limits.fields
		if other.limits == nil || other.limits == other.policy.limits {
			usual = httpfields.Rename(usual, taken)
			if other == t {
				return usual
			}
			take(usual)
			continue
		}
		fields := httpfields.Rename(other.limits.fields, taken)
		if other == t {
			return fields
		}
		usual = httpfields.Rename(usual, taken)
		take(fields)
		take(usual)
	}
	return t.limits.fields // of a dry run, which has none in a response
}

// problem returns the body of a denial by a part, which names the limits that deny: none if the client is
// banned and no limit denies.
func (s *requestState) problem(by *part, detail string) []byte {
	list := by.listed(s.fieldsOf(by), make([]httpfields.Status, 0, 8)) // on the stack
	return list.Problem(detail)
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

// answerDenied is the default of [WithDeniedHandler].
//
// It is [gin.Context.Data] with the memory for the header fields in the request's state.
func (s *requestState) answerDenied(c *gin.Context, by *part) {
	body := s.problem(by, detailOf(by.result, by.n, by.policy.counts.floor))
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
	case r.RetryAfter != Never:
		return ""
	case r.Limit.Rate == 0 && r.Limit.InFlight == 0:
		return httpfields.ProhibitedDetail
	default:
		return httpfields.CostDetail(cost, max(0, r.Limit.burst()-floor))
	}
}

// set keeps the results in the state, and warns if the same bucket has been charged already.
func (s *requestState) set(c *gin.Context) {
	if s.follows.Load() { // another handler has decided in a callback of this one
		s.before.Store(stateOf(c))
		c.Set(stateKey, s)
	}
	s.decided.Store(true)
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

// hash returns the hash of the policy's key, or 0 if no bucket was asked.
func (t *part) hash() uint64 {
	if t.answer == nil {
		return 0
	}
	return t.answer.Hash
}

// sharesWith reports whether another handler has decided about the same bucket.
func (t *part) sharesWith(s *requestState) bool {
	for i := range s.parts {
		other := &s.parts[i]
		if t.hash() != 0 && t.hash() == other.hash() && t.ask.Set.Shares(other.ask.Set) &&
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

// answerError is the default of [WithErrorHandler].
func answerError(c *gin.Context, err error) {
	_ = c.Error(err) // for the application's log; it returns what it was given
	c.Abort()
	var missing *missingHeader
	status := ErrorStatus(err)
	switch {
	case errors.As(err, &missing):
		answerProblem(c, status, httpfields.HeaderProblem(missing.name))
	case status == http.StatusServiceUnavailable && errors.Is(err, ErrUnavailable):
		c.Header(httpfields.RetryAfter, "1") // Redis decides again within a second of its return
		answerProblem(c, status, httpfields.CapacityProblem)
	default:
		answerStatus(c, status)
	}
}

// answerStatus answers with a problem that only repeats its status.
func answerStatus(c *gin.Context, status int) {
	answerProblem(c, status, httpfields.StatusProblem(http.StatusText(status), status))
}

// answerProblem answers with a problem.
func answerProblem(c *gin.Context, status int, problem string) {
	c.Header(httpfields.CacheControl, httpfields.NoStore)
	c.Data(status, httpfields.TypeProblem, []byte(problem))
}

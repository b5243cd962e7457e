package ginlimit

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/httpfields"
)

// writeHeaders sets the headers of a decision: of a denial, the answering part's. Headers that
// report one limit do not change if an earlier decision is closer to exhaustion.
func (s *requestState) writeHeaders(header http.Header, denial *part) {
	if s.reports {
		s.allowFree()
	}
	before, t := s.before.Load(), denial
	if s.drafts || denial != nil && before != nil { // an earlier handler may list limits
		s.listLimits(header, denial != nil)
	}
	switch {
	case denial != nil:
		s.fields.SetDenied(header, httpfields.Seconds(denial.result.RetryAfter))
	case before != nil || len(s.parts) > 1:
		s.reportClosest(header)
		return
	default:
		t = &s.parts[0]
	}
	if t.phase == decided && !t.policy.dryRun {
		s.report(header, t, true)
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
	closest := s.closest(func(t *part) bool { return t.reported() && t.policy.answers.headers&XRateLimit != 0 })
	for i := range s.parts { // else an earlier handler has reported it
		if t := &s.parts[i]; t.reported() {
			s.report(header, t, t == closest)
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

// report sets the header fields of a policy's result that it sets: that Redis should have decided and did not and, of
// the result closest to exhaustion, the X-RateLimit fields, unless it is unlimited.
func (s *requestState) report(h http.Header, t *part, closest bool) {
	headers, from := t.policy.answers.headers, t.answer.Source
	if r := &t.result; closest && headers&XRateLimit != 0 && r.Limit.Rate >= 0 {
		limit := t.limits.fields[t.limits.fieldOf(t.answer.Resource)].Tokens
		s.fields.SetXRateLimit(h, limit, int64(r.Remaining), httpfields.Seconds(r.ResetAfter))
	}
	if headers != NoHeaders && (from == engine.FromLocal || from == engine.FromOpen) {
		s.fields.Text(h, httpfields.XRateLimitStatus, httpfields.Degraded)
	}
}

// callHeaderFunc has the policy's function set further fields.
func (t *part) callHeaderFunc(h http.Header) {
	t.policy.answers.headerFunc(h, t.limits.rows(t.answer))
}

// reported reports whether header fields may report the decision.
func (t *part) reported() bool { return t.decides() && !t.policy.dryRun }

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
func (t *part) appendDraft(policies, limits []byte, fields []httpfields.Limit, denied bool) (
	morePolicies, moreLimits []byte) {
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

// deny answers a denied request. By default that is [gin.Context.Data] with the memory for the header fields in the
// request's state.
func (s *requestState) deny(c *gin.Context, by *part) {
	c.Status(http.StatusTooManyRequests)
	c.Abort()
	if by.policy.answers.deniedHandler != nil {
		by.policy.answers.deniedHandler(c, by.result)
		return
	}
	body, h := s.problem(by), c.Writer.Header()
	s.fields.Text(h, httpfields.ContentType, httpfields.TypeProblem)
	s.fields.Number(h, httpfields.ContentLength, int64(len(body)), false)
	if _, err := c.Writer.Write(body); err != nil {
		_ = c.Error(err) // for the application's log; it returns what it was given
	}
}

// problem returns the body of a denial by a part, which names the limits that deny: none if the client is
// banned and no limit denies. It explains what no retry avoids, and shares.
func (s *requestState) problem(by *part) []byte {
	r, detail, denying := &by.result, "", by.answer.Statuses
	switch {
	case r.Cause == CauseShare:
		detail = httpfields.ShareDetail
	case r.RetryAfter != Never:
		if s.plain && s.before.Load() == nil && len(denying) == 1 {
			return by.limits.fields[by.limits.fieldOf(int(denying[0].Resource))].Problem
		}
	case r.Limit.Rate == 0 && r.Limit.InFlight == 0:
		detail = httpfields.ProhibitedDetail
	default:
		detail = httpfields.CostDetail(by.n, max(0, r.Limit.burst()-by.policy.counts.floor))
	}
	list := by.listed(s.fieldsOf(by), make([]httpfields.Status, 0, 8)) // on the stack
	return list.Problem(detail)
}

// fail answers a request on which a policy has no decision, and logs why if the application is at fault.
func (t *part) fail(c *gin.Context, s *requestState, why failure) {
	p := t.policy
	free := t.n == 0 && t.asked && errors.Is(why.err, ErrUnavailable)
	s.deciding.record(c.Request.Context(), t, OutcomeFailed, free, why)
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

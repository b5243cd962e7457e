package ginlimit

import (
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/httpfields"
)

// requestState is what one policy has decided on a request, linked to what earlier ones have. Once its
// headers are written, it does not change but for fields, as a copy of the [gin.Context] shares it.
type requestState struct {
	decision
	cost   int // tokens that the request takes
	by     *Policy
	before *requestState // of the policy before; nil if there is none

	subject  subject // the client and its limits
	statuses limitStatuses
	renamed  *httpfields.List // with other names, as earlier policies have taken some of the limits' own; nil if none
	fields   httpfields.Fields
}

// stateKey is where a [gin.Context] keeps the newest state.
const stateKey = "github.com/ginlimit/ginlimit.state"

// stateOf returns the newest state of a request, or nil.
func stateOf(c *gin.Context) *requestState {
	v, _ := c.Get(stateKey)
	s, _ := v.(*requestState)
	return s
}

// newState returns the state for a decision of the policy.
func (p *Policy) newState() *requestState {
	s := &requestState{by: p}
	s.statuses.init(p.headers&RateLimitDraft != 0)
	return s
}

// set keeps a decision in the context, and warns if the same bucket has been charged already.
func (s *requestState) set(c *gin.Context, d decision) {
	s.decision, s.before = d, stateOf(c)
	c.Set(stateKey, s)
	for other := s.before; other != nil && s.hash != 0; other = other.before {
		if other.hash == s.hash && s.shares(other) && !s.by.warned.Swap(true) {
			s.by.logger.WarnContext(c.Request.Context(),
				"ginlimit: two handlers charge one bucket for one request; if that is not meant, name one of them with WithName",
				"name", s.by.name)
		}
	}
}

// closest returns the refusal, or else the decision closest to exhaustion.
func (s *requestState) closest() Result {
	closest := s.result
	for ; s != nil && closest.Allowed; s = s.before {
		if s.result.closerThan(closest) {
			closest = s.result
		}
	}
	return closest
}

// writeHeaders sets the headers of a decision. Headers that report only one limit do not change if an earlier decision is
// closer to exhaustion.
func (s *requestState) writeHeaders(header http.Header) {
	result, by := s.result, s.by
	if result.Allowed { // a cost of 0 is allowed, even if a limit has no tokens
		for i := range s.statuses.limits {
			s.statuses.limits[i].Denies = false
		}
	}
	if by.headers&RateLimitDraft != 0 || !result.Allowed {
		s.rename()
		s.listLimits(header, !result.Allowed)
	}
	if by.headers&XRateLimit != 0 && s.reports(func(p *Policy) bool { return p.headers&XRateLimit != 0 }) {
		setXRateLimit(&s.fields, header, result)
	}
	if !result.Allowed {
		s.fields.SetDenied(header, httpfields.Seconds(result.RetryAfter))
	}
	if by.headers != NoHeaders && result.Source == FromLocal && by.limiter.source != FromLocal {
		s.fields.Text(header, httpfields.XRateLimitStatus, httpfields.Degraded)
	}
	if by.headerFunc != nil && s.reports(func(p *Policy) bool { return p.headerFunc != nil }) {
		by.headerFunc(header, result)
	}
}

// reports whether fields of one limit report this decision: unless an earlier policy that sets them is closer to exhaustion.
func (s *requestState) reports(sets func(*Policy) bool) bool {
	for other := s.before; other != nil && s.result.Allowed; other = other.before {
		if other.reported() && sets(other.by) && other.result.closerThan(s.result) {
			return false
		}
	}
	return true
}

// reported reports whether header fields may tell of the decision.
func (s *requestState) reported() bool { return s.limits != nil && !s.by.dryRun }

// listLimits sets RateLimit-Policy and RateLimit from the decisions so far whose policies set these fields. If the request
// is refused, by a limit or an error, only limits that refuse have the parameter t: the others' may be longer than
// Retry-After, and clients need not wait for it.
func (s *requestState) listLimits(header http.Header, refused bool) {
	var all []*requestState
	for ; s != nil; s = s.before {
		if s.inFields() {
			all = append(all, s)
		}
	}
	policies, limits := make([]byte, 0, 256), make([]byte, 0, 256) // on the stack
	for _, one := range slices.Backward(all) {
		list := one.listed(make([]httpfields.Status, 0, 8))
		policies = list.AppendPolicy(policies)
		limits = list.AppendRateLimit(limits, refused)
	}
	httpfields.SetDraft(header, policies, limits) // without a field if all are unlimited
}

// inFields reports whether RateLimit-Policy and RateLimit list the limits of the decision.
func (s *requestState) inFields() bool {
	return s.by.headers&RateLimitDraft != 0 && s.reported()
}

// policies returns the fields' policies: of the policy's own limits, then of its identities.
func (s *requestState) policies() []httpfields.Limit {
	all := slices.Clip(s.limits.listed())
	for i := range s.identities {
		all = append(all, s.identities[i].limits.policies...)
	}
	return all
}

// rename gives limits other names if earlier policies have listed the same names in the fields.
func (s *requestState) rename() {
	var taken []string
	for other := s.before; other != nil; other = other.before {
		if other.inFields() {
			list := other.list()
			taken = list.AppendNames(taken)
		}
	}
	if taken == nil {
		return
	}
	list := s.list()
	if _ = list.Rename(taken); list.Names != nil {
		s.renamed = &httpfields.List{Limits: list.Limits, Names: list.Names}
	}
}

// list returns what the fields say of the decision, without the statuses.
func (s *requestState) list() httpfields.List {
	if s.renamed != nil {
		return *s.renamed
	}
	return httpfields.List{Limits: s.policies()}
}

// listed returns what the fields say of the decision, with the statuses in the given memory.
func (s *requestState) listed(statuses []httpfields.Status) httpfields.List {
	list := s.list()
	for i := range s.statuses.limits {
		one := &s.statuses.limits[i]
		for j := range list.Limits {
			if list.Limits[j].Name == one.policy.Name {
				status := one.Status
				status.Limit = j
				statuses = append(statuses, status)
				break
			}
		}
	}
	list.Statuses = statuses
	return list
}

// problem returns the body of a denial, which names the limits that deny: none if the client is banned and has no limits.
func (s *requestState) problem(detail string) []byte {
	list := s.listed(make([]httpfields.Status, 0, 8)) // on the stack
	return list.Problem(detail)
}

// shares reports whether two decisions on one key were about the same bucket.
func (s *requestState) shares(other *requestState) bool {
	if s.by.limiter.store.String() != other.by.limiter.store.String() {
		return false
	}
	for _, b := range s.limits.all() {
		for _, o := range other.limits.all() {
			if b.ID == o.ID {
				return true
			}
		}
	}
	return false
}

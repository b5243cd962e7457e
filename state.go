// What a handler knows of all requests, of one request, and of the handlers that decided on it before.

package ginlimit

import (
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/gintrust"
	"github.com/ginlimit/ginlimit/internal/httpfields"
	"github.com/ginlimit/ginlimit/internal/rules"
)

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

// requestState is what the policies of one handler have decided on a request, linked to what earlier
// handlers have. A copy of the [gin.Context] shares it, for as long as it likes: so once it has decided, only
// deciding and fields change, and the questions and answers of parts.
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

package ginlimit

import (
	"sync/atomic"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/httpfields"
)

// requestState is what the policies of one handler have decided on a request, linked to what earlier
// handlers have. Once its headers are written it does not change, but for fields, as a copy of the
// [gin.Context] shares it.
type requestState struct {
	decision
	asking  *Policy                      // whose key function runs
	decided atomic.Bool                  // results do not change any more
	follows atomic.Bool                  // another handler has begun to decide since
	before  atomic.Pointer[requestState] // of the handler that decided before; nil if there is none
	fields  httpfields.Fields            // memory
}

// newState returns the newest state of a request, of a handler that is about to decide.
func newState(c *gin.Context, policies []*Policy) *requestState {
	s := &requestState{asking: policies[0]}
	s.begin(len(policies), policies[0].limiter)
	for i, p := range policies {
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

// useAddress implements addressUser.
func (s *requestState) useAddress(c *gin.Context) { s.asking.useAddress(c) }

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
			t.policy.limiter.engine.SharesStore(s.engine()) {
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

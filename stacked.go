// What the handlers of one request, and its copies, know of each other.

package ginlimit

import "github.com/gin-gonic/gin"

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

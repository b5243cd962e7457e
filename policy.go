package ginlimit

import (
	"strconv"
	"time"
)

// policy is how a limit is told of, whatever is left of it.
type policy struct {
	name    string
	problem problem // the body of a refusal by it alone
}

// standing is what a client is told of a limit after a decision.
type standing struct {
	policy    *policy
	remaining int64 // tokens
	held      int64 // tokens there are at most
	more      time.Duration
	refuses   bool
}

// standings are those of the limits of a decision.
type standings struct {
	limits []standing
	all    bool // are wanted, not only of limits that refuse
	space  [1]standing
}

func (s *standings) init(all bool) { s.limits, s.all = s.space[:0], all }

// add adds that of a bucket after a decision, if it is wanted. A wish that passes the whole limit is refused by it
// though a share may owe it.
func (s *standings) add(b *bucket, found, after state, n int64) {
	if s == nil {
		return
	}
	refuses := b.fit(found.level, 1, n) == 0 || n > int64(b.limit.burst())
	if s.all || refuses {
		s.limits = append(s.limits, standing{b.policy, int64(b.remaining(after.level)), b.burst, b.moreAfter(after), refuses})
	}
}

// addProhibited adds that of a limit that always denies.
func (s *standings) addProhibited(p *policy) {
	s.limits = append(s.limits, standing{policy: p, refuses: true})
}

// giveBack adds tokens that were given back to the first so many.
func (s *standings) giveBack(first int, n int64) {
	for i := range s.limits[:first] {
		one := &s.limits[i]
		one.remaining = min(one.remaining+n, one.held)
	}
}

// problem returns the body of a refusal: that of one policy, or of several.
func (s *standings) problem() problem {
	var only *policy
	var names []string
	for _, limit := range s.limits {
		switch {
		case !limit.refuses:
			continue
		case only == nil:
			only = limit.policy
		case names == nil:
			names = []string{only.name}
		}
		if only != limit.policy {
			names = append(names, limit.policy.name)
		}
	}
	if names == nil {
		return only.problem
	}
	return newProblem(names...)
}

// name has the rules' limits told of: by a name, with their periods if there are several, or by their own text if it
// is "".
func (r *rules) name(name string, several bool) {
	var items []byte
	policyOf := func(l Limit, q, w int64) *policy {
		own := name
		switch {
		case own == "":
			own = fieldName(l.String())
		case several:
			own += "-" + periodText(l.Period)
		}
		items = appendPolicy(items, own, q, w)
		return &policy{own, newProblem(own)}
	}
	for i := range r.buckets {
		b := &r.buckets[i]
		b.policy = policyOf(b.limit, b.burst, seconds(b.spread()))
	}
	if r.denies {
		r.policy = policyOf(r.prohibited, 0, seconds(r.prohibited.Period))
	}
	r.policies = string(items)
}

// newFieldName returns the [fieldName] of a name that no other has.
func newFieldName(name string, others map[string]bool) string {
	own := fieldName(name)
	for i := 2; others[own]; i++ {
		own = fieldName(name) + "-" + strconv.Itoa(i)
	}
	others[own] = true
	return own
}

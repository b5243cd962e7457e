package ginlimit

import (
	"strings"

	"github.com/ginlimit/ginlimit/internal/httpfields"
)

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

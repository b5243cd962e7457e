package ginlimit_test

import (
	"slices"
	"testing"
)

// maxShrinks is how many parts of a failing plan are tried.
const maxShrinks = 150

// shrink looks for a part of a plan that fails too. It leaves out faults, then calls, at first many at once.
func shrink(t *testing.T, failed *simulation) *simulation {
	tries := 0
	fails := func(change func(p *simPlan)) bool {
		if tries++; tries > maxShrinks {
			return false
		}
		part := *failed.plan
		part.calls, part.faults = slices.Clone(part.calls), slices.Clone(part.faults)
		change(&part)
		s := simulate(t, &part)
		if len(s.violations) > 0 {
			failed = s
		}
		return len(s.violations) > 0
	}
	for i := 0; i < len(failed.plan.faults); {
		if !fails(func(p *simPlan) { p.faults = slices.Delete(p.faults, i, i+1) }) {
			i++
		}
	}
	for size := len(failed.plan.calls) / 2; size > 0 && tries < maxShrinks; size /= 2 {
		for from := 0; from+size <= len(failed.plan.calls); {
			if !fails(func(p *simPlan) { p.calls = slices.Delete(p.calls, from, from+size) }) {
				from += size
			}
		}
	}
	return failed
}

package simulation_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
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

// describe tells the configuration, what happened and what was violated.
func (s *simulation) describe() string {
	return s.plan.describe() + strings.Join(s.trace, "\n") + "\n" + strings.Join(s.violations, "\n")
}

// tell writes the run so far to the standard error, where the process is about to end.
func (s *simulation) tell() {
	if s.mu.TryLock() { // unless who panics has it
		defer s.mu.Unlock()
	}
	fmt.Fprintf(os.Stderr, "seed %d:\n%s\nreplay: go test ./tests/simulation -run TestSimulation -seed %d\n",
		s.plan.seed, s.describe(), s.plan.seed)
}

// tellPanic tells the run if its goroutine panics, which goes on.
func (s *simulation) tellPanic() {
	if p := recover(); p != nil {
		s.tell()
		panic(p)
	}
}

// describe tells the configuration.
func (p *simPlan) describe() string {
	text := fmt.Sprintf("%s, %d nodes, timeout %s, latency %s + up to %s\n", p.algorithm,
		p.nodes, p.timeout, p.latency, p.jitter)
	for i, m := range p.processes {
		deny := "by default"
		if m.denyOrNil != nil {
			deny = strconv.Itoa(*m.denyOrNil)
		}
		text += fmt.Sprintf("process %d: %d s ahead, Fail %s, %d replicas, deny memory %s, "+
			"lease %s, inline %t, ContextTimeoutEnabled %t, ReadTimeout %s, %d retries of a dial, protocol %d\n",
			i, m.skew, m.failure, m.replicas, deny, m.lease, m.inline,
			m.client.ContextTimeoutEnabled, m.client.ReadTimeout, m.client.DialerRetries, m.client.Protocol)
	}
	for _, k := range p.keys {
		text += fmt.Sprintf("%s: %v, later %v\n", k.name, k.versions[0], k.versions[1])
		if k.ahead != nil {
			text += fmt.Sprintf("of which may be leased: %+v\n", k.ahead)
		}
	}
	return text
}

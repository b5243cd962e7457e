package simulation_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

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

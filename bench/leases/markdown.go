package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/ginlimit/ginlimit/bench/internal/spread"
)

// table writes Markdown while the situations are measured.
type table struct {
	out      io.Writer
	started  bool
	degraded []string // a line for each situation that had decisions without Redis
}

var columns = []string{"limit", "load", "processes", "asked/s", "admitted/s", "with ÷ without", "calls per decision",
	"Redis CPU, µs", "processes' CPU, µs", "p50, µs", "p99, µs", "max ÷ min"}

func newTable(out io.Writer) *table { return &table{out: out} }

// add writes the row of a situation. A cell has the figure with leases, and then the one without.
func (t *table) add(s situation, with, without []round) {
	if !t.started {
		fmt.Fprintf(t.out, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
		t.started = true
	}
	both := func(digits int, f func(round) float64) string {
		return fmt.Sprintf("**%s** / %s", spreadOf(with, f).Middle(digits), spreadOf(without, f).Middle(digits))
	}
	calls := func(r round) float64 { return r.calls }
	var admitted []float64 // of what was admitted without leases in the same round
	for i := range with {
		admitted = append(admitted, with[i].admitted/without[i].admitted)
	}
	fmt.Fprintf(t.out, "| %s |\n", strings.Join([]string{
		fmt.Sprintf("%d/s", s.rate), fmt.Sprintf("%g", s.load), fmt.Sprint(s.processes),
		spreadOf(with, func(r round) float64 { return r.asked }).Middle(0),
		both(1, func(r round) float64 { return r.admitted }),
		spread.Of(admitted).Text(3),
		fmt.Sprintf("**%s** / %s", spreadOf(with, calls).Text(4), spreadOf(without, calls).Middle(2)),
		both(2, func(r round) float64 { return r.redisCPU }),
		both(1, func(r round) float64 { return r.processCPU }),
		both(1, func(r round) float64 { return r.p50 }),
		both(0, func(r round) float64 { return r.p99 }),
		both(2, func(r round) float64 { return r.fairness }),
	}, " | "))
	for _, policy := range []struct {
		name   string
		rounds []round
	}{{"with leases", with}, {"without", without}} {
		var sum float64
		for _, r := range policy.rounds {
			sum += r.degraded
		}
		if sum > 0 {
			t.degraded = append(t.degraded,
				fmt.Sprintf("- %s, %s: %.3g %%", s.name(), policy.name, 100*sum/float64(len(policy.rounds))))
		}
	}
}

// end lists what was decided without Redis.
func (t *table) end() {
	if len(t.degraded) > 0 {
		fmt.Fprintf(t.out, "\nDecided without Redis, or not at all:\n\n%s\n", strings.Join(t.degraded, "\n"))
	}
}

func spreadOf(rounds []round, f func(round) float64) spread.Spread {
	var values []float64
	for _, r := range rounds {
		values = append(values, f(r))
	}
	return spread.Of(values)
}

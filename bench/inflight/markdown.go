package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/ginlimit/ginlimit/bench/internal/spread"
)

// table writes Markdown while the situations are measured.
type table struct {
	out     io.Writer
	started bool
	wrong   []string // a line for each system that denied a request, or decided without Redis
}

var columns = []string{"situation", "system", "µs per request", "÷ ginlimit's", "µs until admitted", "Redis CPU, µs",
	"÷ ginlimit's", "process' CPU, µs", "÷ ginlimit's", "reads by Redis", "commands"}

// add writes a row for each system in a situation.
func (t *table) add(s situation, found []result) {
	if !t.started {
		fmt.Fprintf(t.out, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
		t.started = true
	}
	for i, r := range found {
		times := func(figure func(round) float64) string { // of ginlimit's in the same round
			var ratios []float64
			for n := range r.rounds {
				ratios = append(ratios, figure(r.rounds[n])/figure(found[0].rounds[n]))
			}
			if i == 0 {
				return ""
			}
			return spread.Of(ratios).Text(2)
		}
		middle := func(digits int, figure func(round) float64) string { return r.spread(figure).Middle(digits) }
		wall := func(r round) float64 { return r.time }
		inRedis := func(r round) float64 { return r.redisCPU }
		inProcess := func(r round) float64 { return r.processCPU }
		fmt.Fprintf(t.out, "| %s |\n", strings.Join([]string{
			s.label(), r.system, middle(1, wall), times(wall), middle(0, func(r round) float64 { return r.admitted }),
			middle(1, inRedis), times(inRedis), middle(1, inProcess), times(inProcess),
			middle(2, func(r round) float64 { return r.reads }), middle(1, func(r round) float64 { return r.commands }),
		}, " | "))
		denied := r.mean(func(r round) float64 { return r.denied })
		degraded := r.mean(func(r round) float64 { return r.degraded })
		if denied+degraded > 0 {
			t.wrong = append(t.wrong, fmt.Sprintf("- %s, %s: %.3g %% denied, %.3g %% without Redis",
				s.name(), r.system, 100*denied, 100*degraded))
		}
	}
}

// label is what the table has for the situation.
func (s situation) label() string {
	slots, held := s.slots()
	levels, rate, callers := "levels", "", "callers"
	if s.levels == 1 {
		levels = "level"
	}
	if s.rate {
		rate = " and a rate"
	}
	if s.callers == 1 {
		callers = "caller"
	}
	return fmt.Sprintf("%d %s%s, %d of %d held, %d %s", s.levels, levels, rate, held, slots, s.callers, callers)
}

// end lists what was wrong.
func (t *table) end() {
	if len(t.wrong) > 0 {
		fmt.Fprintf(t.out, "\nDenied, or decided without Redis:\n\n%s\n", strings.Join(t.wrong, "\n"))
	}
}

func (r result) spread(figure func(round) float64) spread.Spread {
	var values []float64
	for _, one := range r.rounds {
		values = append(values, figure(one))
	}
	return spread.Of(values)
}

func (r result) mean(figure func(round) float64) (mean float64) {
	for _, one := range r.rounds {
		mean += figure(one) / float64(len(r.rounds))
	}
	return mean
}

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/bench/internal/spread"
)

// table writes Markdown while the situations are measured.
type table struct {
	out     io.Writer
	started bool
}

var columns = []string{"callers", "tenants", "denied", "µs, without shares", "with", "÷", "Redis CPU, µs, without",
	"with", "÷", "process' CPU, µs, without", "with", "÷", "reads by Redis, without", "with"}

// add writes the row of a situation.
func (t *table) add(s situation, with, without []round) {
	if !t.started {
		fmt.Fprintf(t.out, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
		t.started = true
	}
	middle := func(rounds []round, digits int, figure func(round) float64) string {
		var values []float64
		for _, r := range rounds {
			values = append(values, figure(r))
		}
		return spread.Of(values).Middle(digits)
	}
	cells := []string{fmt.Sprint(s.callers), fmt.Sprint(s.tenants),
		middle(with, 2, func(r round) float64 { return r.denied })}
	for _, figure := range []func(round) float64{
		func(r round) float64 { return r.time }, func(r round) float64 { return r.redisCPU },
		func(r round) float64 { return r.processCPU },
	} {
		var ratios []float64 // within a round
		for n := range with {
			ratios = append(ratios, figure(with[n])/figure(without[n]))
		}
		cells = append(cells, middle(without, 1, figure), middle(with, 1, figure), spread.Of(ratios).Text(2))
	}
	reads := func(r round) float64 { return r.reads }
	cells = append(cells, middle(without, 2, reads), middle(with, 2, reads))
	fmt.Fprintf(t.out, "| %s |\n", strings.Join(cells, " | "))
}

// end ends the table.
func (t *table) end() {
	if t.started {
		fmt.Fprintln(t.out)
	}
}

// noTenant is for a policy whose requests are not counted here, but calls of its Share.
func noTenant(*gin.Context) (string, int) { return "", 1 }

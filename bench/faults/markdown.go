package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// row is what the libraries did in a fault: the outcomes of each in all rounds.
type row struct {
	fault    fault
	outcomes [][]outcome
}

// table is one of those that are written.
type table struct {
	title   func(o outcome) string
	figures []func(o outcome) float64 // the less, the better
	text    func(o outcome, figure float64) string
	rest    func(rounds, ours []outcome) string
	free    int // how many figures requests without a limiter have too, in a column of their own
}

// tables are written one after the other. Each has a row for each fault and a column for each library.
func tables() []table {
	const took = "Longest request, p99, and until Redis decides again, ms"
	const admitted = "Admitted, where %d are allowed; refused below the limit: what clients see beside 200 and 429"
	millis := func(_ outcome, ms float64) string {
		if ms >= inMillis(patience) {
			return fmt.Sprintf("> %.0f", inMillis(patience))
		}
		return fmt.Sprintf("%.0f", ms)
	}
	return []table{
		{func(outcome) string { return took }, []func(outcome) float64{
			func(o outcome) float64 { return inMillis(o.took.percentile(100)) },
			func(o outcome) float64 { return inMillis(o.took.percentile(99)) },
			func(o outcome) float64 { return inMillis(o.back) },
		}, millis, nil, 2},
		{func(o outcome) string { return fmt.Sprintf(admitted, o.allowed) }, []func(outcome) float64{
			func(o outcome) float64 { return float64(max(o.admitted-o.allowed, o.allowed-o.admitted)) },
		}, func(o outcome, _ float64) string { return fmt.Sprint(o.admitted) }, refusals, 0},
	}
}

// refusals returns how many requests were refused below the limit, and what clients saw; "" is nothing.
func refusals(rounds, ours []outcome) string {
	refused := table{
		figures: []func(outcome) float64{func(o outcome) float64 { return float64(o.refused) }},
		text:    func(_ outcome, n float64) string { return fmt.Sprint(n) },
	}.cell(rounds, ours)
	if seen := statuses(rounds); seen != "" {
		return refused + ": " + seen
	}
	return strings.TrimPrefix(refused, "0")
}

// inMillis returns whole milliseconds, as they are compared and written.
func inMillis(d time.Duration) float64 { return float64(d.Round(time.Millisecond).Milliseconds()) }

// write writes the table. A figure is of the median round; in bold it is better than ginlimit's, which is in the
// first column.
func (t table) write(out io.Writer, names []string, rows []row) {
	if len(rows) == 0 {
		return
	}
	header := append([]string{t.title(rows[0].outcomes[0][0])}, names...)
	if t.free > 0 {
		header = append(header, "no limiter")
	}
	fmt.Fprintf(out, "| %s |\n|%s\n", strings.Join(header, " | "), strings.Repeat(" --- |", len(header)))
	for _, r := range rows {
		cells := []string{r.fault.name}
		var free []outcome
		for _, rounds := range r.outcomes {
			cell := t.cell(rounds, r.outcomes[0])
			if t.rest != nil {
				cell = strings.TrimSuffix(cell+"; "+t.rest(rounds, r.outcomes[0]), "; ")
			}
			cells = append(cells, cell)
			for _, o := range rounds {
				free = append(free, outcome{took: o.free})
			}
		}
		if t.free > 0 {
			cells = append(cells, table{figures: t.figures[:t.free], text: t.text}.cell(free, free))
		}
		fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | "))
	}
	fmt.Fprintln(out)
}

// cell has the figures of some rounds beside ginlimit's.
func (t table) cell(rounds, ours []outcome) string {
	var texts []string
	for _, figure := range t.figures {
		own := median(rounds, figure)
		text := t.text(own, figure(own))
		if figure(own) < figure(median(ours, figure)) {
			text = "**" + text + "**"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

// median returns the round that is in the middle by a figure.
func median(rounds []outcome, figure func(outcome) float64) outcome {
	sorted := slices.SortedFunc(slices.Values(rounds), func(a, b outcome) int { return int(figure(a) - figure(b)) })
	return sorted[(len(sorted)-1)/2]
}

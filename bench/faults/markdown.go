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
	free    bool // requests without a limiter have a column too
}

// report writes the tables of ../README.md just as they stand there, and then what the page only mentions: the 99th
// percentile, requests without a limiter, and faults that change no decision.
func report(out io.Writer, names []string, rows []row) {
	var shown, mentioned []row
	for _, r := range rows {
		if r.fault.harmless {
			mentioned = append(mentioned, r)
		} else {
			shown = append(shown, r)
		}
	}
	for _, t := range tables() {
		t.write(out, names, shown)
	}
	percentiles().write(out, names, rows)
	for _, t := range tables() {
		t.write(out, names, mentioned)
	}
}

// tables are those of the page. Each has a row for each fault and a column for each library.
func tables() []table {
	const took = "Longest request, and until Redis decides again, ms"
	const admitted = "Admitted, where %d are allowed; refused below the limit: what clients see beside 200 and 429"
	return []table{
		{func(outcome) string { return took }, []func(outcome) float64{
			longest,
			func(o outcome) float64 { return inMillis(o.back) },
		}, millis, nil, false},
		{func(o outcome) string { return fmt.Sprintf(admitted, o.allowed) }, []func(outcome) float64{
			func(o outcome) float64 { return float64(max(o.admitted-o.allowed, o.allowed-o.admitted)) },
		}, func(o outcome, _ float64) string { return fmt.Sprint(o.admitted) }, refusals, false},
	}
}

// percentiles is not on the page.
func percentiles() table {
	return table{func(outcome) string { return "Longest request, and at the 99th percentile, ms" },
		[]func(outcome) float64{
			longest,
			func(o outcome) float64 { return inMillis(o.took.percentile(99)) },
		}, millis, nil, true}
}

func longest(o outcome) float64 { return inMillis(o.took.percentile(100)) }

func millis(_ outcome, ms float64) string {
	if ms >= inMillis(patience) {
		return fmt.Sprintf("> %.0f", inMillis(patience))
	}
	return fmt.Sprintf("%.0f", ms)
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
	if t.free {
		header = append(header, "no limiter")
	}
	fmt.Fprintf(out, "| %s |\n|%s\n", strings.Join(header, " | "), strings.Repeat("---|", len(header)))
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
		if t.free {
			cells = append(cells, table{figures: t.figures, text: t.text}.cell(free, free))
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

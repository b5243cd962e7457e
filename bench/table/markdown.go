package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/ginlimit/ginlimit/bench/internal/peers"
	"github.com/ginlimit/ginlimit/bench/internal/spread"
)

// table writes Markdown while the situations are measured.
type table struct {
	out    io.Writer
	header []string // of the last row
	wrong  []string // a line for each library and situation that had wrong answers
}

// A peer's cell names the peer: each figure has its own best one.
var (
	decisionColumns = []string{"situation", "µs per decision", "best peer", "times as fast",
		"CPU µs", "of it Redis", "best peer's CPU µs", "ours ÷ its", "p50 µs", "best peer's",
		"p99 µs", "best peer's", "allocations", "Gin alone, µs"}
	httpColumns = []string{"situation", "Gin alone, µs per request", "ginlimit adds", "best peer adds", "ours ÷ its",
		"CPU µs that ginlimit adds", "best peer adds", "ours ÷ its", "p50 µs", "best peer's",
		"p99 µs", "best peer's", "p99 of Gin alone", "allocations added"}
	streamColumns = []string{"requests", "p50 µs", "best peer's", "p99 µs", "best peer's", "p99.9 µs", "best peer's",
		"CPU µs", "best peer's CPU µs", "ours ÷ its"}
)

// add writes a row for ginlimit and one for each variant of it.
func (t *table) add(r results) {
	for _, l := range r.libraries {
		if l.Role != peers.Ours && (l.Role != peers.Variant || !r.situation.takesPart(l)) {
			continue
		}
		label := r.situation.label
		if l.Role == peers.Variant {
			label += ", " + l.Name
		}
		switch {
		case r.situation.tool != nil:
			t.row(httpColumns, httpRow(label, l.Name, r))
		case r.situation.rate > 0:
			t.row(streamColumns, streamRow(label, l.Name, r))
		default:
			t.row(decisionColumns, decisionRow(label, l.Name, r))
		}
	}
	for _, l := range r.libraries {
		var sum float64
		for _, wrong := range r.each(l.Name, wrongOf) {
			sum += wrong
		}
		if n := len(r.rounds[l.Name]); sum > 0 {
			t.wrong = append(t.wrong, fmt.Sprintf("- %s, %s: %.3g %%", r.situation.label, l.Name, 100*sum/float64(n)))
		}
	}
}

func (t *table) row(columns, cells []string) {
	if len(t.header) == 0 || t.header[1] != columns[1] {
		if len(t.header) > 0 {
			fmt.Fprintln(t.out)
		}
		fmt.Fprintf(t.out, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
		t.header = columns
	}
	fmt.Fprintf(t.out, "| %s |\n", strings.Join(cells, " | "))
}

// end lists the wrong answers.
func (t *table) end() {
	if len(t.wrong) > 0 {
		fmt.Fprintf(t.out, "\nWrong answers, or of ginlimit those that it gave without Redis:\n\n%s\n",
			strings.Join(t.wrong, "\n"))
	}
}

func decisionRow(label, ours string, r results) []string {
	fastest, thriftiest := r.bestPeer(timeOf), r.bestPeer(cpuOf)
	return []string{
		label,
		r.spread(ours, timeOf).Text(1),
		named(fastest, r.spread(fastest, timeOf).Text(1)),
		bold(r.ratio(fastest, ours, timeOf).Text(2)),
		r.spread(ours, cpuOf).Text(1),
		r.spread(ours, redisCPUOf).Middle(2),
		named(thriftiest, r.spread(thriftiest, cpuOf).Text(1)),
		r.ratio(ours, thriftiest, cpuOf).Text(2),
		r.spread(ours, p50Of).Middle(1), r.peersBest(p50Of, 1),
		r.spread(ours, p99Of).Middle(0), r.peersBest(p99Of, 0),
		r.spread(ours, allocationsOf).Middle(1),
		r.spread(r.bare(), timeOf).Middle(1),
	}
}

func httpRow(label, ours string, r results) []string {
	fastest, thriftiest := r.bestPeer(timeOf), r.bestPeer(cpuOf)
	return []string{
		label,
		r.spread(r.bare(), timeOf).Text(1),
		spread.Of(r.added(ours, timeOf)).Text(1),
		named(fastest, spread.Of(r.added(fastest, timeOf)).Text(1)),
		bold(r.addedRatio(ours, fastest, timeOf).Text(2)),
		spread.Of(r.added(ours, cpuOf)).Text(1),
		named(thriftiest, spread.Of(r.added(thriftiest, cpuOf)).Text(1)),
		r.addedRatio(ours, thriftiest, cpuOf).Text(2),
		r.spread(ours, p50Of).Middle(0), r.peersBest(p50Of, 0),
		r.spread(ours, p99Of).Middle(0), r.peersBest(p99Of, 0), r.spread(r.bare(), p99Of).Middle(0),
		spread.Of(r.added(ours, allocationsOf)).Middle(1),
	}
}

func streamRow(label, ours string, r results) []string {
	thriftiest := r.bestPeer(cpuOf)
	return []string{
		label,
		r.spread(ours, p50Of).Middle(0), r.peersBest(p50Of, 0),
		r.spread(ours, p99Of).Middle(0), r.peersBest(p99Of, 0),
		r.spread(ours, p999Of).Middle(0), r.peersBest(p999Of, 0),
		r.spread(ours, cpuOf).Middle(0), named(thriftiest, r.spread(thriftiest, cpuOf).Middle(0)),
		r.ratio(ours, thriftiest, cpuOf).Text(2),
	}
}

// peersBest is the cell of the peer with the least of a figure.
func (r results) peersBest(f figure, digits int) string {
	peer := r.bestPeer(f)
	return named(peer, r.spread(peer, f).Middle(digits))
}

func named(library, figure string) string {
	if library == "" {
		return ""
	}
	return figure + " " + library
}

// bold marks the number before the spread.
func bold(text string) string {
	number, rest, found := strings.Cut(text, " ")
	if !found {
		return text
	}
	return "**" + number + "** " + rest
}

package frontier

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
)

// row is what a design did in all cells of as many processes: the worst, and the calls on average.
type row struct {
	design    string
	processes int
	figures
}

// rows sums up the cells of a design.
func rows(design string, of map[cell]figures) (all []row) {
	sums, n := map[int]*row{}, map[int]float64{}
	for c, f := range of {
		r := sums[c.processes]
		if r == nil {
			r = &row{design: design, processes: c.processes, figures: figures{used: 1, given: 1}}
			sums[c.processes] = r
		}
		r.over, r.calls = max(r.over, f.over), r.calls+f.calls
		r.used, r.given = min(r.used, f.used), min(r.given, f.given)
		n[c.processes]++
	}
	for processes, r := range sums {
		r.calls /= n[processes]
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b row) int { return cmp.Compare(a.processes, b.processes) })
	return all
}

// markdown prints a table of all designs in an order.
func markdown(order []string, measured map[string]map[cell]figures, promises map[string]promise) string {
	var text bytes.Buffer
	fmt.Fprintln(&text, "| design | promise | above it at most, %: 2, 10, 100 processes | used at least, % | "+
		"without what leases keep, % | calls per decision |")
	fmt.Fprintln(&text, "|---|---|---|---|---|---|")
	for _, name := range order {
		fmt.Fprintf(&text, "| %s | %s ", name, promises[name])
		all := rows(name, measured[name])
		for _, column := range []struct {
			format string
			value  func(row) float64
		}{
			{"%.1f", func(r row) float64 { return 100 * r.over }},
			{"%.1f", func(r row) float64 { return 100 * r.used }},
			{"%.1f", func(r row) float64 { return 100 * r.given }},
			{"%.3f", func(r row) float64 { return r.calls }},
		} {
			separator := "|"
			for _, r := range all {
				fmt.Fprintf(&text, "%s "+column.format, separator, column.value(r))
				separator = ","
			}
			fmt.Fprint(&text, " ")
		}
		fmt.Fprintln(&text, "|")
	}
	return text.String()
}

const (
	width, height, left, top = 760, 420, 60, 20
	legend                   = 260
	fewest                   = 0.005 // calls for a decision; fewer are drawn there
)

// picture draws calls against what is above the promise, a point for each design and number of processes.
func picture(order []string, measured map[string]map[cell]figures) []byte {
	colors := []string{"#9aa5b1", "#d64545", "#e08e0b", "#7c5cbf", "#2f855a", "#52606d", "#1f6feb", "#1f6feb", "#1f6feb",
		"#1f6feb"}
	highest := 0.
	for _, name := range order {
		for _, r := range rows(name, measured[name]) {
			highest = max(highest, r.over)
		}
	}
	x := func(calls float64) float64 {
		return left + (math.Log10(max(calls, fewest))-math.Log10(fewest))/(math.Log10(2)-math.Log10(fewest))*(width-left-legend)
	}
	y := func(over float64) float64 { return height - 50 - over/highest*(height-50-top) }
	var svg bytes.Buffer
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n"+
		`<rect width="100%%" height="100%%" fill="#fff"/>`+"\n", width, height)
	for _, calls := range []float64{fewest, 0.01, 0.1, 1} {
		fmt.Fprintf(&svg, `<text x="%.0f" y="%d" text-anchor="middle" fill="#52606d">%g</text>`+"\n", x(calls), height-30, calls)
	}
	for over := 0.; over <= highest; over += 0.1 {
		fmt.Fprintf(&svg, `<line x1="%d" y1="%.0f" x2="%d" y2="%.0f" stroke="#e4e7eb"/>`+
			`<text x="%d" y="%.0f" text-anchor="end" fill="#52606d">%.0f %%</text>`+"\n",
			left, y(over), width-legend, y(over), left-6, y(over)+4, 100*over)
	}
	fmt.Fprintf(&svg, `<text x="%d" y="%d" fill="#52606d">calls for a decision, and requests above the promise</text>`+"\n", left, height-10)
	for i, name := range order {
		color := colors[i%len(colors)]
		for _, r := range rows(name, measured[name]) {
			fmt.Fprintf(&svg, `<circle cx="%.1f" cy="%.1f" r="%d" fill="%s" fill-opacity="0.8"><title>%s, %d processes</title></circle>`+"\n",
				x(r.calls), y(r.over), 3+int(math.Log10(float64(r.processes))*3), color, html.EscapeString(name), r.processes)
		}
		line := top + 20*i
		fmt.Fprintf(&svg, `<circle cx="%d" cy="%d" r="5" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n",
			width-legend+12, line, color, width-legend+22, line+4, html.EscapeString(name))
	}
	svg.WriteString("</svg>\n")
	return svg.Bytes()
}

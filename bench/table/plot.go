package main

import (
	"bytes"
	"fmt"
	"html"
)

// plotLibraries are the bars of each situation, from the top.
var plotLibraries = []string{"ginlimit", "ulule", "redis_rate", "throttled", "JGL"}

// plotSituations are those that the plot shows.
var plotSituations = []string{"clients=1000/callers=64", "clients=1000/callers=512",
	"hot/callers=512", "distance=1ms/callers=512"}

// plot draws decisions per second as an SVG of horizontal bars, or returns nil if one of its
// situations was not measured.
func plot(measured map[string]results) []byte {
	for _, s := range plotSituations {
		if _, ok := measured[s]; !ok {
			return nil
		}
	}
	const width, left, bar, gap, title = 760, 96, 16, 4, 30
	panel := title + len(plotLibraries)*(bar+gap) + 12
	var svg bytes.Buffer
	fmt.Fprintf(&svg,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n",
		width, panel*len(plotSituations)+8)
	fmt.Fprintf(&svg, `<rect width="100%%" height="100%%" fill="#fff"/>`+"\n")
	for i, s := range plotSituations {
		top, most := i*panel+8, 0.0
		perSecond := func(library string) float64 {
			if v := measured[s].spread(library, timeOf).Median; v > 0 {
				return 1e6 / v
			}
			return 0
		}
		for _, library := range plotLibraries {
			most = max(most, perSecond(library))
		}
		if most == 0 {
			continue
		}
		fmt.Fprintf(&svg, `<text x="8" y="%d" font-weight="bold">%s: decisions per second</text>`+"\n",
			top+16, html.EscapeString(measured[s].situation.label))
		for j, library := range plotLibraries {
			y, v, fill := top+title+j*(bar+gap), perSecond(library), "#9aa5b1"
			if library == "ginlimit" {
				fill = "#1f6feb"
			}
			length := v / most * (width - left - 90)
			fmt.Fprintf(&svg,
				`<text x="%d" y="%d" text-anchor="end">%s</text><rect x="%d" y="%d" width="%.0f" height="%d" fill="%s"/>`+
					`<text x="%.0f" y="%d">%.0f</text>`+"\n",
				left-6, y+12, library, left, y, length, bar, fill, left+length+6, y+12, v)
		}
	}
	svg.WriteString("</svg>\n")
	return svg.Bytes()
}

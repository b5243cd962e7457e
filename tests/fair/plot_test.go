package fair_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// drawn is a tenant of the plot: it tries each few milliseconds, from a second until another.
type drawn struct {
	label, color             string
	weight, pause, from, end int
}

var drawnTenants = []drawn{
	{"1,000 tries a second", "#1f6feb", 1, 1, 0, 80},
	{"150 tries a second", "#d9822b", 1, 7, 0, 60},
	{"weight 2, joins late", "#3a8f5c", 2, 5, 20, 80},
}

// TestPlot draws the shares of three tenants over time, of which one joins late and one leaves.
func TestPlot(t *testing.T) {
	var got [][]float64 // of each tenant, in each second
	synctest.Test(t, func(t *testing.T) {
		p := localPolicy(ginlimit.PerSecond(100).WithBurst(64), ginlimit.WithShares(noTenant))
		got = make([][]float64, len(drawnTenants))
		for i := range got {
			got[i] = make([]float64, 80)
		}
		for ms := range 80_000 {
			for i, d := range drawnTenants {
				if ms >= d.from*1000 && ms < d.end*1000 && ms%d.pause == 0 && allows(p.Share(d.label, d.weight), "all") {
					got[i][ms/1000]++
				}
			}
			time.Sleep(time.Millisecond)
		}
	})
	mean := func(tenant, from, end int) float64 {
		sum := 0.0
		for _, tokens := range got[tenant][from:end] {
			sum += tokens
		}
		return sum / float64(end-from)
	}
	for _, want := range []struct {
		tenant, from, end int
		perSecond         float64
	}{{0, 5, 20, 50}, {1, 5, 20, 50}, {0, 30, 60, 25}, {1, 30, 60, 25}, {2, 30, 60, 50}, {0, 65, 80, 33.3}, {2, 65, 80, 66.7}} {
		require.InEpsilon(t, want.perSecond, mean(want.tenant, want.from, want.end), 0.05, "%+v", want)
	}
	svg := plotShares(got)
	for tokens := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := tokens.Token(); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
	}
	if *write != "" {
		require.NoError(t, os.WriteFile(*write, svg, 0o644))
	}
}

// plotShares draws tokens per second as an SVG of lines.
func plotShares(got [][]float64) []byte {
	const width, height, left, top, bottom, most = 760, 320, 44, 34, 40, 110.0
	seconds := len(got[0])
	x := func(second float64) float64 { return left + second/float64(seconds)*(width-left-190) }
	y := func(tokens float64) float64 { return top + (1-min(tokens, most)/most)*(height-top-bottom) }
	var svg bytes.Buffer
	fmt.Fprintf(&svg,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&svg, `<rect width="100%%" height="100%%" fill="#fff"/>`+"\n")
	fmt.Fprintf(&svg, `<text x="8" y="18" font-weight="bold">Admitted per second: a limit of 100/s, burst 64</text>`+"\n")
	for tokens := 0.0; tokens <= 100; tokens += 25 {
		fmt.Fprintf(&svg, `<line x1="%d" y1="%.0f" x2="%.0f" y2="%.0f" stroke="#e1e4e8"/>`, left, y(tokens), x(float64(seconds)), y(tokens))
		fmt.Fprintf(&svg, `<text x="%d" y="%.0f" text-anchor="end">%.0f</text>`+"\n", left-6, y(tokens)+4, tokens)
	}
	for second := 0; second <= seconds; second += 20 {
		fmt.Fprintf(&svg, `<text x="%.0f" y="%d" text-anchor="middle">%d s</text>`+"\n", x(float64(second)), height-bottom+18, second)
	}
	for i, d := range drawnTenants {
		fmt.Fprintf(&svg, `<polyline fill="none" stroke="%s" stroke-width="1.8" points="`, d.color)
		for second := d.from; second < min(d.end, seconds); second++ {
			fmt.Fprintf(&svg, "%.1f,%.1f ", x(float64(second)+0.5), y(got[i][second]))
		}
		fmt.Fprintf(&svg, `"/><text x="%.0f" y="%d" fill="%s">%s</text>`+"\n", x(float64(seconds))+10, top+20+18*i, d.color, d.label)
	}
	svg.WriteString("</svg>\n")
	return svg.Bytes()
}

package fair_test

import (
	"bytes"
	"container/heap"
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

var write = flag.String("write", "", "of TestPlot: the SVG to write; TestTable then measures for longer")

// rule decides for the tenants of a limit of 100 tokens a second, cost 1 and weight 1.
type rule struct {
	name string
	// start returns a function that reports whether a tenant's try is admitted now.
	start func(l ginlimit.Limit, tenants int) func(tenant int) bool
}

// allRules are those of the table. The last one is this library's, which alone is measured where none is written.
var allRules = []rule{
	{"first come, first served", func(l ginlimit.Limit, _ int) func(int) bool {
		p := localPolicy(l)
		return func(int) bool { return allows(p, "all") }
	}},
	{"static shares", func(l ginlimit.Limit, tenants int) func(int) bool {
		p := localPolicy(ginlimit.Limit{Rate: l.Rate, Period: l.Period * time.Duration(tenants), Burst: l.Burst / tenants})
		return func(tenant int) bool { return allows(p, fmt.Sprint(tenant)) }
	}},
	{"ginlimit", func(l ginlimit.Limit, tenants int) func(int) bool {
		p := localPolicy(l, ginlimit.WithShares(noTenant))
		shares := make([]*ginlimit.Policy, tenants)
		for i := range shares {
			shares[i] = p.Share(fmt.Sprint(i), 1)
		}
		return func(tenant int) bool { return allows(shares[tenant], "all") }
	}},
}

func localPolicy(l ginlimit.Limit, opts ...ginlimit.PolicyOption) *ginlimit.Policy {
	limiter, err := ginlimit.NewLocal(ginlimit.WithLogger(slog.New(slog.DiscardHandler))) // a small burst is meant
	if err != nil {
		panic(err)
	}
	p, err := limiter.Policy("fair", append(opts, l)...)
	if err != nil {
		panic(err)
	}
	return p
}

func allows(p *ginlimit.Policy, client string) bool {
	r, err := p.Allow(context.Background(), client)
	if err != nil {
		panic(err)
	}
	return r.Allowed
}

// besideGreedy has one tenant ask at random for half its fair share, beside greedy ones that try 200
// to 1,000 times a second. It returns its tries, how many were denied, and what all got.
func besideGreedy(r rule, greedy, perBusy int, d time.Duration) (tries, denied int, got []int) {
	limit := ginlimit.Limit{Rate: 100, Period: time.Second, Burst: perBusy * (greedy + 1)}
	got = make([]int, greedy+1)
	rng := rand.New(rand.NewPCG(uint64(greedy), uint64(perBusy)))
	admits, start := r.start(limit, greedy+1), time.Now()
	const warm = 20_000
	mean := 1000 / (50 / float64(greedy+1))
	var next agenda
	for i := range got {
		heap.Push(&next, try{at: int64(rng.IntN(10)), order: rng.Uint64(), tenant: i})
	}
	arrives := 0.0
	for next[0].at < warm+d.Milliseconds() {
		t := heap.Pop(&next).(try)
		time.Sleep(time.Until(start.Add(time.Duration(t.at) * time.Millisecond)))
		ok, light := admits(t.tenant), t.tenant == greedy
		if ok && t.at >= warm {
			got[t.tenant]++
		}
		if light && t.at >= warm {
			if tries++; !ok {
				denied++
			}
		}
		if light {
			arrives += rng.ExpFloat64() * mean
			t.at = int64(arrives)
		} else {
			t.at += int64(1 + t.tenant%5)
		}
		t.order = rng.Uint64()
		heap.Push(&next, t)
	}
	return tries, denied, got
}

// TestTable prints the table of docs/fair.md: how often a light tenant is denied beside greedy ones, by
// the burst for each busy tenant, and by the rule.
func TestTable(t *testing.T) {
	d, greedy, perBusy, rules := 10*time.Second, []int{3}, []int{16}, allRules[len(allRules)-1:]
	if *write != "" {
		d, greedy, perBusy, rules = 5*time.Minute, []int{1, 3, 7, 15}, []int{2, 4, 8, 16, 32}, allRules
	}
	var table strings.Builder
	table.WriteString("\n| rule | greedy tenants |")
	for _, b := range perBusy {
		fmt.Fprintf(&table, " %d |", b)
	}
	table.WriteString("\n|---|---|" + strings.Repeat("---|", len(perBusy)) + "\n")
	for _, r := range rules {
		for _, n := range greedy {
			fmt.Fprintf(&table, "| %s | %d |", r.name, n)
			for _, b := range perBusy {
				synctest.Test(t, func(t *testing.T) {
					tries, denied, got := besideGreedy(r, n, b, d)
					percent := 100 * float64(denied) / float64(tries)
					fmt.Fprintf(&table, " %.2g %% |", percent)
					if r.name == "ginlimit" && b >= 8 && percent > 2 {
						t.Errorf("%d of %d tries are denied beside %d greedy ones", denied, tries, n)
					}
					sum := 0
					for _, tokens := range got {
						sum += tokens
					}
					if used := float64(sum) / 100 / d.Seconds(); r.name == "ginlimit" && used < 0.99 {
						t.Errorf("%.1f %% of the rate is used", 100*used)
					}
				})
			}
			table.WriteString("\n")
		}
	}
	table.WriteString("\n| rule | alone, burst 64 | 1,000 and 150 tries a second, burst 64 " +
		"| 20 of 200 to 1,000 tries a second, burst 20 |\n" +
		"|---|---|---|---|\n")
	for _, r := range rules {
		alone, two := zeal(t, r, 64, 1, idle), zeal(t, r, 64, 1, 7)
		many := zeal(t, r, 20, slices.Repeat([]int{1, 2, 3, 4, 5}, 4)...)
		least, most := slices.Min(many), slices.Max(many)
		fmt.Fprintf(&table, "| %s | %.1f | %.1f and %.1f | %.1f to %.1f |\n", r.name, alone[0], two[0], two[1], least, most)
		if r.name == "ginlimit" && (alone[0] < 99 || two[1] < 49 || least < 4.8 || most > 5.2) {
			t.Errorf("the shares are %v, %v and %v", alone, two, many)
		}
	}
	t.Log(table.String())
}

// idle is a pause that lasts.
const idle = 1 << 30

// zeal returns what tenants get a second that try again after some milliseconds each.
func zeal(t *testing.T, r rule, burst int, pauses ...int) (perSecond []float64) {
	synctest.Test(t, func(*testing.T) {
		admits := r.start(ginlimit.Limit{Rate: 100, Period: time.Second, Burst: burst}, len(pauses))
		perSecond = make([]float64, len(pauses))
		rng := rand.New(rand.NewPCG(1, 1))
		const warm, end = 5_000, 25_000
		for ms := 1; ms < end; ms++ {
			for _, i := range rng.Perm(len(pauses)) {
				if ms%pauses[i] == 0 && admits(i) && ms >= warm {
					perSecond[i] += 1000. / (end - warm)
				}
			}
			time.Sleep(time.Millisecond)
		}
	})
	return perSecond
}

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
	}{{0, 5, 20, 50}, {1, 5, 20, 50}, {0, 30, 60, 25}, {1, 30, 60, 25}, {2, 30, 60, 50}, {0, 65, 80, 33.3},
		{2, 65, 80, 66.7}} {
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
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width,
		height)
	fmt.Fprintf(&svg, `<rect width="100%%" height="100%%" fill="#fff"/>`+"\n")
	fmt.Fprintf(&svg, `<text x="8" y="18" font-weight="bold">Admitted per second: a limit of 100/s, burst 64</text>`+"\n")
	for tokens := 0.0; tokens <= 100; tokens += 25 {
		fmt.Fprintf(&svg, `<line x1="%d" y1="%.0f" x2="%.0f" y2="%.0f" stroke="#e1e4e8"/>`, left, y(tokens),
			x(float64(seconds)), y(tokens))
		fmt.Fprintf(&svg, `<text x="%d" y="%.0f" text-anchor="end">%.0f</text>`+"\n", left-6, y(tokens)+4, tokens)
	}
	for second := 0; second <= seconds; second += 20 {
		fmt.Fprintf(&svg, `<text x="%.0f" y="%d" text-anchor="middle">%d s</text>`+"\n", x(float64(second)),
			height-bottom+18, second)
	}
	for i, d := range drawnTenants {
		fmt.Fprintf(&svg, `<polyline fill="none" stroke="%s" stroke-width="1.8" points="`, d.color)
		for second := d.from; second < min(d.end, seconds); second++ {
			fmt.Fprintf(&svg, "%.1f,%.1f ", x(float64(second)+0.5), y(got[i][second]))
		}
		fmt.Fprintf(&svg, `"/><text x="%.0f" y="%d" fill="%s">%s</text>`+"\n", x(float64(seconds))+10, top+20+18*i, d.color,
			d.label)
	}
	svg.WriteString("</svg>\n")
	return svg.Bytes()
}

package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

func TestMain(m *testing.M) {
	beProcessIfAsked()
	os.Exit(m.Run())
}

// TestARowIsComplete measures one situation for two short rounds.
func TestARowIsComplete(t *testing.T) {
	redistest.Start(t) // or skip
	o := options{rounds: 2, warmUp: 300 * time.Millisecond, length: 400 * time.Millisecond, idle: 10 * time.Millisecond,
		only: regexp.MustCompile(`^rate=500/load=4/processes=2$`)}
	var out strings.Builder
	if err := compare(t.Context(), o, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) < 3 {
		t.Fatal(out.String())
	}
	cells := strings.Split(strings.Trim(lines[2], "| "), " | ")
	if len(cells) != len(columns) {
		t.Fatalf("%d cells: %s", len(cells), lines[2])
	}
	for i, cell := range cells {
		if strings.ContainsAny(cell, "0123456789") && !strings.Contains(cell, "NaN") {
			continue
		}
		t.Errorf("no figure for %s: %s", columns[i], lines[2])
	}
	var with, without float64
	calls := slices.Index(columns, "calls per decision")
	figures := regexp.MustCompile(`^\*\*([\d.]+) .* / ([\d.]+)$`).FindStringSubmatch(cells[calls])
	if figures == nil {
		t.Fatalf("calls: %s", cells[calls])
	}
	if _, err := fmt.Sscan(figures[1]+" "+figures[2], &with, &without); err != nil {
		t.Fatal(err)
	}
	busy := strings.Contains(out.String(), "Decided without Redis") // the machine, so the calls say nothing
	if !busy && (with <= 0 || with > without/4) {
		t.Errorf("calls: %s, want a quarter at most", cells[calls])
	}
}

func TestSumOfReports(t *testing.T) {
	got := sum([]report{
		{Asked: 200, Admitted: 150, CPU: 0.001, Latencies: slices.Repeat([]time.Duration{time.Microsecond}, 200)},
		{Asked: 100, Admitted: 50, CPU: 0.002, Degraded: 30,
			Latencies: append(slices.Repeat([]time.Duration{2 * time.Microsecond}, 96),
				slices.Repeat([]time.Duration{time.Millisecond}, 4)...)},
	}, 2*time.Second)
	want := round{asked: 150, admitted: 100, processCPU: 10, p50: 1, p99: 1000, fairness: 1.5, degraded: 0.1}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestArrivals(t *testing.T) {
	stream := func(seed uint64) []time.Duration {
		return arrivals(rand.New(rand.NewPCG(seed, 0)), 1000, 10*time.Second)
	}
	all := stream(1)
	if n := len(all); n < 9500 || n > 10500 {
		t.Errorf("%d arrivals, want about 10,000", n)
	}
	if !slices.IsSorted(all) || all[0] < 0 || all[len(all)-1] >= 10*time.Second {
		t.Errorf("from %s to %s", all[0], all[len(all)-1])
	}
	if !slices.Equal(all, stream(1)) || slices.Equal(all, stream(2)) {
		t.Error("a seed is one stream")
	}
	early := 0 // between two arrivals is less than half the mean with a probability of 1 − e^(−1/2)
	for i := range all[1:] {
		if all[i+1]-all[i] < time.Millisecond/2 {
			early++
		}
	}
	if share := float64(early) / float64(len(all)); share < 0.37 || share > 0.42 {
		t.Errorf("%.3f of the gaps are short, want 0.393", share)
	}
}

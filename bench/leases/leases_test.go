package main

import (
	"fmt"
	"io"
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

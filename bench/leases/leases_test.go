package main

import (
	"io"
	"os"
	"regexp"
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
}

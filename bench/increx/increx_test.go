package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

// TestRowsAreComplete measures every contestant for one short round.
func TestRowsAreComplete(t *testing.T) {
	redistest.Start(t) // or skip
	var out strings.Builder
	if err := compare(t.Context(), options{rounds: 1, length: 10 * time.Millisecond}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if rows := strings.Count(out.String(), "\n"); rows < 2+5 || strings.Contains(out.String(), "|  |") {
		t.Errorf("a figure is missing in\n%s", &out)
	}
}

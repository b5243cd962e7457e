package main

import (
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

// TestRowsAreComplete measures every situation for one short round, with few tenants.
func TestRowsAreComplete(t *testing.T) {
	redistest.Start(t) // or skip
	var out strings.Builder
	o := options{rounds: 1, length: 10 * time.Millisecond, only: regexp.MustCompile(""), most: 100}
	if err := compare(t.Context(), o, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	rows := strings.Count(out.String(), "\n| 1 | ") + strings.Count(out.String(), "\n| 64 | ")
	if rows != len(situations()) {
		t.Errorf("%d rows, want %d:\n%s", rows, len(situations()), &out)
	}
	const memory = "each of 100 tenants that hold something: "
	if strings.Contains(out.String(), "|  |") || !strings.Contains(out.String(), memory) {
		t.Errorf("a figure is missing in\n%s", &out)
	}
}

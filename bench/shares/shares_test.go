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
	rows := 0
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "| 1 | ") && !strings.HasPrefix(line, "| 64 | ") {
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(cells) != len(columns) {
			t.Errorf("%d cells in %q", len(cells), line)
		}
		for i, cell := range cells {
			if strings.TrimSpace(cell) == "" {
				t.Errorf("%s is empty in %q", columns[i], line)
			}
		}
	}
	if want := len(situations()); rows != want {
		t.Errorf("%d rows, want %d", rows, want)
	}
	if !strings.Contains(out.String(), "each of 100 tenants that hold something: ") {
		t.Errorf("the memory is missing in\n%s", &out)
	}
}

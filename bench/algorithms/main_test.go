package main

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"github.com/ginlimit/ginlimit"
)

func TestPictureIsUpToDate(t *testing.T) {
	svg, err := picture()
	if err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile("../algorithms.svg")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(svg, kept) {
		t.Error("draw it again: cd bench && go run ./algorithms")
	}
}

// TestWhatThePictureShows: only the fixed window admits its limit twice within seconds.
func TestWhatThePictureShows(t *testing.T) {
	for a, want := range map[ginlimit.Algorithm][2]int{
		ginlimit.TokenBucket:   {116, 180}, // with what it has regained by then
		ginlimit.FixedWindow:   {199, 199},
		ginlimit.SlidingWindow: {100, 100},
	} {
		counts, err := admitted(a)
		if err != nil {
			t.Fatal(err)
		}
		if most := [2]int{slices.Max(last(10, counts)), slices.Max(last(60, counts))}; most != want {
			t.Errorf("%s: at most %d admitted in ten seconds and in a minute, want %d", a, most, want)
		}
	}
}

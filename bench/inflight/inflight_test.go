package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

func TestMain(m *testing.M) {
	holdIfAsked()
	os.Exit(m.Run())
}

// TestBehaviourOfGinlimit does without the peers' files. It waits less than the program for a killed process.
func TestBehaviourOfGinlimit(t *testing.T) {
	redistest.Start(t) // or skip
	var out, progress strings.Builder
	o := options{only: regexp.MustCompile("behaviour"), patience: 200 * time.Millisecond, others: 100}
	if err := compare(t.Context(), o, &out, &progress); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"held after 0.2 s |", "0 more are admitted, with a limit of 2 |", "0 of 100 are denied |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
	for _, want := range []string{"Wei-Shaw/sub2api", "BerriAI/litellm"} {
		if !strings.Contains(progress.String(), want) {
			t.Errorf("the program does not say how to get %s", want)
		}
	}
}

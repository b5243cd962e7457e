package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

func TestMain(m *testing.M) {
	holdIfAsked()
	os.Exit(m.Run())
}

// The stand-ins are called as the peers' scripts are, and admit everything.
const (
	standInSub2api = "package repository\n\nvar acquireScript = redis.NewScript(`\n\treturn {1, tonumber(ARGV[2])}\n`)\n"
	standInLiteLLM = `BATCH_RATE_LIMITER_SCRIPT = """
return {ARGV[1], 1, ARGV[1], 1}
"""
TOKEN_INCREMENT_SCRIPT = """
return redis.call('INCRBY', KEYS[1], ARGV[1])
"""
`
)

// standIns writes the stand-ins to files.
func standIns(t *testing.T) files {
	f := files{filepath.Join(t.TempDir(), "cache.go"), filepath.Join(t.TempDir(), "limiter.py")}
	for path, text := range map[string]string{f.Sub2api: standInSub2api, f.LiteLLM: standInLiteLLM} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// rowsOf returns the cells of the rows that begin with the text.
func rowsOf(text, begin string) (rows [][]string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "| "+begin) {
			rows = append(rows, strings.Split(strings.Trim(line, "| \n"), " | "))
		}
	}
	return rows
}

// TestRowsAreComplete measures ginlimit and the stand-ins for two short rounds.
func TestRowsAreComplete(t *testing.T) {
	redistest.Start(t) // or skip
	var out strings.Builder
	o := options{files: standIns(t), rounds: 2, length: 10 * time.Millisecond,
		only: regexp.MustCompile(`^levels=(2/slots=1000|3/slots=4/rate)/callers=64$`)}
	if err := compare(t.Context(), o, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	var systems []string
	for _, row := range rowsOf(out.String(), "2 levels, ") {
		systems = append(systems, row[1])
	}
	if want := []string{"ginlimit", "sub2api", "sub2api with its index", "LiteLLM"}; !slices.Equal(systems, want) {
		t.Errorf("the systems are %q, want %q", systems, want)
	}
	if rows := rowsOf(out.String(), "3 levels and a rate, "); len(rows) != 2 {
		t.Errorf("%d systems have a rate, want 2", len(rows))
	}
	for _, row := range append(rowsOf(out.String(), "2 levels"), rowsOf(out.String(), "3 levels")...) {
		if len(row) != len(columns) {
			t.Errorf("%d cells in %q", len(row), row)
		}
		for i, cell := range row {
			if ratio := columns[i] == "÷ ginlimit's"; (strings.TrimSpace(cell) == "") != (ratio && row[1] == "ginlimit") {
				t.Errorf("%s is %q in %q", columns[i], cell, row)
			}
		}
	}
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

// Command evidence writes docs/evidence.md: what each guarantee says, what would break it, what has tried to, and what
// that has seen.
//
//	go run ./tests/evidence              # writes the page anew
//	go run ./tests/evidence -check 3     # runs the tests of guarantee 3; of 0, all
//	go run ./tests/evidence -record fuzz # makes a long run, keeps its figures in runs.json, and writes the page
//
// Sentences and names of tests stand in guarantees.go. Where a test lies and how many rows a table has is read from the
// code, and what a long run has seen from runs.json: no figure is typed. A test wants the page to be what this writes.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

const page = "docs/evidence.md"

func main() {
	check := flag.Int("check", -1, "run the tests of this guarantee, or of all if it is 0")
	record := flag.String("record", "", "make the runs whose whole names match this regular expression")
	flag.Parse()
	if err := do(*check, *record); err != nil {
		fmt.Fprintln(os.Stderr, "evidence:", err)
		os.Exit(1)
	}
}

func do(check int, record string) error {
	root, err := rootOf(".")
	if err != nil {
		return err
	}
	t, err := readTree(root)
	if err != nil {
		return err
	}
	if check >= 0 {
		return runTests(t, check)
	}
	if record != "" {
		if err := makeRuns(t, record); err != nil {
			return err
		}
	}
	text, err := write(t)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, page), []byte(text), 0o644)
}

// makeRuns makes the runs that match, and keeps the figures of each as soon as it ends.
func makeRuns(t *tree, names string) error {
	match, err := regexp.Compile("^(?:" + names + ")$")
	if err != nil {
		return err
	}
	made := 0
	for _, r := range runs {
		if !match.MatchString(r.name) {
			continue
		}
		made++
		seen, err := r.run(t.root, time.Now())
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		t.seen[r.name] = seen
		if err := t.keep(); err != nil {
			return err
		}
	}
	if made == 0 {
		return fmt.Errorf("no run is named %s", names)
	}
	return nil
}

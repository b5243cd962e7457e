// Command mutate breaks the code in one place at a time and runs the fast tests against each such mutant.
//
// It prints the mutants that no test saw, and the share that was seen. The exit code is 1 if fewer
// than 75 % were seen. Most of the others change nothing that a caller could see, such as a bound
// that is compared with an equal number.
//
// No file of the tree is changed: a mutant of Go is compiled with an overlay, and a mutant of a
// script is written into a copy of the compiled tests. The tests need no server.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// minSeen is the share of mutants that tests must see, in percent.
const minSeen = 75

// mutant is one change of one file. Lines are trimmed, as they are shown and listed.
type mutant struct {
	file       string // from the root of the repository, with slashes
	line       int
	start, end int    // what is replaced
	with       string // what replaces it
	before     string // the first line that changes
	after      string // the line that replaces it, or removed
}

// removed stands for the text of what is removed over several lines.
const removed = "(removed)"

// newMutant returns the mutant of a source in which the text from start to end is replaced.
func newMutant(file, source string, start, end int, with string) mutant {
	from := strings.LastIndexByte(source[:start], '\n') + 1
	to := len(source)
	if i := strings.IndexByte(source[end:], '\n'); i >= 0 {
		to = end + i
	}
	after := strings.TrimSpace(source[from:start] + with + source[end:to])
	first, _, more := strings.Cut(source[from:to], "\n")
	if more || after == "" {
		after = removed
	}
	return mutant{file: file, line: 1 + strings.Count(source[:start], "\n"), start: start, end: end, with: with,
		before: strings.TrimSpace(first), after: after}
}

// apply returns the source with the change.
func (m mutant) apply(source string) string { return source[:m.start] + m.with + source[m.end:] }

// outcome is what became of a mutant.
type outcome int

const (
	survived outcome = iota
	failed           // a test failed
	late             // the tests took too long
	invalid          // it does not compile, and does not count
)

func main() {
	root := flag.String("root", ".", "the root of the repository")
	only := flag.String("only", "", "a regular expression: only the mutants whose file:line it matches")
	jobs := flag.Int("j", 2, "how many mutants to test at the same time")
	verbose := flag.Bool("v", false, "print every mutant with its outcome")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	targets, err := targetsIn(*root)
	ok := false
	if err == nil {
		ok, err = run(ctx, targets, *root, *only, *jobs, *verbose)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// run tests the mutants of every target and reports whether all is as it should be.
func run(ctx context.Context, targets []target, root, only string, jobs int, verbose bool) (bool, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return false, err
	}
	match, err := regexp.Compile(only)
	if err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)

	begin := time.Now()
	lab := &lab{root: root, dir: dir, binaries: map[string]*binary{}, took: map[string]cost{}}
	var all tally
	for _, target := range targets {
		source, err := os.ReadFile(filepath.Join(root, target.file))
		if err != nil {
			return false, err
		}
		mutants, err := mutantsOf(target.file, string(source))
		if err != nil {
			return false, err
		}
		mutants = slices.DeleteFunc(mutants, func(m mutant) bool {
			return !match.MatchString(fmt.Sprintf("%s:%d", m.file, m.line))
		})
		if len(mutants) == 0 {
			continue
		}
		if err := lab.prepare(ctx, target); err != nil {
			return false, err
		}
		var of tally
		err = lab.test(ctx, target, string(source), mutants, jobs, func(m mutant, o outcome) {
			of.count(o)
			if verbose || o == survived {
				fmt.Printf("%s:%d %s\n\t- %s\n\t+ %s\n", m.file, m.line, o, m.before, m.after)
			}
		})
		if err != nil {
			return false, err
		}
		fmt.Printf("%-32s %s, after %s\n", target.file, of, time.Since(begin).Round(time.Second))
		all.add(of)
	}
	fmt.Printf("%-32s %s\n", "all", all)
	return all.share() >= minSeen, nil
}

func mutantsOf(file, source string) ([]mutant, error) {
	if filepath.Ext(file) == ".lua" {
		return luaMutants(file, source), nil
	}
	return goMutants(file, source)
}

// tally counts outcomes.
type tally struct{ outcomes [invalid + 1]int }

func (t *tally) count(o outcome) { t.outcomes[o]++ }

func (t *tally) add(of tally) {
	for o, n := range of.outcomes {
		t.outcomes[o] += n
	}
}

// share returns how many of the mutants that compile were seen, in percent.
func (t *tally) share() float64 {
	seen := t.outcomes[failed] + t.outcomes[late]
	if seen+t.outcomes[survived] == 0 {
		return 100
	}
	return 100 * float64(seen) / float64(seen+t.outcomes[survived])
}

func (t tally) String() string {
	seen := t.outcomes[failed] + t.outcomes[late]
	return fmt.Sprintf("%d of %d mutants seen, %.1f %% (%d too late; %d more do not compile)",
		seen, seen+t.outcomes[survived], t.share(), t.outcomes[late], t.outcomes[invalid])
}

func (o outcome) String() string {
	return [...]string{"survived", "seen", "seen, too late", "does not compile"}[o]
}

// test tests the mutants of a target, and tells of each outcome, of one at a time.
func (l *lab) test(ctx context.Context, t target, source string, mutants []mutant, jobs int,
	tell func(mutant, outcome)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		mu      sync.Mutex
		next    int
		workers sync.WaitGroup
	)
	for range jobs {
		workers.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(mutants) || ctx.Err() != nil {
					return
				}
				o, err := l.try(ctx, t, source, mutants[i])
				if err != nil {
					cancel(err)
					return
				}
				mu.Lock()
				tell(mutants[i], o)
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

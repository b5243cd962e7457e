package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// run is a long one, of which figures are recorded.
type run struct {
	name    string
	folder  string // from the root
	command string // for a shell
	figures []figure
}

// figure is a number in what a run prints: the sum of what a group matches, or, without a group, how often it matches.
type figure struct {
	unit    string
	pattern string
}

// seen is what a run has seen.
type seen struct {
	Command string `json:"command"`
	Date    string `json:"date"`
	Figures []int  `json:"figures"`
}

var runs = []run{
	{"simulation", ".",
		"go test ./tests/simulation -run '^TestSimulation$' -v -count=1 -timeout 0 -seeds 300 -seed 500001",
		[]figure{{"seeds", `_test\.go:\d+: (\d+) seeds`}, {"calls", `_test\.go:\d+: \d+ seeds, (\d+) calls`}}},
	{"slot-simulation", ".",
		"go test ./tests/simulation -run '^TestSlotSimulation$' -v -count=1 -timeout 0 -seeds 60 -seed 500001",
		[]figure{{"seeds", `_test\.go:\d+: (\d+) seeds`}, {"decisions", `(?:allowed|denied by [^:]*|error):(\d+)`}}},
	{"dispatcher", ".",
		"go test ./internal/dispatch -run '^TestWhateverTheServerDoes$' -v -count=1 -timeout 0 -seeds 3000 -seed 500001",
		[]figure{{"seeds", `--- PASS: TestWhateverTheServerDoes/seed`}}},
	{"tenants", ".",
		"go test ./tests/fair -run '^Test(Process)?Simulation$' -v -count=1 -timeout 0 -seeds 20 -seed 500001",
		[]figure{{"seeds", `--- PASS: Test(?:Process)?Simulation/seeds/`}}},
	{"lease-states", ".",
		"go test ./tests/model -run '^TestLeasesAdmitNoMore$' -v -count=1 -timeout 0 -full",
		[]figure{{"states", `: (\d+) states, `}, {"steps", `states, (\d+) steps`}}},
	{"slot-states", ".",
		"go test ./tests/model -run '^TestSlotsAreNeverTooMany$' -v -count=1 -timeout 0",
		[]figure{{"states", `: (\d+) states, `}, {"steps", `states, (\d+) steps`}}},
	{"histories", "tests/integration",
		"go test -run '^TestConcurrentCallsAreLinearizable$' -v -count=1 -timeout 0 .",
		[]figure{{"histories", ` calls, \d+ of them without an answer`}, {"calls", `(\d+) calls, \d+ of them`},
			{"without an answer", `calls, (\d+) of them without`}}},
	{"cluster-histories", "tests/integration",
		"go test -run '^TestSeveralPoliciesOnAClusterAreLinearizable$' -v -count=1 -timeout 0 .",
		[]figure{{"histories", ` requests, \d+ uncertain`}, {"requests", `(\d+) requests, \d+ uncertain`},
			{"uncertain", `requests, (\d+) uncertain`}}},
	{"faults", "tests/integration",
		"go test -run '^TestFaults$' -v -count=1 -timeout 0 .",
		[]figure{{"faults", `--- PASS: TestFaults/`}}},
	{"fuzz", ".", "make fuzz FUZZTIME=300000x FUZZBUILD=",
		[]figure{{"targets", `execs: \d+ [^\n]*\nPASS`}, {"inputs", `execs: (\d+) [^\n]*\nPASS`}}},
}

// run makes the run, and returns the figures of what it prints.
func (r run) run(root string, now time.Time) (seen, error) {
	fmt.Printf("%s: %s\n", r.name, r.command)
	var printed bytes.Buffer
	cmd := exec.Command("bash", "-c", r.command)
	cmd.Dir = filepath.Join(root, r.folder)
	cmd.Stdout, cmd.Stderr = &printed, &printed
	if err := cmd.Run(); err != nil {
		_, _ = os.Stderr.Write(printed.Bytes())
		return seen{}, err
	}
	figures, err := r.figuresIn(printed.String())
	if err != nil {
		return seen{}, err
	}
	s := seen{r.command, now.UTC().Format(time.DateOnly), figures}
	fmt.Println(r.tell(s))
	return s, nil
}

// figuresIn reads the figures; a run that has seen nothing is an error.
func (r run) figuresIn(printed string) (all []int, err error) {
	for _, f := range r.figures {
		matches := regexp.MustCompile(f.pattern).FindAllStringSubmatch(printed, -1)
		if len(matches) == 0 {
			return nil, fmt.Errorf("it printed no %s", f.unit)
		}
		sum := len(matches)
		if len(matches[0]) > 1 {
			sum = 0
			for _, m := range matches {
				n, err := strconv.Atoi(m[1])
				if err != nil {
					return nil, err
				}
				sum += n
			}
		}
		all = append(all, sum)
	}
	return all, nil
}

// tell says what was seen, such as "1,000 seeds, 160,000 calls".
func (r run) tell(s seen) string {
	var parts []string
	for i, f := range r.figures {
		parts = append(parts, grouped(s.Figures[i])+" "+f.unit)
	}
	return strings.Join(parts, ", ")
}

// grouped writes a number with a comma before every three digits.
func grouped(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

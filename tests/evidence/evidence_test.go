package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

func repository(t *testing.T) *tree {
	t.Helper()
	return testkit.Must(readTree(testkit.Must(rootOf("."))))
}

// TestThePageIsThatOfTheCode: each test that it names is there, each run is recorded, and so is each number.
func TestThePageIsThatOfTheCode(t *testing.T) {
	t.Parallel()
	all := repository(t)
	want, err := write(all)
	require.NoError(t, err)
	got := testkit.Must(os.ReadFile(filepath.Join(all.root, page)))
	require.Equal(t, want, string(got), "go run ./tests/evidence writes it anew")
}

// TestEveryGuaranteeHasEvidence: tests, a number, and each run is that of some guarantee.
func TestEveryGuaranteeHasEvidence(t *testing.T) {
	t.Parallel()
	require.Len(t, guarantees, 10)
	words, used := len(strings.Fields(head)), map[string]bool{}
	for i, g := range guarantees {
		tests, numbers := 0, 0
		words += len(strings.Fields(g.title + " " + g.says + " " + g.breaks))
		for _, a := range g.tried {
			words += len(strings.Fields(a.what))
			tests += len(a.tests)
			for _, name := range a.runs {
				used[name] = true
				numbers++
			}
			if a.table != nil {
				numbers++
			}
		}
		require.Greater(t, tests, 1, "guarantee %d", i+1)
		require.Positive(t, numbers, "guarantee %d", i+1)
	}
	for _, r := range runs {
		require.True(t, used[r.name], r.name)
	}
	require.LessOrEqual(t, words, 700)
}

// TestMissingEvidenceIsFound: a test that does not exist, a run that is not recorded or was recorded by another
// command, and a table without rows.
func TestMissingEvidenceIsFound(t *testing.T) {
	t.Parallel()
	all := repository(t)
	for want, a := range map[string]attempt{
		"there is no test tests/web TestNothing": {tests: []string{"tests/web TestAllOrNone", "tests/web TestNothing"}},
		"there is no run nothing":                {runs: []string{"nothing"}},
		"has no table nothing":                   {table: &table{"rows", "tests/integration/faults_test.go", "nothing"}},
	} {
		_, err := all.item(a, map[string]bool{})
		require.ErrorContains(t, err, want)
	}
	for _, r := range runs {
		was := all.seen[r.name]
		other := was
		other.Command += " -other"
		all.seen[r.name] = other
		_, err := write(all)
		require.ErrorContains(t, err, "the run "+r.name+" is not recorded")
		delete(all.seen, r.name)
		_, err = write(all)
		require.ErrorContains(t, err, "the run "+r.name+" is not recorded")
		all.seen[r.name] = was
	}
}

// TestFiguresOfARunAreToldOnce, then its name alone.
func TestFiguresOfARunAreToldOnce(t *testing.T) {
	t.Parallel()
	all, told := repository(t), map[string]bool{}
	a := attempt{what: "faults", runs: []string{"faults"}}
	require.Regexp(t, "^- faults: \\d+ faults \\(`faults`\\)\n$", testkit.Must(all.item(a, told)))
	require.Equal(t, "- faults: `faults`\n", testkit.Must(all.item(a, told)))
}

// TestDatesOfRuns names the runs only if they are of several days.
func TestDatesOfRuns(t *testing.T) {
	t.Parallel()
	made := map[string][]string{"2026-02-01": {"`a`", "`b`"}}
	require.Equal(t, "All are of 2026-02-01.\n", dates(made))
	made["2026-01-31"] = []string{"`c`"}
	require.Equal(t, "They are of:\n\n- 2026-01-31: `c`\n- 2026-02-01: `a`, `b`\n", dates(made))
}

// TestFiguresAreThoseThatARunPrints, and a run without some has failed.
func TestFiguresAreThoseThatARunPrints(t *testing.T) {
	t.Parallel()
	of := func(name string) run {
		return runs[slices.IndexFunc(runs, func(r run) bool { return r.name == name })]
	}
	for name, row := range map[string]struct {
		printed, want string
	}{
		"simulation": {"5 seeds, 7 calls, in 1s: map[]\n" +
			"    simulation_test.go:134: 1000 seeds, 123456 calls, in 9s: map[a:3]\n", "1,000 seeds, 123,456 calls"},
		"slot-simulation": {"    inflight_test.go:359: 6 seeds: " +
			"map[allowed:400 causes looked for:7 denied by rate, redis:50 error:3]\n", "6 seeds, 453 decisions"},
		"dispatcher": {"    --- PASS: TestWhateverTheServerDoes/seed_1 (0.00s)\n" +
			"    --- PASS: TestWhateverTheServerDoes/seed_2 (0.00s)\n", "2 seeds"},
		"lease-states": {"{Processes:3}: 100 states, 250 steps, 9 deep, in 1s\n" +
			"{Processes:2}: 20 states, 30 steps, 9 deep, in 1s\n", "120 states, 280 steps"},
		"histories": {"A/b: 900 calls, 12 of them without an answer\nA/c: 800 calls, 0 of them without an answer\n",
			"2 histories, 1,700 calls, 12 without an answer"},
		"fuzz": {"fuzz: elapsed: 3s, execs: 10 (3/sec), new\nfuzz: elapsed: 5s, execs: 20 (0/sec), new\nPASS\n" +
			"fuzz: elapsed: 5s, execs: 5 (0/sec), new\nPASS\n", "2 targets, 25 inputs"},
	} {
		figures, err := of(name).figuresIn(row.printed)
		require.NoError(t, err, name)
		require.Equal(t, row.want, of(name).tell(seen{Figures: figures}))
		_, err = of(name).figuresIn("ok")
		require.ErrorContains(t, err, "it printed no")
	}
}

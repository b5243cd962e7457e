package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

// TestJudge sends the program's requests, in simulated time, to limiters whose faults are known.
func TestJudge(t *testing.T) {
	const before, during, after = 2 * time.Second, 3 * time.Second, 2 * time.Second
	const greedy, modest, failed = 1191, 10 * 21, 10 * 9 // requests in all, and of modest clients in the fault
	const allowed = 10*requestsPerHour + modest
	exact := func(sent int, _ bool) answer {
		if sent > requestsPerHour {
			return answer{status: http.StatusTooManyRequests}
		}
		return answer{status: http.StatusOK}
	}
	admits, denies := answer{status: http.StatusOK}, answer{status: http.StatusTooManyRequests}
	for name, row := range map[string]struct {
		limiter           func(sent int, fault bool) answer
		admitted, refused int
		statuses          string
		longest           time.Duration
	}{
		"exact":      {exact, allowed, 0, "", 0},
		"admits all": {func(int, bool) answer { return admits }, greedy + modest, 0, "", 0},
		"denies all": {func(int, bool) answer { return denies }, 0, greedy + modest, "429", 0},
		"denies the first five, late, before the fault": {func(sent int, _ bool) answer {
			if sent <= 5 {
				time.Sleep(time.Second)
				return denies
			}
			return exact(sent-5, false)
		}, allowed - 10*5, 20 * 5, "429", 0},
		"fails with an error's text": {func(sent int, fault bool) answer {
			if fault {
				return answer{status: http.StatusInternalServerError, leaks: true}
			}
			return exact(sent, fault)
		}, allowed - failed, failed, `500\*`, 0},
		"does not answer": {func(sent int, fault bool) answer {
			if fault {
				time.Sleep(patience)
				return answer{}
			}
			return exact(sent, fault)
		}, allowed - failed, failed, "none", patience},
		"answers late": {func(sent int, fault bool) answer {
			if fault {
				time.Sleep(during)
			}
			return exact(sent, fault)
		}, allowed, 0, "", during},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				inFault := func() bool { return time.Since(begin) >= before && time.Since(begin) < before+during }
				found := load(clients(), before+during+after, counting(row.limiter, inFault))
				o := judge(clients(), found, before)
				require.Len(t, found, greedy+modest)
				require.Equal(t, allowed, o.allowed)
				require.Equal(t, row.admitted, o.admitted)
				require.Equal(t, row.refused, o.refused)
				require.Equal(t, row.statuses, statuses([]outcome{o}))
				require.Equal(t, row.longest, o.took.percentile(100))
			})
		})
	}
}

// counting returns what sends a request to a limiter, which is told how many the client has sent.
func counting(limiter func(sent int, fault bool) answer, inFault func() bool) func(string) answer {
	var mu sync.Mutex
	sent := map[string]int{}
	next := func(client string) int {
		mu.Lock()
		defer mu.Unlock()
		sent[client]++
		return sent[client]
	}
	return func(client string) answer { return limiter(next(client), inFault()) }
}

// TestFigures: a peer's figure is in bold if it is better, and a figure is of the median round.
func TestFigures(t *testing.T) {
	ours := []outcome{{admitted: 9, allowed: 5, refused: 1, back: time.Second, took: times{7 * time.Millisecond}}}
	peer := []outcome{{admitted: 4, allowed: 5, back: 3 * time.Second}, {admitted: 5, allowed: 5, back: 2 * time.Second},
		{admitted: 2, allowed: 5, refused: 3, back: patience, took: times{time.Second, patience},
			unasked: map[unasked]int{{503, false}: 1, {500, true}: 2, {}: 1}}}
	var out strings.Builder
	report(&out, []string{"ginlimit", "peer"}, []row{{fault{name: "f"}, [][]outcome{ours, peer}},
		{fault{name: "harmless", harmless: true}, [][]outcome{ours, ours}}})
	var rows []string
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "| f ") || strings.HasPrefix(line, "| harmless ") {
			rows = append(rows, strings.TrimSpace(line))
		}
	}
	require.Equal(t, []string{
		"| f | 7, 1000 | **0**, 3000 |",
		`| f | 9; 1 | **4**; **0**: 500\*, none, 503 |`,
		"| f | 7, 7 | **0**, **0** | 0, 0 |",
		"| harmless | 7, 7 | 7, 7 | 0, 0 |",
		"| harmless | 7, 1000 | 7, 1000 |",
		"| harmless | 9; 1 | 9; 1 |"}, rows)
	require.Contains(t, out.String(), "| Admitted, where 5 are allowed; refused below")
}

// TestThePageHasTheTablesThatAreWritten: all but the figures is as the program writes it.
func TestThePageHasTheTablesThatAreWritten(t *testing.T) {
	page, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	var names []string
	for _, c := range contestants() {
		names = append(names, c.name)
	}
	var rows []row
	for _, f := range faults() {
		rows = append(rows, row{f, slices.Repeat([][]outcome{{{allowed: 510}}}, len(names))})
	}
	var out strings.Builder
	report(&out, names, rows)
	written := strings.Split(out.String(), "\n\n")
	require.Greater(t, len(written), 2)
	for _, table := range written[:2] {
		header, _, _ := strings.Cut(table, "\n")
		_, shown, found := strings.Cut(string(page), "\n"+header+"\n")
		require.True(t, found, "bench/README.md has no table %s", header)
		shown, _, _ = strings.Cut(shown, "\n\n")
		require.Equal(t, withoutFigures(table), withoutFigures(header+"\n"+shown))
	}
}

// withoutFigures returns a table's header, and the first cell and the number of cells of its rows.
func withoutFigures(table string) (form []string) {
	for i, line := range strings.Split(table, "\n") {
		if cells := strings.Split(line, " | "); i > 1 {
			line = fmt.Sprint(cells[0], len(cells))
		}
		form = append(form, line)
	}
	return form
}

// TestAFullRedis runs the program for a moment. Two peers fail; of one, clients see the error's text.
func TestAFullRedis(t *testing.T) {
	redistest.Start(t) // or skip
	o := options{rounds: 1, phases: phases{before: 100 * time.Millisecond, after: 300 * time.Millisecond}}
	require.NoError(t, o.choose("OOM", "ulule|Fiber"))
	start := o.faults[0].start
	o.faults[0].once = true
	o.faults[0].start = func(ctx context.Context, s *site) error {
		err := start(ctx, s)
		end := s.end
		s.end = func(ctx context.Context) error {
			refused := await(ctx, func() (bool, error) {
				errs, err := s.server.Client.Info(ctx, "errorstats").Result()
				return strings.Contains(errs, "errorstat_OOM"), err
			})
			return errors.Join(refused, end(ctx))
		}
		return err
	}
	var out, progress strings.Builder
	require.NoError(t, compare(t.Context(), o, &out, &progress))
	var refused []string
	for line := range strings.Lines(out.String()[strings.Index(out.String(), "| Admitted"):]) {
		if strings.HasPrefix(line, "| memory full") && refused == nil {
			refused = strings.Split(line, " | ")
		}
	}
	require.Len(t, refused, 4, &out)
	require.Regexp(t, `^\d+$`, refused[1], "ginlimit decides by itself")
	require.Regexp(t, `; [1-9]\d*: 500$`, refused[2])
	require.Regexp(t, `; [1-9]\d*: 500\\\*`, refused[3])
}

// TestContestants: each library is limited, counted by the name that the program looks for, and exact without a fault.
func TestContestants(t *testing.T) {
	redistest.Start(t) // or skip
	scripts := faults()[slices.IndexFunc(faults(), func(f fault) bool { return f.name == "scripts flushed" })]
	for _, c := range contestants() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o, err := c.run(t.Context(), scripts, phases{before: 100 * time.Millisecond, after: 100 * time.Millisecond})
			require.NoError(t, err)
			require.Positive(t, o.allowed)
			require.Equal(t, o.allowed, o.admitted)
			require.Zero(t, o.refused)
			require.Less(t, o.back, patience)
		})
	}
}

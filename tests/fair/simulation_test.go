package fair_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// The simulation has tenants share a limit in simulated time, and checks what docs/fair.md says. A
// seed draws the limit, its burst, and how tenants ask, join and leave (plan_test.go). Every answer
// is checked, and what tenants got in the end (ledger_test.go).
//
// In TestSimulation the limiter is in the process; in TestProcessSimulation up to eight processes
// have one Redis, which is away now and then.
var (
	simSeed  = flag.Uint64("seed", 0, "of the simulations: the first seed, or the only one, which is described")
	simSeeds = flag.Uint64("seeds", 0, "of the simulations: how many seeds; 0 is a few, or the one")
)

// seeds are the runs of many seeds.
type seeds struct {
	mu         sync.Mutex // guards everything below
	done       int
	decisions  int
	start      time.Time
	reported   time.Time
	tries, bad map[int]int // first tries of light tenants, and how many were denied, by tokens in the burst
}

// onSeeds runs a test for each seed, and checks what light tenants got in all of them.
func onSeeds(t *testing.T, few uint64, simulate func(t *testing.T, seed uint64) *ledger) {
	if *simSeed != 0 && *simSeeds == 0 {
		l := simulate(t, *simSeed)
		t.Logf("%d decisions\n%s%v\n%v", l.decisions, l.plan, l.admitted[0], l.admitted[1])
		return
	}
	all := &seeds{start: time.Now(), reported: time.Now(), tries: map[int]int{}, bad: map[int]int{}}
	count := *simSeeds
	if count == 0 {
		if count = few; testkit.RaceDetector {
			count = few/5 + 1
		}
	}
	t.Run("seeds", func(t *testing.T) {
		for seed := max(1, *simSeed); seed < max(1, *simSeed)+count; seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) { all.add(simulate(t, seed)) })
		}
	})
	t.Log(all)
	for perBusy, most := range map[int]float64{8: 0.02, 16: 0.02, 32: 0.001, 64: 0.001} {
		if tries, bad := all.tries[perBusy], all.bad[perBusy]; float64(bad) > most*float64(tries)+1 {
			t.Errorf("%d of %d first tries of light tenants are denied, with %d tokens in the burst for each",
				bad, tries, perBusy)
		}
	}
}

func (s *seeds) add(l *ledger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done++
	s.decisions += l.decisions
	for _, t := range l.plan.tenants {
		s.tries[l.plan.perBusy] += t.tries
		s.bad[l.plan.perBusy] += t.denials
	}
	if time.Since(s.reported) > 5*time.Second {
		s.reported = time.Now()
		fmt.Fprintln(os.Stderr, s.line())
	}
}

func (s *seeds) line() string {
	return fmt.Sprintf("%d seeds, %d decisions, in %s", s.done, s.decisions, time.Since(s.start).Round(time.Millisecond))
}

// String returns what light tenants got.
func (s *seeds) String() string {
	out := s.line()
	for _, perBusy := range bursts {
		out += fmt.Sprintf("\n%d tokens: %d of %d first tries of light tenants are denied", perBusy, s.bad[perBusy],
			s.tries[perBusy])
	}
	return out
}

// fails reports what a seed violates.
func (l *ledger) fails(t *testing.T) *ledger {
	if len(l.violated) > 0 {
		t.Errorf("%s%s\nreplay: go test ./tests/fair -run '^%s$' -seed %d", l.plan, strings.Join(l.violated, "\n"),
			strings.Split(t.Name(), "/")[0], l.plan.seed)
	}
	return l
}

func TestSimulation(t *testing.T) {
	onSeeds(t, 10, func(t *testing.T, seed uint64) (l *ledger) {
		plan := newPlan(seed, 10000)
		testkit.InSynctest(t, func(t *testing.T) {
			limiter := testkit.Must(ginlimit.NewLocal())
			defer limiter.Close()
			r := newRun(plan, limiter)
			r.all()
			r.waits()
			l = r.ledger
		})
		l.finish()
		return l.fails(t)
	})
}

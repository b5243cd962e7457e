package integration

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/integration/sidebyside"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Processes fail, or Redis does, in the middle of leases.

const (
	failingLife = 200 * time.Millisecond
	failingPace = 4 * time.Millisecond // of each caller
	failsAfter  = 2 * time.Second
	failsFor    = time.Second // longer than a lease
	failingTime = 5 * time.Second

	failingCallers = 4 // of each process
)

var failingLimit = ginlimit.PerSecond(500).WithBurst(500)

// failure is what happens to the first of some processes, or to Redis.
type failure struct {
	fail, mend func(t *testing.T, s *failingSite)
	losesData  bool
	silent     bool // the process does not reply in the end
}

// failingSite is a Redis and the process that fails, which asks Redis by a proxy.
type failingSite struct {
	addr    string
	redis   *os.Process
	proxy   *testkit.Proxy
	process *process
}

func TestLeasesOfFailingProcesses(t *testing.T) {
	t.Parallel()
	programs := buildThis(t)
	nothing := func(*testing.T, *failingSite) {}
	signal := func(signal syscall.Signal) func(*testing.T, *failingSite) {
		return func(t *testing.T, s *failingSite) { require.NoError(t, s.process.cmd.Process.Signal(signal)) }
	}
	for name, f := range map[string]failure{
		"killed": {silent: true, mend: nothing, fail: func(t *testing.T, s *failingSite) { s.process.kill(t) }},
		"paused": {fail: signal(syscall.SIGSTOP), mend: signal(syscall.SIGCONT)},
		"cut off from Redis": {
			fail: func(_ *testing.T, s *failingSite) { s.proxy.CutAll() },
			mend: func(_ *testing.T, s *failingSite) { s.proxy.Cut.Store(false) },
		},
		"Redis started again without its data": {
			losesData: true,
			fail:      func(t *testing.T, s *failingSite) { require.NoError(t, s.redis.Kill()) },
			mend:      func(t *testing.T, s *failingSite) { require.NotNil(t, testkit.LaunchRedis(t, s.addr)) },
		},
		"FLUSHALL": {
			losesData: true, mend: nothing,
			fail: func(t *testing.T, s *failingSite) {
				require.NoError(t, testkit.Connect(t, s.addr).FlushAll(t.Context()).Err())
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f.run(t, programs)
		})
	}
}

// run has three processes ask for one key, each for more than the limit, and judges what they were
// granted.
func (f *failure) run(t *testing.T, programs versions) {
	s := failingSite{}
	s.addr, s.redis = testkit.StartRedisProcess(t)
	var way string
	s.proxy, way = testkit.StartProxy(t, s.addr)
	s.process = programs.start(t, "new", way)
	others := []*process{programs.start(t, "new", s.addr), programs.start(t, "new", s.addr)}
	logs := filepath.Join(t.TempDir(), "admissions")
	command := func(i int) sidebyside.Command {
		return sidebyside.Command{
			Op: "Load", Key: "hot", N: int(failingPace.Microseconds()), D: failingTime, Callers: failingCallers,
			Log: fmt.Sprint(logs, i),
			Policy: sidebyside.Policy{Prefix: "failing", Name: "failing", Lease: failingLife,
				Limits: []ginlimit.Limit{failingLimit}},
		}
	}
	var all sync.WaitGroup
	replies := make([]sidebyside.Reply, 1+len(others))
	began := time.Now()
	all.Go(func() {
		if f.silent {
			assert.NoError(t, s.process.in.Encode(command(0)))
			return
		}
		replies[0] = s.process.try(t, command(0))
	})
	for i, other := range others {
		all.Go(func() { replies[i+1] = other.try(t, command(i+1)) })
	}
	pause(failsAfter)
	lost := loss{from: time.Since(began), bursts: 2}
	f.fail(t, &s)
	pause(failsFor)
	f.mend(t, &s)
	lost.to = time.Since(began) + failingLife // while processes may hold what they took before
	all.Wait()
	granted := make([][]admission, len(replies))
	for i := range granted {
		granted[i] = readAdmissions(t, fmt.Sprint(logs, i), began)
		require.NotEmpty(t, granted[i])
	}
	calls := 0
	for _, r := range replies[1:] {
		require.Positive(t, r.Leased, "decisions from leases")
		calls += r.Calls
	}
	ticks := len(others) * failingCallers * int(failingTime/failingPace)
	f.judge(t, granted, lost, calls > ticks*9/10)
}

// judge asserts the bound. If the machine was not too busy for the others to ask for all that there
// was, it asserts that they were granted it.
func (f *failure) judge(t *testing.T, granted [][]admission, lost loss, others bool) {
	all := slices.Concat(granted...)
	if f.losesData {
		fullest := assertNoMoreThan(t, failingLimit, all, lost)
		say(t, "%d of a burst of %d in the fullest span that meets no loss", fullest, failingLimit.Burst)
		return
	}
	fullest, rest := fullestSpan(failingLimit, all), 0
	from := lost.from + failingLife
	for _, a := range slices.Concat(granted[1:]...) {
		if a.from > from && a.to < lost.from+failsFor {
			rest++
		}
	}
	flowed := (failsFor - failingLife).Seconds() * float64(failingLimit.Rate)
	say(t, "%d of a burst of %d in the fullest span, the others got %d of %.0f", fullest, failingLimit.Burst, rest, flowed)
	assert.LessOrEqual(t, fullest, failingLimit.Burst)
	if others { // the two of them had about two thirds before
		assert.Greater(t, float64(rest), 0.75*flowed, "the others get the rest")
	}
}

// readAdmissions reads what a process has appended to its log. The last line of one that was killed
// may not be complete.
func readAdmissions(t *testing.T, path string, began time.Time) (all []admission) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	for {
		var a sidebyside.Admission
		_, err := fmt.Fscanln(file, &a.From, &a.To, &a.Tokens)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, admission{time.Duration(a.From - began.UnixNano()), time.Duration(a.To - began.UnixNano()), a.Tokens})
	}
}

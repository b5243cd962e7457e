package integration

import (
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
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
	process *leasingProcess
}

func TestLeasesOfFailingProcesses(t *testing.T) {
	t.Parallel()
	nothing := func(*testing.T, *failingSite) {}
	signal := func(signal syscall.Signal) func(*testing.T, *failingSite) {
		return func(t *testing.T, s *failingSite) { require.NoError(t, s.process.cmd.Process.Signal(signal)) }
	}
	for name, f := range map[string]failure{
		"killed": {silent: true, mend: nothing, fail: signal(syscall.SIGKILL)},
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
			f.run(t)
		})
	}
}

// run has three processes ask for one key, each for more than the limit, and judges what they were
// granted.
func (f *failure) run(t *testing.T) {
	s := failingSite{}
	s.addr, s.redis = testkit.StartRedisProcess(t)
	var way string
	s.proxy, way = testkit.StartProxy(t, s.addr)
	began := time.Now()
	s.process = startLeasingProcess(t, way)
	others := []*leasingProcess{startLeasingProcess(t, s.addr), startLeasingProcess(t, s.addr)}
	pause(failsAfter)
	lost := loss{from: time.Since(began), bursts: 2}
	f.fail(t, &s)
	pause(failsFor)
	f.mend(t, &s)
	lost.to = time.Since(began) + failingLife // while processes may hold what they took before
	calls := 0
	for _, other := range others {
		done := other.wait(t)
		require.Positive(t, done.Leased, "decisions from leases")
		calls += done.Calls
	}
	if !f.silent {
		s.process.wait(t)
	}
	var granted [][]admission // of the process that fails last
	for _, p := range append(others, s.process) {
		granted = append(granted, p.admissions(t, began))
		require.NotEmpty(t, granted[len(granted)-1])
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
	for _, a := range slices.Concat(granted[:len(granted)-1]...) {
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

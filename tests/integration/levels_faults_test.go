package integration

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// A process or Redis fails while processes share slots at three levels. At no level are more requests
// served at once than it allows, but for the two exceptions that are documented: a process that is
// frozen for longer than 10 s, and a Redis that loses its memory. In the end all slots are free.

const (
	// The slots of a process that cannot report them are free after 10 s at most. The last report is
	// at most 1.25 s old, so they are not free within the 7 s for which a process may be cut off.
	slotsKept, slotsFree = 7 * time.Second, 10 * time.Second
	// busyMachine is for how long a machine may keep a process from what it would do.
	busyMachine = 2 * time.Second
)

// levelsSite is a Redis, a process that reaches it by a proxy and may fail, and two others.
type levelsSite struct {
	addr     string
	redis    *os.Process
	proxy    *testkit.Proxy
	first    *levelsProcess
	others   []*levelsProcess
	observer map[string]*ginlimit.Policy // by level
}

// startLevels starts a site whose processes hold requests of some clients at each level: the first
// process all slots of the client "0", and another process one of the client "1". Each process also
// holds one of a client of its own, its mark.
func startLevels(t *testing.T) *levelsSite {
	s := &levelsSite{observer: map[string]*ginlimit.Policy{}}
	s.addr, s.redis = testkit.StartRedisProcess(t)
	var way string
	s.proxy, way = testkit.StartProxy(t, s.addr)
	limiter := testkit.NewLimiter(t, testkit.Connect(t, s.addr))
	for _, name := range levelNames() {
		s.observer[name] = testkit.NewPolicy(t, limiter, name, ginlimit.InFlight(1000)) // counts the same slots
	}
	s.first = startLevelsProcess(t, way)
	s.others = []*levelsProcess{startLevelsProcess(t, s.addr), startLevelsProcess(t, s.addr)}
	for i, of := range []clients{{"0", "0", "0"}, {"0", "0", "0"}, {"a", "0", "0"}, {"a", "a", "0"}} {
		s.first.hold(t, fmt.Sprint("full", i), of)
	}
	s.others[0].hold(t, "kept", clients{"1", "1", "1"})
	for i, p := range s.all() {
		p.hold(t, "mark", markOf(i))
	}
	return s
}

// all returns the processes.
func (s *levelsSite) all() []*levelsProcess {
	return slices.Concat([]*levelsProcess{s.first}, s.others)
}

// markOf returns the clients of the i-th process' mark.
func markOf(i int) clients {
	mark := fmt.Sprint("mark ", i)
	return clients{mark, mark, mark}
}

// levelNames returns the names of the levels of each line.
func levelNames() (names []string) {
	for _, line := range lines {
		for _, level := range levels {
			names = append(names, line+" "+level.name)
		}
	}
	return names
}

// counted returns how many slots of a client Redis counts at each level, or false if it does not
// answer.
func (s *levelsSite) counted(t *testing.T, client string) (slots [2 * len(levels)]int, ok bool) {
	for i, name := range levelNames() {
		results, err := s.observer[name].Status(t.Context(), client)
		if err != nil {
			return slots, false
		}
		slots[i] = 1000 - results[0].Remaining
	}
	return slots, true
}

// requireCounted requires that Redis soon counts these slots at each level.
func (s *levelsSite) requireCounted(t *testing.T, client string, each int) {
	t.Helper()
	var slots [2 * len(levels)]int
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() (ok bool) {
		slots, ok = s.counted(t, client)
		return ok && !slices.ContainsFunc(slots[:], func(n int) bool { return n != each })
	}), "the client %q has %v, want %d at each level", client, slots, each)
}

// requireTaken requires that other processes than the first soon serve the client "0" at every level,
// and returns when each level first did so since a time.
func (s *levelsSite) requireTaken(t *testing.T, since time.Time) (first [2 * len(levels)]time.Time) {
	t.Helper()
	var asked time.Time
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		if time.Since(asked) < 200*time.Millisecond {
			return false
		}
		asked = time.Now()
		first = s.firstOf(t, since)
		return !slices.ContainsFunc(first[:], time.Time.IsZero)
	}), "when each level was first taken: %v", first)
	for i, name := range levelNames() {
		took := first[i].Sub(since)
		say(t, "%s is taken after %s", name, took.Round(time.Millisecond))
		assert.Less(t, took, slotsFree+busyMachine, name)
	}
	return first
}

// firstOf returns when the other processes first began a request of the client "0" at each level since
// a time.
func (s *levelsSite) firstOf(t *testing.T, since time.Time) (first [2 * len(levels)]time.Time) {
	t.Helper()
	for _, r := range s.requests(t) {
		for i, name := range levelNames() {
			if r.process > 0 && r.from.After(since) && slices.Contains(r.keys[:], name+" 0") &&
				(first[i].IsZero() || r.from.Before(first[i])) {
				first[i] = r.from
			}
		}
	}
	return first
}

// requireReported requires that Redis soon counts the marks of all processes, and returns since when it
// counts all slots that are held.
func (s *levelsSite) requireReported(t *testing.T) time.Time {
	t.Helper()
	for i := range s.all() {
		s.requireCounted(t, markOf(i)[0], 1)
	}
	pause(time.Second / 2) // a process reports all its keys at about the same time
	return time.Now()
}

// end ends the loads of processes, and the requests that these hold.
func (s *levelsSite) end(t *testing.T, processes []*levelsProcess) {
	t.Helper()
	for _, p := range processes {
		statuses := p.stop(t)
		say(t, "a process answers %v", statuses)
		assert.Positive(t, statuses[http.StatusOK])
		p.end(t, slices.Collect(maps.Keys(p.ids))...)
	}
}

// requests returns what all processes have served.
func (s *levelsSite) requests(t *testing.T) (all []*served) {
	t.Helper()
	for i, p := range s.all() {
		all = append(all, p.requests(t, i)...)
	}
	return all
}

// lost is when Redis does not count the slots of requests, by a documented exception.
type lost struct {
	from, to time.Time
	process  int // -1 are all processes
}

// counts reports whether Redis must count a request at a time.
func (r *served) counts(at time.Time, l lost) bool {
	if at.Before(r.from) || !r.to.IsZero() && !at.Before(r.to) {
		return false
	}
	affected := (l.process < 0 || l.process == r.process) && r.from.Before(l.to)
	return !affected || at.Before(l.from) || !at.Before(l.to)
}

// requireNeverMore requires that no request began where a level was full.
func (s *levelsSite) requireNeverMore(t *testing.T, l lost) {
	t.Helper()
	all := s.requests(t)
	slices.SortFunc(all, func(a, b *served) int { return a.from.Compare(b.from) })
	most, open := map[string]int{}, map[string][]*served{}
	for _, r := range all {
		for i, key := range r.keys {
			open[key] = slices.DeleteFunc(open[key], func(o *served) bool {
				return !o.to.IsZero() && !r.from.Before(o.to)
			})
			n := 1
			for _, o := range open[key] {
				if o.counts(r.from, l) {
					n++
				}
			}
			open[key] = append(open[key], r)
			assert.LessOrEqual(t, n, levels[i].slots, "%s at %s", key, r.from)
			level := key[:strings.LastIndex(key, " ")]
			most[level] = max(most[level], n)
		}
	}
	for _, name := range levelNames() {
		i := slices.Index(levelNames(), name) % len(levels)
		assert.Equal(t, levels[i].slots, most[name], "%s was never full", name)
	}
}

// requireFree requires that all slots are free in the end.
func (s *levelsSite) requireFree(t *testing.T) {
	t.Helper()
	for i := range levelsClients {
		s.requireCounted(t, fmt.Sprint(i), 0)
	}
	for i := range s.all() {
		s.requireCounted(t, markOf(i)[0], 0)
	}
}

func TestLevelsWhileProcessesAndRedisFail(t *testing.T) {
	t.Parallel()
	for _, row := range []struct { // the two that take longest at the same time
		name string
		run  func(*testing.T, *levelsSite)
	}{
		{"a process is killed", killLevelsProcess},
		{"a process is frozen for longer than 10 s", freezeLevelsProcess},
		{"the connections of a process are cut", cutLevelsProcess},
		{"Redis is started again without its data", restartLevelsRedis},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := startLevels(t)
			for _, p := range s.others {
				p.load(t)
			}
			row.run(t, s)
		})
	}
}

// killLevelsProcess kills a process while it holds slots at all levels.
func killLevelsProcess(t *testing.T, s *levelsSite) {
	s.first.load(t)
	pause(time.Second / 2)
	killed := time.Now()
	require.NoError(t, s.first.cmd.Process.Kill())
	first := s.requireTaken(t, killed)
	s.end(t, s.others)
	s.requireFree(t)
	s.requireNeverMore(t, lost{from: killed, to: killed.Add(time.Hour), process: 0})
	for i, name := range levelNames() {
		assert.Greater(t, first[i].Sub(killed), slotsKept, name)
	}
	rdb := testkit.Connect(t, s.addr)
	var keys []string
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		var err error
		keys, err = rdb.Keys(t.Context(), "*").Result()
		return err == nil && len(keys) == 0
	}), "keys are left: %q", keys)
}

// freezeLevelsProcess freezes a process that holds slots until others have taken them, and has it go on
// to serve its requests.
func freezeLevelsProcess(t *testing.T, s *levelsSite) {
	pause(time.Second / 2)
	frozen := time.Now()
	require.NoError(t, s.first.cmd.Process.Signal(syscall.SIGSTOP))
	s.requireTaken(t, frozen)
	s.requireCounted(t, markOf(0)[0], 0)
	require.NoError(t, s.first.cmd.Process.Signal(syscall.SIGCONT))
	counts := s.requireReported(t)
	s.first.load(t)
	pause(time.Second)
	ended := time.Now()
	s.first.end(t, "full0", "full1", "full2", "full3")
	s.requireTaken(t, ended)
	s.end(t, s.all())
	s.requireFree(t)
	s.requireNeverMore(t, lost{from: frozen.Add(slotsKept), to: counts, process: 0})
}

// cutLevelsProcess cuts the connections of a process again and again.
func cutLevelsProcess(t *testing.T, s *levelsSite) {
	s.first.load(t)
	for start := time.Now(); time.Since(start) < 3*time.Second; pause(rand.N(200 * time.Millisecond)) {
		cutConnections(t, s.addr, s.redis, s.proxy)
	}
	s.end(t, s.all())
	s.requireFree(t)
	s.requireNeverMore(t, lost{process: -1})
}

// restartLevelsRedis kills Redis and starts another, which knows nothing.
func restartLevelsRedis(t *testing.T, s *levelsSite) {
	s.first.load(t)
	pause(time.Second / 2)
	killed := time.Now()
	require.NoError(t, s.redis.Kill())
	pause(time.Second / 5)
	require.NotNil(t, testkit.LaunchRedis(t, s.addr))
	back := time.Now()
	counts := s.requireReported(t)
	say(t, "all slots are reported %s after Redis is back", counts.Sub(back).Round(time.Millisecond))
	pause(time.Second)
	s.end(t, s.all())
	s.requireFree(t)
	s.requireNeverMore(t, lost{from: killed, to: counts, process: -1})
}

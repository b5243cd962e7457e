package simulation_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// The simulation runs several processes' limiters, each with a go-redis client of its own, against
// one server, or the masters of a cluster, in time that is not real. A seed draws everything:
// limits, keys, callers, the network, and what happens to it and to the servers (plan_test.go,
// fault_test.go).
//
// Real: the limiters with their dispatchers, breakers, deny memories and local buckets; go-redis with its pool; the
// scripts, on miniredis. Simulated: the clock, which is that of a [synctest] bubble, and the network
// (network_test.go).
//
// Checked: every script's call against the reference models (server_test.go), and every answer
// against what the server has done and the guarantees (check_test.go, charge_test.go); and that Redis
// has no other keys than those that are known, each with an expiry. That no goroutine is left,
// synctest checks itself.
//
// In half of the processes callers send their calls themselves, as with go-redis' own Dialer: the
// Dialer here ends with its context as that does. The server's clock may be set (node_test.go).
//
// A quarter of the seeds are clusters of two or three masters. Slots migrate (migration_test.go),
// nodes are gone and come back with their data or without, and a fault of one node leaves the keys
// of others alone. The masters have one clock, learn of a slot's new owner all at once, and have no
// replicas; a slot that migrates always arrives.
//
// Not checked: for a second after a process of a cluster was redirected, that its decisions are in time
// ([simulation.redirected]); and of a plan in which slots migrate, that a fault of one node leaves the others alone.
//
// Not simulated: leases, calendar quotas, settlements and memory that is full, which have tests of their own in
// tests/limits; failover, rings and Sentinel; handlers; clients whose pool is too small (see newSimProcess); and the
// scheduler, so a seed may go another way each time it runs: calls of the same microsecond come in any order, and the
// probes' pauses are random.
var (
	simSeed  = flag.Uint64("seed", 0, "of TestSimulation: the first seed, or the only one, whose trace is printed")
	simSeeds = flag.Uint64("seeds", 0,
		"of TestSimulation: how many seeds; 0 is twenty, with the race detector ten, or the one")
)

// simulation is one run of a plan.
type simulation struct {
	plan    *simPlan
	start   time.Time
	network *simNetwork
	server  *simServer
	members []*simMember
	calls   sync.WaitGroup

	mu         sync.Mutex // guards everything below
	answers    []*simAnswer
	trace      []string
	violations []string
	over       bool // the bubble has ended
}

// simMember is a process.
type simMember struct {
	rdb     redis.UniversalClient
	limiter *testkit.Limiter

	closing, closed time.Time // when Close was called and had returned; the server's lock guards them
}

// oneSeed reports whether one seed alone is to be run.
func oneSeed() bool { return *simSeed != 0 && *simSeeds == 0 }

func TestSimulation(t *testing.T) {
	requireSimSockets(t)
	if oneSeed() {
		simulateSeed(t, *simSeed)
		return
	}
	first, count := max(1, *simSeed), *simSeeds
	switch {
	case count > 0:
	case testkit.RaceDetector:
		count = 10
	default:
		count = 20
	}
	var (
		mu       sync.Mutex // guards everything below
		done     int
		answers  = map[string]int{} // by their source
		start    = time.Now()
		reported = start
	)
	report := func() string {
		total := 0
		for _, n := range answers {
			total += n
		}
		return fmt.Sprintf("%d seeds, %d calls, in %s: %v", done, total, time.Since(start).Round(time.Millisecond), answers)
	}
	for seed := first; seed < first+count; seed++ {
		testkit.Run(t, fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := simulateSeed(t, seed)
			mu.Lock()
			defer mu.Unlock()
			for _, a := range s.answers {
				answers[a.kind()]++
			}
			if done++; time.Since(reported) > 5*time.Second {
				reported = time.Now()
				fmt.Fprintln(os.Stderr, report())
			}
		})
	}
	t.Cleanup(func() { t.Log(report()) })
}

// simulateSeed runs a seed, and fails the test if a guarantee is violated.
func simulateSeed(t *testing.T, seed uint64) *simulation {
	s := simulate(t, newSimPlan(seed))
	switch {
	case len(s.violations) > 0:
		t.Errorf("seed %d violates:\n%s\nreplay: go test ./tests/simulation -run TestSimulation -seed %d",
			seed, strings.Join(s.violations, "\n"), seed)
	case oneSeed():
		t.Log("no guarantee is violated")
	}
	if oneSeed() {
		t.Logf("seed %d:\n%s", seed, s.describe())
	}
	return s
}

// simMaxReal is how long a run may take in real time. It takes a fraction of a second, unless
// somebody in it tries again and again without a pause: then the bubble's clock stands still.
const simMaxReal = 5 * time.Minute

// simulate runs a plan in a bubble.
func simulate(t *testing.T, plan *simPlan) *simulation {
	s := &simulation{plan: plan}
	defer time.AfterFunc(simMaxReal, func() {
		s.tell()
		panic(fmt.Sprintf("seed %d goes round in circles", plan.seed))
	}).Stop()
	defer s.tellPanic()
	started := false
	synctest.Test(t, func(t *testing.T) {
		s.start = time.Now()
		if err := s.open(); err != nil {
			s.violated("it does not start: %v", err)
			return
		}
		started = true
		for _, f := range plan.faults {
			s.calls.Go(func() {
				defer s.tellPanic()
				time.Sleep(f.at)
				s.inflict(f)
			})
		}
		for _, c := range plan.calls {
			time.Sleep(c.at - time.Since(s.start))
			s.calls.Go(func() {
				defer s.tellPanic()
				s.make(c)
			})
		}
		s.calls.Wait()
		s.close()
	})
	if s.over = true; started {
		s.check()
	}
	return s
}

func (s *simulation) open() (err error) {
	if s.server, err = newSimServer(s); err != nil {
		return err
	}
	s.network = newSimNetwork(s.plan, func(node int, conn net.Conn) { s.server.nodes[node].server.ServeConn(conn) })
	for i, p := range s.plan.processes {
		m := &simMember{rdb: s.plan.connect(i, s.network.dial)}
		with := []ginlimit.LimiterOption{
			ginlimit.WithTimeout(s.plan.timeout), ginlimit.WithFailureMode(p.failure), ginlimit.WithReplicas(p.replicas),
			ginlimit.WithLogger(slog.New(slog.DiscardHandler)),
		}
		if p.denyOrNil != nil {
			with = append(with, ginlimit.WithDenyCache(*p.denyOrNil))
		}
		limiter, err := ginlimit.NewLimiter(m.rdb, with...)
		if err != nil {
			return err
		}
		m.limiter = testkit.Wrap(limiter, s.plan.algorithm)
		s.members = append(s.members, m)
	}
	return nil
}

// close ends everything.
func (s *simulation) close() {
	for i := range s.members {
		s.closeMember(i)
	}
	for _, m := range s.members {
		if err := m.rdb.Close(); err != nil {
			s.violated("the client does not close: %v", err)
		}
	}
	time.Sleep(simClientEnds)
	s.server.close()
}

// simClientEnds is how long go-redis may go on in the background after Close, with a connection
// that it had begun to make.
const simClientEnds = time.Minute

// closeMember closes a limiter, which takes no longer than a second.
func (s *simulation) closeMember(i int) {
	m, start := s.members[i], time.Now()
	s.server.mu.Lock()
	if m.closing.IsZero() {
		m.closing = start
	}
	s.server.mu.Unlock()
	s.note("process %d: Close", i)
	if err := m.limiter.Close(); err != nil {
		s.violated("Close fails: %v", err)
	}
	if took := time.Since(start); took > max(time.Second, s.plan.timeout) {
		s.violated("Close took %s", took)
	}
	s.note("process %d: closed", i)
	s.server.mu.Lock()
	m.closed = time.Now()
	s.server.mu.Unlock()
}

// make makes a call, and again after RetryAfter if it is denied and says so.
func (s *simulation) make(c simCall) {
	var before *simAnswer
	for try := 0; ; try++ {
		a := s.ask(c)
		a.before = before
		s.mu.Lock()
		s.answers = append(s.answers, a)
		s.mu.Unlock()
		wait := a.result.RetryAfter
		if a.err != nil || try == c.retries || wait <= 0 || wait > time.Second {
			return
		}
		time.Sleep(wait)
		before = a
	}
}

func (s *simulation) ask(c simCall) *simAnswer {
	m, ctx, a := s.members[c.process], context.Background(), &simAnswer{simCall: c, start: time.Now()}
	switch {
	case c.patience > 0 && c.cancels:
		cancelled, cancel := context.WithCancel(ctx)
		timer := time.AfterFunc(c.patience, cancel)
		defer timer.Stop()
		defer cancel()
		ctx = cancelled
	case c.patience > 0:
		limited, cancel := context.WithTimeout(ctx, c.patience)
		defer cancel()
		ctx = limited
	}
	s.server.mu.Lock()
	a.version = s.server.version[c.key]
	s.server.mu.Unlock()
	s.note("%s", c)
	step := testkit.Step{Op: c.op, Key: s.plan.keys[c.key].name, N: c.n, D: c.block,
		Limits: s.plan.keys[c.key].versions[a.version]}
	a.result, a.err = step.Apply(ctx, m.limiter)
	a.result.Name = "" // of a policy
	a.end, a.ended = time.Now(), ctx.Err() != nil
	s.server.mu.Lock()
	a.closed = !m.closing.IsZero()
	if a.result.Source == ginlimit.FromCache {
		s.server.tickLocked()
		a.room = s.server.reference.clone().take(s.server.countedOf(c.key, a.version), 0, int64(c.least()))[0].Allowed
	}
	s.server.mu.Unlock()
	s.note("%s, asked %s ago: %s", c, a.end.Sub(a.start), a.says())
	return a
}

// least is how many tokens a call wants at least.
func (c simCall) least() int {
	if c.op == "AllowN" {
		return c.n
	}
	return 1
}

// note adds to the trace.
func (s *simulation) note(format string, args ...any) {
	line := fmt.Sprintf("%9.3f ms  ", float64(time.Since(s.start).Microseconds())/1000) + fmt.Sprintf(format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trace = append(s.trace, line)
}

// violated notes what is not as it must be.
func (s *simulation) violated(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.trace = append(s.trace, "VIOLATION: "+text)
	}
	if len(s.violations) < 10 {
		s.violations = append(s.violations, text)
	}
}

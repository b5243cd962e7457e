package simulation_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// slotSimulation is a run of several processes that take slots of one server or of a cluster, over the network of the
// simulation. A seed draws (inflight_plan_test.go):
//   - the levels at which requests are in flight, up to three, each with a few keys, a number of its own, which may
//     differ from process to process, and perhaps a rate;
//   - plans that change the number of the first level;
//   - a queue;
//   - who takes a slot, by a request or by Reserve, how long for, and whose client leaves;
//   - what happens: lost and late bytes, cut connections, a server that freezes or restarts, processes that die, and on
//     a cluster hash slots that migrate.
//
// Checked (inflight_check_test.go): at every moment, never more in flight than allowed, at any level; every denial and
// every failure has a cause, unless something happened lately; nobody waits for longer than the queue and the timeout
// say. In the end everything is free again, within simSlotLife, or four times as long if answers are late.
//
// In most plans the processes fail closed, so that Redis alone admits. In the others they decide themselves while it
// does not: then each process keeps to the numbers. In most of these plans answers are often late, all the time: a
// grant may come when the process has taken the slot itself; no causes are looked for. What it costs if Redis loses its
// memory is a row of its own (TestSlotsWhileRedisIsLost).
type slotSimulation struct {
	*simulation
	plan     *slotPlan
	policies []*ginlimit.Policy
	routers  []*gin.Engine

	state    sync.Mutex // guards everything below
	numbers  []int      // of each client of the first level, by its plan; 0 is the policy's own
	inFlight map[slotKey][]*slotCall
	died     map[int]bool
	first    time.Time // when something happened first
	quiet    time.Time // since when nothing has happened
	calls    []*slotCall
	counts   map[string]int // of calls by how they ended, and of checks
}

// slotKey is one of the keys of a level.
type slotKey struct{ level, key int }

// slotCall is a request on its way.
type slotCall struct {
	slotRequest
	n        []int // of each of its levels: how many may be in flight
	start    time.Time
	end      time.Time // when it was decided
	released time.Time // the zero time if it was not in flight
	result   ginlimit.Result
	err      error
	dead     bool // its process was dead when it was decided, or died before it was released
}

// key returns the key of one of a call's levels.
func (c *slotCall) key(level int) slotKey { return slotKey{level, c.keys[level]} }

func (c *slotCall) String() string {
	what := "request"
	if c.acquires {
		what = "Reserve"
	}
	return fmt.Sprintf("process %d: %s of %d under %d", c.process, what, c.keys[:len(c.n)], c.n)
}

const (
	// simSlotLife is how long what has happened matters: a dead process is believed for 10 s, and what Redis could not
	// be told it is told again after a second.
	simSlotLife = 13 * time.Second

	// simSlotOutage is for how long a process that cannot reach Redis loses no slot, and simSlotFound is within which
	// time it then reports.
	simSlotOutage, simSlotFound = 7 * time.Second, 1250 * time.Millisecond
)

// slotCallKey is the key of a call in its context.
type slotCallKey struct{}

func callOf(ctx context.Context) *slotCall { return ctx.Value(slotCallKey{}).(*slotCall) }

// slotClient names the client of a key.
func slotClient(key int) string { return fmt.Sprint("client ", key) }

// open connects the processes.
func (s *slotSimulation) open(t *testing.T) {
	var err error
	s.server, err = newSimServer(s.simulation)
	require.NoError(t, err)
	s.network = newSimNetwork(s.plan.simPlan, func(node int, conn net.Conn) {
		s.server.nodes[node].server.ServeConn(conn)
	})
	for process := range s.plan.processes {
		m := &simMember{rdb: s.plan.connect(process, s.network.dial)}
		failure := ginlimit.FailClosed
		if s.plan.local {
			failure = ginlimit.FailLocal
		}
		limiter, err := ginlimit.NewLimiter(m.rdb, ginlimit.WithFailureMode(failure), ginlimit.WithReplicas(1),
			ginlimit.WithTimeout(s.plan.timeout), ginlimit.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		m.limiter = testkit.Wrap(limiter, ginlimit.TokenBucket)
		s.members = append(s.members, m)
		var policies []*ginlimit.Policy
		for i, level := range s.plan.levels {
			policies = append(policies, m.limiter.Must(level.name, append(s.plan.level(i, process, s.planOf),
				ginlimit.WithDeniedHandler(func(c *gin.Context, r ginlimit.Result) {
					s.decided(callOf(c.Request.Context()), r, nil)
				}),
				ginlimit.WithErrorHandler(func(c *gin.Context, err error) {
					s.decided(callOf(c.Request.Context()), ginlimit.Result{}, err)
					c.AbortWithStatus(http.StatusServiceUnavailable)
				}))...))
		}
		router := gin.New()
		router.Use(gin.RecoveryWithWriter(io.Discard))
		router.GET("/", ginlimit.AllOf(policies...), func(c *gin.Context) {
			call := callOf(c.Request.Context())
			result, _ := ginlimit.FromContext(c)
			s.decided(call, result, nil)
			if s.fly(call); call.panics {
				panic(http.ErrAbortHandler)
			}
		})
		s.policies, s.routers = append(s.policies, policies[0]), append(s.routers, router)
	}
}

// planOf returns the number of the plan of a client, under which a call is then decided.
func (s *slotSimulation) planOf(ctx context.Context, client string) (n int) {
	s.state.Lock()
	defer s.state.Unlock()
	for key := range s.numbers {
		if slotClient(key) == client {
			n = s.numbers[key]
		}
	}
	if n > 0 {
		callOf(ctx).n[0] = n
	}
	return n
}

// serve makes a request, or takes a slot by Reserve.
func (s *slotSimulation) serve(q slotRequest) {
	call := &slotCall{slotRequest: q, start: time.Now()}
	for _, l := range s.plan.levels {
		if call.n = append(call.n, l.n[q.process]); q.acquires {
			break
		}
	}
	ctx := context.WithValue(context.Background(), slotCallKey{}, call)
	if q.patience > 0 {
		limited, cancel := context.WithTimeout(ctx, q.patience)
		defer cancel()
		ctx = limited
	}
	if !q.acquires {
		req := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)
		for i, l := range s.plan.levels {
			req.Header.Set(l.name, slotClient(q.keys[i]))
		}
		s.routers[q.process].ServeHTTP(httptest.NewRecorder(), req)
		return
	}
	slot, err := s.policies[q.process].Reserve(ctx, slotClient(q.keys[0]), 1)
	if s.decided(call, slot.Result(), err); slot.Result().Allowed {
		s.fly(call)
		slot.Release()
	}
}

// decided notes how a call was decided.
func (s *slotSimulation) decided(c *slotCall, r ginlimit.Result, err error) {
	s.state.Lock()
	defer s.state.Unlock()
	c.end, c.result, c.err, c.dead = time.Now(), r, err, s.died[c.process]
	s.calls = append(s.calls, c)
	says := "allowed"
	if err != nil {
		says = err.Error()
		s.counts["error"]++
	} else if r.Allowed {
		s.counts["allowed"]++
	} else {
		says = fmt.Sprintf("denied by %s, %s, from %s", r.Name, r.Cause, r.Source)
		s.counts[fmt.Sprintf("denied by %s, %s", r.Cause, r.Source)]++
	}
	s.note("%s, asked %s ago: %s", c, c.end.Sub(c.start), says)
}

// fly has an admitted call be in flight for as long as it is to be.
func (s *slotSimulation) fly(c *slotCall) {
	s.state.Lock()
	if !c.dead {
		for level := range c.n {
			s.checkAdmissionLocked(c, level)
			s.inFlight[c.key(level)] = append(s.inFlight[c.key(level)], c)
			s.checkInFlightLocked(c, level)
		}
	}
	s.state.Unlock()
	time.Sleep(c.holds)
	s.state.Lock()
	defer s.state.Unlock()
	c.released, c.dead = time.Now(), s.died[c.process]
	for level := range c.n {
		key := c.key(level)
		s.inFlight[key] = slices.DeleteFunc(s.inFlight[key], func(other *slotCall) bool { return other == c })
	}
	s.note("%s, asked %s ago: done", c, c.released.Sub(c.start))
}

// happens has something happen.
func (s *slotSimulation) happens(f simFault) {
	s.state.Lock()
	s.happenedLocked()
	if f.kind == "die" {
		s.note("%s", f)
		s.died[f.process] = true
		for key, calls := range s.inFlight {
			s.inFlight[key] = slices.DeleteFunc(calls, func(c *slotCall) bool { return c.process == f.process })
		}
	}
	s.state.Unlock()
	switch f.kind {
	case "die":
		s.network.change(func() { s.network.dead[f.process] = true })
	case "move slot":
		s.moveSlotOf(f)
	default:
		s.inflict(f)
	}
	s.state.Lock()
	s.happenedLocked()
	s.state.Unlock()
}

// happenedLocked notes that something has happened just now.
func (s *slotSimulation) happenedLocked() {
	now := time.Now()
	if s.first.IsZero() {
		s.first = now
	}
	if now.After(s.quiet) { // else answers are late all the time
		s.quiet = now
	}
}

// moveSlotOf moves the hash slot of one of the keys in Redis, key after key.
func (s *slotSimulation) moveSlotOf(f simFault) {
	names := s.keys()
	if len(names) == 0 {
		return
	}
	slot := slotOf(names[f.key%len(names)])
	var steps [][]string
	for _, name := range names {
		if slotOf(name) == slot {
			steps = append(steps, []string{name})
		}
	}
	s.server.migrate(slot, f.node, f.lasts, steps)
}

// keys returns the keys of clients in Redis, in order.
func (s *slotSimulation) keys() (names []string) {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	s.server.tickLocked()
	for _, n := range s.server.nodes {
		names = append(names, n.mini.Keys()...)
	}
	names = slices.DeleteFunc(names, isOfOperators)
	slices.Sort(names)
	return names
}

// replaySlots says how to run a seed alone.
func replaySlots(seed uint64) string {
	return fmt.Sprintf("replay: go test ./tests/simulation -run '^TestSlotSimulation$' -seeds 1 -seed %d", seed)
}

func simulateSlots(t *testing.T, plan *slotPlan) *slotSimulation {
	s := &slotSimulation{simulation: &simulation{plan: plan.simPlan}, plan: plan, inFlight: map[slotKey][]*slotCall{},
		numbers: make([]int, plan.levels[0].keys), died: map[int]bool{}, counts: map[string]int{}}
	defer time.AfterFunc(simMaxReal, func() {
		panic(fmt.Sprintf("seed %d goes round in circles\n%s", plan.seed, replaySlots(plan.seed)))
	}).Stop()
	synctest.Test(t, func(t *testing.T) {
		if s.start = time.Now(); plan.late { // something happens all the time
			s.first, s.quiet = s.start, s.start.Add(time.Hour)
		}
		s.open(t)
		var all sync.WaitGroup
		after := func(at time.Duration, f func()) {
			all.Go(func() {
				time.Sleep(at)
				f()
			})
		}
		for _, f := range plan.faults {
			after(f.at, func() { s.happens(f) })
		}
		for _, c := range plan.changes {
			after(c.at, func() {
				s.state.Lock()
				defer s.state.Unlock()
				s.numbers[c.key] = c.n
				s.note("the plan of %s has %d slots", slotClient(c.key), c.n)
			})
		}
		for _, q := range plan.requests {
			after(q.at, func() { s.serve(q) })
		}
		all.Wait()
		time.Sleep(simSlotLife)
		if plan.late { // until the last attempt in doubt has ended too, and a probe and a report were answered in time
			time.Sleep(3 * simSlotLife)
		}
		s.checkEnd()
		s.close()
	})
	s.checkCalls()
	return s
}

func TestSlotSimulation(t *testing.T) {
	t.Parallel()
	requireSimSockets(t)
	first, count := max(1, *simSeed), *simSeeds
	if count == 0 {
		count = 6
		if testkit.RaceDetector {
			count = 4
		}
	}
	counts := map[string]int{}
	for seed := first; seed < first+count; seed++ {
		s := simulateSlots(t, drawSlots(seed))
		for what, n := range s.counts {
			counts[what] += n
		}
		if len(s.violations) > 0 {
			t.Fatalf("seed %d violates:\n%s\n%s%s\n%s", seed, strings.Join(s.violations, "\n"), s.plan.describe(),
				strings.Join(s.trace, "\n"), replaySlots(seed))
		}
	}
	t.Logf("%d seeds: %v", count, counts)
}

package simulation_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// slotSimulation is a run of several processes that take slots of one server, over the network of
// the simulation. A seed draws who takes a slot and for how long, and what happens: lost and late
// bytes, cut connections, a server that freezes, processes that die.
//
// Checked at every moment: never more than n are in flight, of those that live. At every refusal:
// that n were in flight at a time shortly before, unless something happened lately. In the end:
// everything is free again, within simSlotLife.
//
// The processes fail closed, so that Redis alone admits; what it costs if Redis loses its memory,
// and admission without it, are rows of their own (TestSlotsWithoutRedis).
type slotSimulation struct {
	seed     uint64
	random   *rand.Rand
	n        int
	start    time.Time
	network  *simNetwork
	policies []*ginlimit.Policy

	mu       sync.Mutex // guards everything below
	held     map[int]int
	dead     map[int]bool
	holds    []slotHold
	first    time.Time // when something happened first
	quiet    time.Time // since when nothing has happened
	answers  map[string]int
	refusals []slotRefusal
	checked  int // refusals
	trace    []string
	failures []string
}

const (
	// simSlotLife is how long what has happened matters: a dead process is believed for 10 s, and
	// what Redis could not be told it is told again after a second.
	simSlotLife = 13 * time.Second

	// simSlotOutage is for how long a process that cannot reach Redis loses no slot, and
	// simSlotFound is within which time it then reports.
	simSlotOutage, simSlotFound = 7 * time.Second, 1250 * time.Millisecond

	simSlotNews = 20 * time.Millisecond // until Redis knows of a release
)

// slotHold is the time in which Redis may have counted a slot: from when it was asked for until
// Redis knew of its release. Of a call that failed it is the time of the call, as Redis may have
// granted it.
type slotHold struct{ from, to time.Time }

type slotRefusal struct {
	start, end time.Time
	process    int
}

func (s *slotSimulation) note(format string, args ...any) {
	s.trace = append(s.trace,
		fmt.Sprintf("%9.3f ms  ", float64(time.Since(s.start).Microseconds())/1000)+fmt.Sprintf(format, args...))
}

// change adds to what a process holds.
func (s *slotSimulation) change(process, by int, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[process] += by
	total := 0
	for p, held := range s.held {
		if !s.dead[p] {
			total += held
		}
	}
	s.note("process %d: %s, %d held", process, what, total)
	if total > s.n {
		s.failures = append(s.failures, fmt.Sprintf("%d are in flight of %d at %s", total, s.n, time.Since(s.start)))
	}
}

// serve has a process take a slot for some time.
func (s *slotSimulation) serve(process int, holds, patience time.Duration) {
	ctx := context.Background()
	if patience > 0 {
		limited, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		ctx = limited
	}
	start := time.Now()
	slot, err := s.policies[process].Acquire(ctx, "alice")
	s.mu.Lock()
	dead := s.dead[process]
	switch {
	case dead:
		s.holdLocked(start, s.quiet)
	case err != nil:
		s.answers["error"]++
		s.holdLocked(start, time.Now())
		s.note("process %d: asked %s ago: %v", process, time.Since(start), err)
	case !slot.Result().Allowed:
		s.answers[slot.Result().Source.String()+" refused"]++
		s.note("process %d: asked %s ago: refused", process, time.Since(start))
		s.refusals = append(s.refusals, slotRefusal{start, time.Now(), process})
	default:
		s.answers["allowed"]++
	}
	s.mu.Unlock()
	if dead || err != nil || !slot.Result().Allowed {
		return
	}
	s.change(process, 1, "in flight")
	time.Sleep(holds)
	s.mu.Lock()
	dead = s.dead[process]
	if dead {
		s.holdLocked(start, s.quiet) // its death has happened by then
	} else {
		s.holdLocked(start, time.Now())
	}
	s.mu.Unlock()
	if !dead {
		s.change(process, -1, "done")
		slot.Release()
	}
}

// holdLocked notes when a slot was asked for, and when it was released.
func (s *slotSimulation) holdLocked(asked, released time.Time) {
	s.holds = append(s.holds, slotHold{asked, released.Add(simSlotNews)})
}

// happens has something happen for a while.
func (s *slotSimulation) happens(what string, process int, length time.Duration) {
	s.mu.Lock()
	s.note("%s, process %d, for %s", what, process, length)
	s.quiet = time.Now()
	if s.first.IsZero() {
		s.first = s.quiet
	}
	s.mu.Unlock()
	path := simPath{process, 0}
	switch what {
	case "freeze":
		s.network.change(func() { s.network.frozen[0] = true })
		time.Sleep(length)
		s.network.change(func() { s.network.frozen[0] = false })
	case "block":
		s.network.change(func() { s.network.blocked[path] = true })
		time.Sleep(length)
		s.mu.Lock()
		dead := s.dead[process]
		s.mu.Unlock()
		s.network.change(func() { s.network.blocked[path] = dead })
	case "slow":
		s.network.change(func() { s.network.slow[path] = length / 10 })
		time.Sleep(length)
		s.network.change(func() { delete(s.network.slow, path) })
	case "cut":
		s.network.change(func() {
			for _, c := range s.network.openLocked([]simPath{path}) {
				c.resetLocked()
			}
		})
	case "die":
		s.mu.Lock()
		s.dead[process] = true
		s.mu.Unlock()
		s.network.change(func() { s.network.blocked[path] = true })
		s.change(process, 0, "dead")
	}
	s.mu.Lock()
	s.quiet = time.Now()
	s.mu.Unlock()
}

// replaySlots says how to run a seed alone.
func replaySlots(seed uint64) string {
	return fmt.Sprintf("replay: go test ./tests/simulation -run '^TestSlotSimulation$' -seeds 1 -seed %d", seed)
}

func simulateSlots(t *testing.T, seed uint64) *slotSimulation {
	r := rand.New(rand.NewPCG(seed, 17))
	s := &slotSimulation{seed: seed, random: r, n: pick(r, 1, 1, 2, 3, 5, 20), held: map[int]int{},
		dead: map[int]bool{}, answers: map[string]int{}}
	defer time.AfterFunc(simMaxReal, func() {
		panic(fmt.Sprintf("seed %d goes round in circles\n%s", seed, replaySlots(seed)))
	}).Stop()
	synctest.Test(t, func(t *testing.T) {
		s.start = time.Now()
		mini := miniredis.NewMiniRedis()
		mini.ClockTTL(true)
		mini.SetTime(time.Now())
		conn, err := mini.Dial() // has it start without a listener
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		ticks, stop := time.NewTicker(time.Millisecond), make(chan struct{})
		var clock sync.WaitGroup
		clock.Go(func() {
			for {
				select {
				case <-ticks.C:
					mini.SetTime(time.Now())
				case <-stop:
					return
				}
			}
		})
		plan := &simPlan{seed: seed, latency: time.Duration(20+r.IntN(2000)) * time.Microsecond,
			jitter: time.Duration(r.IntN(2000)) * time.Microsecond}
		s.network = newSimNetwork(plan, func(_ int, conn net.Conn) { mini.Server().ServeConn(conn) })
		processes := pick(r, 1, 2, 3, 4)
		var limiters []*ginlimit.Limiter
		var clients []*redis.Client
		for p := range processes {
			rdb := redis.NewClient(&redis.Options{
				Addr: "127.0.0.1:6379", PoolSize: 20, DialerRetries: 1,
				// which locks while it waits
				MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
				Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return s.network.dial(ctx, simPath{p, 0})
				},
			})
			limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithFailureMode(ginlimit.FailClosed), ginlimit.WithReplicas(1),
				ginlimit.WithLogger(slog.New(slog.DiscardHandler)))
			require.NoError(t, err)
			policy, err := limiter.Policy("api", ginlimit.PerSecond(1_000_000), ginlimit.InFlight(s.n))
			require.NoError(t, err)
			clients, limiters, s.policies = append(clients, rdb), append(limiters, limiter), append(s.policies, policy)
		}
		length := time.Duration(1+r.IntN(30)) * time.Second
		var all sync.WaitGroup
		outage := simSlotOutage
		for range r.IntN(4) {
			at, what := time.Duration(r.Int64N(int64(length))), pick(r, "freeze", "block", "slow", "cut", "die")
			process, lasts := r.IntN(processes),
				pick(r, time.Duration(r.Int64N(int64(100*time.Millisecond))), time.Duration(r.Int64N(int64(2*time.Second))), outage)
			lasts = max(0, min(lasts, outage))
			outage -= lasts + simSlotFound // one may begin before Redis is found again after another
			all.Go(func() {
				time.Sleep(at)
				s.happens(what, process, lasts)
			})
		}
		for range 100 + r.IntN(200) {
			at, process := time.Duration(r.Int64N(int64(length))), r.IntN(processes)
			holds := time.Duration(r.Int64N(int64(pick(r, time.Millisecond, 50*time.Millisecond, time.Second, 20*time.Second))))
			patience := pick(r, 0, 0, time.Duration(r.Int64N(int64(20*time.Millisecond))))
			for range pick(r, 1, 1, 1, 5) {
				all.Go(func() {
					time.Sleep(at)
					s.serve(process, holds, patience)
				})
			}
		}
		all.Wait()
		time.Sleep(simSlotLife)
		for _, key := range mini.Keys() {
			value, _ := mini.Get(key)
			s.failures = append(s.failures, fmt.Sprintf("in the end %s is %q", key, value))
		}
		for p, limiter := range limiters {
			if got := limiter.Stats().Slots; got != 0 && !s.dead[p] {
				s.failures = append(s.failures, fmt.Sprintf("in the end process %d counts %d slots", p, got))
			}
			require.NoError(t, limiter.Close())
			require.NoError(t, clients[p].Close())
		}
		time.Sleep(simClientEnds)
		close(stop)
		clock.Wait()
		ticks.Stop()
		mini.Close()
	})
	s.checkRefusals()
	return s
}

// checkRefusals wants each refusal to have a cause: n slots held at one moment of its call. It
// looks at those before anything has happened, and at those after what has happened matters no
// more.
func (s *slotSimulation) checkRefusals() {
	for _, refusal := range s.refusals {
		if !s.first.IsZero() && !refusal.end.Before(s.first) && !refusal.start.After(s.quiet.Add(simSlotLife)) {
			continue
		}
		s.checked++
		if held := s.mostHeld(refusal.start, refusal.end); held < s.n {
			s.failures = append(s.failures, fmt.Sprintf("process %d is refused at %s though at most %d of %d are held",
				refusal.process, refusal.end.Sub(s.start), held, s.n))
		}
	}
}

// mostHeld returns how many slots are held at the moment of a time at which these are most: its
// start, or when one of them is asked for.
func (s *slotSimulation) mostHeld(start, end time.Time) int {
	most := 0
	for _, moment := range append(s.holds, slotHold{from: start}) {
		if moment.from.Before(start) || moment.from.After(end) {
			continue
		}
		held := 0
		for _, hold := range s.holds {
			if !hold.from.After(moment.from) && !hold.to.Before(moment.from) {
				held++
			}
		}
		most = max(most, held)
	}
	return most
}

func TestSlotSimulation(t *testing.T) {
	t.Parallel()
	requireSimSockets(t)
	first, count := max(1, *simSeed), *simSeeds
	if count == 0 {
		count = 10
		if testkit.RaceDetector {
			count = 5
		}
	}
	answers, checked, refused := map[string]int{}, 0, 0
	for seed := first; seed < first+count; seed++ {
		s := simulateSlots(t, seed)
		for answer, n := range s.answers {
			answers[answer] += n
		}
		checked, refused = checked+s.checked, refused+len(s.refusals)
		if len(s.failures) > 0 {
			t.Fatalf("seed %d violates:\n%s\ntrace:\n%s\n%s", seed, strings.Join(s.failures, "\n"),
				strings.Join(s.trace, "\n"), replaySlots(seed))
		}
	}
	t.Logf("%v; the cause of %d refusals of %d was looked for", answers, checked, refused)
}

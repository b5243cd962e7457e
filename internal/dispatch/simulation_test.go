package dispatch

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/memory"
)

// The simulation runs true dispatchers, breakers and probers in simulated time over a server that a
// seed drives.
//
// Simulated are one to three processes with a dispatcher each, and the one server they share:
// integer buckets behind a Transport. The seed draws the callers, what each asks when and how long
// its context lasts; and for each batch and ping its latency and its fault: late, hung, deaf to its
// context, denied, cut before or after it is done, a panic, a Goexit. It draws the number of
// connections, whether callers send inline, a flood of the queue, and when Close comes.
//
// Checked are, when something happens: what a caller is answered, and when, to the nanosecond
// (simulation_caller_test.go); what is sent, when, with which deadline, and in which order
// (simulation_server_test.go). Whenever nothing runs at an instant: the queue, slots, overdue
// batches, figures, and each step of the breaker against its table (simulation_check_test.go). The
// states of an answer are those of a model that does the calls one by one.
//
// Not drawn, and so different in each run of a seed: which of the goroutines that are ready at one
// instant goes first, and the prober's pauses. So -seed runs its seed several times. Not simulated
// are go-redis and real sockets, a log handler that hangs, and more than three processes. Not
// checked are memory, and how large batches are.
//
//	go test ./internal/dispatch -run TestSimulation -seed 123       one seed, 100 times or until it fails
//	go test ./internal/dispatch -run TestSimulation -seeds 100000 -timeout 0
//	go test ./internal/dispatch -run TestSimulation -seed 5000 -seeds 1000   seeds 5000 to 5999
var (
	firstSeed = flag.Uint64("seed", 0, "of TestSimulation: the first seed, or the only one")
	seeds     = flag.Uint64("seeds", 0, "of TestSimulation: how many seeds; 0 is 400, or the one")
)

const (
	replays      = 100 // how often one seed is run
	defaultSeeds = 400 // some two seconds on one core
)

func TestSimulation(t *testing.T) {
	first, count, step := max(1, *firstSeed), *seeds, uint64(1)
	switch {
	case count > 0:
	case *firstSeed != 0:
		count, step = replays, 0
	default:
		count = defaultSeeds
	}
	var next, failed, calls atomic.Uint64
	var longest atomic.Int64
	start := time.Now()
	more := func() (seed uint64, ok bool) {
		if failed.Load() > 0 {
			return 0, false
		}
		n := next.Add(1) - 1
		return first + n*step, n < count
	}
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(5 * time.Second):
				fmt.Printf("simulation: %d seeds from %d, %d calls, %s, longest run %s\n",
					next.Load(), first, calls.Load(), time.Since(start).Round(time.Second),
					time.Duration(longest.Load()).Round(time.Millisecond))
			}
		}
	}()
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for seed, ok := more(); ok; seed, ok = more() {
				began := time.Now()
				stuck := time.AfterFunc(5*time.Minute, func() {
					panic(fmt.Sprintf("seed %d has run for five minutes", seed))
				})
				s := simulate(t, seed)
				stuck.Stop()
				calls.Add(uint64(s.asked))
				longest.Store(max(longest.Load(), int64(time.Since(began))))
				if len(s.faults) > 0 && failed.Add(1) == 1 {
					t.Error(s.report())
				}
			}
		})
	}
	workers.Wait()
	close(done)
	t.Logf("%d runs, %d calls, %s", min(next.Load(), count), calls.Load(), time.Since(start).Round(time.Millisecond))
}

// simulation is one run. Its mutex guards everything that is not fixed at the start; it is locked
// before a dispatcher's.
type simulation struct {
	seed      uint64
	start     time.Time
	horizon   time.Duration // from then on the server is well
	processes []*process
	keys      []simKey
	poke      chan struct{} // something happens

	mu     sync.Mutex
	store  *memory.Store // what the server keeps
	model  *memory.Store // what it would keep if calls were done one by one
	ops    map[*Call]*simOp
	asked  int
	trace  []traceLine
	faults []string
	over   bool
}

// simKey is a key with its buckets.
type simKey struct {
	key     string
	hash    uint64
	others  []OtherKey
	buckets []bucket.Bucket
}

type traceLine struct {
	at   time.Duration
	who  int // the process
	text string
	args []any
}

// simulate runs a seed. A deadlock or a goroutine that is left is a fault too.
func simulate(t *testing.T, seed uint64) (s *simulation) {
	s = &simulation{seed: seed}
	defer func() {
		if p := recover(); p != nil {
			s.faults = append(s.faults, fmt.Sprint("the bubble panics: ", p))
		}
	}()
	synctest.Test(t, func(*testing.T) {
		// With GODEBUG=tracebacklabels=1 the trace of a panic says which seed it was.
		pprof.Do(context.Background(), pprof.Labels("seed", fmt.Sprint(seed)), func(context.Context) { s.run() })
	})
	return s
}

func (s *simulation) rand(of ...uint64) *rand.Rand {
	mixed := s.seed
	for _, n := range of {
		mixed = (mixed ^ n) * 0x9E3779B97F4A7C15
		mixed ^= mixed >> 29
	}
	return rand.New(rand.NewPCG(s.seed, mixed))
}

func (s *simulation) run() {
	r := s.rand()
	s.start, s.poke = time.Now(), make(chan struct{}, 1)
	s.store, s.model = memory.New(1<<13), memory.New(1<<13)
	s.ops = map[*Call]*simOp{}
	s.horizon = time.Duration(50+r.IntN([]int{100, 500, 4000}[r.IntN(3)])) * time.Millisecond
	if r.IntN(25) == 0 { // long enough for the pauses of inline sending
		s.horizon += 5 * time.Minute
	}
	s.drawKeys(r)
	for i := range 1 + max(0, r.IntN(6)-3) {
		s.processes = append(s.processes, newProcess(s, i, r))
	}
	go s.direct(r)
	for over := false; !over; {
		<-s.poke
		synctest.Wait()
		s.mu.Lock()
		for _, p := range s.processes {
			p.checkLocked()
		}
		over = s.over
		s.mu.Unlock()
	}
}

func (s *simulation) drawKeys(r *rand.Rand) {
	for i := range 1 + r.IntN(6) {
		k := simKey{key: fmt.Sprint("key ", i), hash: uint64(i) * 0x9E3779B97F4A7C15}
		kind := bucket.Kind(r.IntN(int(bucket.Kinds)))
		for j := range 1 + r.IntN(2) {
			burst, period := int64(1+r.IntN(40)), int64([]int{10, 100, 1000, 60_000}[r.IntN(4)])
			rate := burst
			if kind == bucket.Token {
				rate = int64(1 + r.IntN(50))
			}
			b, _ := bucket.New(kind, fmt.Sprint(kind, j), rate, burst, period)
			k.buckets = append(k.buckets, b)
		}
		if i > 0 && r.IntN(4) == 0 { // of the limits of another one, and of the same hash
			k.hash, k.buckets = s.keys[i-1].hash, s.keys[i-1].buckets
		}
		if len(k.buckets) == 2 && r.IntN(2) == 0 { // the second bucket is of a further key
			k.others = []OtherKey{{Key: fmt.Append(nil, "other ", i), From: 1}}
			if i > 0 && r.IntN(2) == 0 {
				k.key, k.hash, k.buckets = s.keys[i-1].key, s.keys[i-1].hash, s.keys[i-1].buckets
			}
		}
		s.keys = append(s.keys, k)
	}
}

// direct has callers come, ends the faults, has some more come, and closes.
func (s *simulation) direct(r *rand.Rand) {
	var callers sync.WaitGroup
	budget := 100 + r.IntN(100)
	if r.IntN(20) == 0 { // a maxWaiters, more than one batch takes
		p := s.processes[0]
		at := time.Duration(r.IntN(int(min(s.horizon, time.Second)/time.Millisecond))) * time.Millisecond
		for i := range 130 + r.IntN(600) {
			c := newCaller(s, p, 10_000+i)
			callers.Go(func() {
				time.Sleep(at + time.Duration(i%3)*time.Millisecond)
				c.ask(c.drawOp())
			})
		}
	}
	for i := 0; budget > 0; i++ {
		ops := min(budget, 1+r.IntN(30))
		budget -= ops
		c := newCaller(s, s.processes[i%len(s.processes)], i)
		callers.Go(func() { c.run(ops) })
	}
	for _, p := range s.processes {
		callers.Go(p.flood)
		callers.Go(p.closeEarly)
	}
	time.Sleep(s.horizon)
	callers.Wait()
	for _, p := range s.processes {
		callers.Go(func() { p.end(len(s.processes) + 1) })
	}
	callers.Wait()
	s.mu.Lock()
	for _, k := range s.keys {
		got, want := make([]bucket.State, len(k.buckets)), make([]bucket.State, len(k.buckets))
		s.store.Do(storeKey([]byte(k.key), k.others), k.buckets, bucket.Peek(1), got)
		s.model.Do(storeKey([]byte(k.key), k.others), k.buckets, bucket.Peek(1), want)
		for i := range got {
			if got[i].Level != want[i].Level {
				s.faultLocked("at the end %s is at level %d, want %d", k.key, got[i].Level, want[i].Level)
			}
		}
	}
	s.over = true
	s.mu.Unlock()
	s.happens()
}

// happens has the state checked when nothing runs any more.
func (s *simulation) happens() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

func (s *simulation) now() time.Duration { return time.Since(s.start) }

func (s *simulation) traceLocked(p *process, text string, args ...any) {
	s.trace = append(s.trace, traceLine{s.now(), p.index, text, args})
}

func (s *simulation) faultLocked(format string, args ...any) {
	text := fmt.Sprintf("%s: ", millis(s.now())) + fmt.Sprintf(format, args...)
	s.trace = append(s.trace, traceLine{s.now(), -1, "FAULT %s", []any{text}})
	s.faults = append(s.faults, text)
}

func millis(d time.Duration) string { return fmt.Sprintf("%.3f", float64(d)/1e6) }

// report says what is wrong, and the trace up to the first fault and a little further.
func (s *simulation) report() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d faults; times are in ms\n", s.seed, len(s.faults))
	for _, fault := range s.faults[:min(len(s.faults), 10)] {
		fmt.Fprintln(&b, "  ", fault)
	}
	until := len(s.trace)
	for i, line := range s.trace {
		if line.who < 0 {
			until = min(until, i+10)
			break
		}
	}
	const maxLines = 300
	fmt.Fprintf(&b, "trace, up to %d lines before the first fault:\n", maxLines)
	for _, line := range s.trace[max(0, until-maxLines):until] {
		fmt.Fprintf(&b, "%12s  %2d  "+line.text+"\n", append([]any{millis(line.at), line.who}, line.args...)...)
	}
	fmt.Fprintf(&b, "replay: go test ./internal/dispatch -run TestSimulation -seed %d", s.seed)
	return b.String()
}

// deadContext has ended, but does not say so to those who wait for it.
type deadContext struct{ context.Context }

func (deadContext) Err() error { return context.Canceled }

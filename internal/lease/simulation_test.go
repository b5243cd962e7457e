package lease

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// TestSimulation is guarantee 1 for leases. Several processes, each with a Cache, share the buckets
// of one key on a server that decides in integers, as the scripts do. A seed draws the limits, the
// load, the latency and what fails.
//
// A second set of the same buckets, the reference, is charged with each token at the moment of its
// use: at the server for what a caller takes there, in the process for what comes from a lease. It
// has the whole burst. Guarantee 1 says that the uses within any span t are at most burst + rate × t.
// That is the same as: the reference, which drains by the server's clock, never passes its capacity.
// There is no tolerance, not of one token.
var (
	simSeed  = flag.Uint64("seed", 0, "of TestSimulation: the first seed, or the only one, whose trace is printed")
	simSeeds = flag.Uint64("seeds", 0,
		"of TestSimulation: how many seeds; 0 is 500, with the race detector 100, or the one")
)

func TestSimulation(t *testing.T) {
	first, seeds := max(1, *simSeed), *simSeeds
	switch {
	case seeds > 0:
	case *simSeed != 0:
		s := newSimulation(first, exact)
		synctest.Test(t, func(*testing.T) { s.run() })
		t.Log(s.report())
		if s.violation != "" {
			t.Fail()
		}
		return
	case raceDetector:
		seeds = 100
	default:
		seeds = 500
	}
	all := search(t, first, seeds, exact)
	if all.first != "" {
		t.Error(all.first)
	}
	t.Logf("%d seeds, %d of them failed: %d trips, %d admissions from leases, %d tokens held for longer, "+
		"%d given back, %d of them left in a bucket, closest to the burst: seed %d, %.1f%% of H below it",
		seeds, all.failed.Load(), all.trips.Load(), all.leased.Load(), all.renewed.Load(), all.returned.Load(),
		all.left.Load(), all.closest, 100*all.slack)
	if all.leased.Load() < int64(seeds) {
		t.Error("there are hardly any leases: the simulation shows nothing")
	}
}

// TestSimulationIsSharp finds too many tokens used if the rule is a little weaker.
func TestSimulationIsSharp(t *testing.T) {
	for name, rule := range map[string]rule{
		"less room by a fifth":                    {room: 0.8},
		"tokens are held for twice as long":       {life: 2},
		"what has flowed back is given back, too": {allBack: true},
	} {
		t.Run(name, func(t *testing.T) {
			const seeds = 5000
			if all := search(t, 1, seeds, rule); all.failed.Load() == 0 {
				t.Errorf("none of %d seeds fails", seeds)
			}
		})
	}
}

// rule changes the rule that a simulation follows. Then it has token buckets alone, and the plan that
// finds most.
type rule struct {
	room    float64 // this part of the room for leases is kept
	life    int64   // lives are multiplied by it
	allBack bool    // a give-back claims all tokens
}

// exact is the rule as it is.
var exact = rule{}

// outcomes are those of many seeds.
type outcomes struct {
	trips, leased, renewed, returned, left, failed atomic.Int64

	mu      sync.Mutex
	first   string // the reports of the first seeds that failed
	closest uint64 // the seed whose uses came closest to the burst, of those with room for leases
	slack   float64
}

// search runs seeds in parallel. With another rule than the exact one, it ends when one has failed.
func search(t *testing.T, first, seeds uint64, rule rule) *outcomes {
	all := &outcomes{slack: 1}
	t.Run("seeds", func(t *testing.T) {
		for part := range uint64(4) {
			t.Run(fmt.Sprint(part), func(t *testing.T) {
				t.Parallel()
				for seed := first + part; seed < first+seeds && (rule == exact || all.failed.Load() == 0); seed += 4 {
					s := newSimulation(seed, rule)
					synctest.Test(t, func(*testing.T) { s.run() })
					all.add(s)
				}
			})
		}
	})
	return all
}

func (all *outcomes) add(s *simulation) {
	all.trips.Add(s.trips)
	all.leased.Add(s.leased)
	all.renewed.Add(s.renewed)
	all.returned.Add(s.returned)
	all.left.Add(s.left)
	all.mu.Lock()
	defer all.mu.Unlock()
	if s.violation != "" && all.failed.Add(1) <= 10 {
		all.first += s.report() + "\n"
	}
	if s.slack < all.slack {
		all.closest, all.slack = s.seed, s.slack
	}
}

// simulation is one run of a seed.
type simulation struct {
	seed      uint64
	rule      rule
	rand      *rand.Rand
	buckets   []bucket.Bucket
	ahead     *bucket.Bucket // the lease bucket; nil for windows
	full      []int64        // units of the whole bursts
	life      time.Duration
	phase     time.Duration // of the server's clock
	fast      int64         // the server's clock is faster by one in so many; 0 is as fast
	gap       time.Duration // between the calls of all, on average
	latency   time.Duration // one way, at most
	maxN      int64
	failures  int  // one in so many trips fails; 0 is none
	changes   bool // processes refund, reset and block
	restarts  bool // of the server, without what it held
	closes    bool // processes end, and others begin
	lateBacks bool // what is given back comes late, or never
	waves     bool // all processes are idle together, and busy together
	denials   bool // some calls are denied without a trip: these only count as wanted
	hoards    bool // processes take ahead what they do not use, and then all use all at once
	renews    bool // they hold it for as long as they can before
	processes []*simProcess

	start  time.Time
	events eventQueue
	draws  atomic.Uint64

	mu          sync.Mutex // guards everything below
	server      []simBucket
	lent        simBucket // the lease bucket
	reference   []simBucket
	extra       int64 // units that may be used on top of a full bucket, after a loss of data
	losses      int
	outstanding int64    // tokens taken ahead, and neither used nor given back
	trace       []string // up to the violation
	violation   string
	slack       float64 // the least distance to the burst, as a part of what may be held
	trips       int64
	leased      int64
	renewed     int64
	returned    int64 // tokens of give-backs
	left        int64 // of these in all buckets, those that were left
}

// simBucket is a bucket by the server's clock.
type simBucket struct {
	level   int64
	at      int64 // when the level was that
	end     int64 // of a window; 0 if there is none
	blocked int64 // until when
	record  simRecord
}

func newSimulation(seed uint64, rule rule) *simulation {
	r := rand.New(rand.NewPCG(seed, 7))
	s := &simulation{seed: seed, rule: rule, rand: r, slack: 1}
	set := s.drawLimits()
	for set.Life() == 0 {
		set = s.drawLimits()
	}
	s.life = set.Life()
	all := set.Ahead()
	s.buckets = append(s.buckets, set.Buckets(rules.Limits)...)
	slowest := 0.0 // tokens per millisecond, of the slowest limit
	for i := range s.buckets {
		b := &s.buckets[i]
		s.full = append(s.full, b.Capacity+b.Floor)
		perMS := float64(b.Burst) / float64(b.Period)
		if b.Kind == bucket.Token {
			perMS = float64(b.Drain) / float64(b.Cost)
		}
		if slowest == 0 || perMS < slowest {
			slowest = perMS
		}
	}
	if len(all) > len(s.buckets) {
		s.ahead = &all[len(s.buckets)]
		if rule.room > 0 {
			for i := range s.buckets {
				more := math.Ceil((1 - rule.room) * float64(2*s.ahead.Burst))
				s.buckets[i].Leave(-int64(more))
			}
		}
		s.life *= time.Duration(max(1, rule.life))
	}
	s.maxN = max(1, min(set.Burst()/4, 1+r.Int64N(8)))
	s.phase = time.Duration(r.Int64N(int64(ms)))
	s.fast = []int64{0, 0, 1025}[r.IntN(3)]
	s.latency = 1 + time.Duration(float64(s.life)*[]float64{0.001, 0.01, 0.1, 0.5}[r.IntN(4)])
	s.failures = []int{0, 0, 10, 30}[r.IntN(4)]
	s.changes, s.restarts, s.closes = r.IntN(4) == 0, r.IntN(6) == 0, r.IntN(4) == 0
	s.lateBacks, s.waves, s.denials = r.IntN(3) == 0, r.IntN(2) == 0, r.IntN(2) == 0
	s.hoards = r.IntN(2) == 0 || rule != exact
	if rule.allBack {
		s.changes, s.restarts, s.closes, s.lateBacks = false, false, true, true
	}
	load := []float64{0.3, 0.8, 1, 1.2, 3}[r.IntN(5)]
	s.gap = max(1, time.Duration(float64(ms)/slowest/load))
	s.server, s.reference = make([]simBucket, len(s.buckets)), make([]simBucket, len(s.buckets))
	processes := 1 + r.IntN(6)
	if s.renews = s.ahead != nil && s.hoards && (seed%4 == 0 || rule != exact && !rule.allBack); s.renews {
		processes += 1 + r.IntN(20)
	}
	for range processes {
		p := &simProcess{simulation: s}
		p.begin()
		s.processes = append(s.processes, p)
	}
	return s
}

// drawLimits draws limits with leases.
func (s *simulation) drawLimits() *rules.Set {
	r, set := s.rand, new(rules.Set)
	kind := bucket.Token
	if r.IntN(5) == 0 && s.rule == exact {
		kind = bucket.FixedWindow
	}
	scale := []int64{1, 1, 1, 50}[r.IntN(4)]
	for range []int{1, 1, 2, 3}[r.IntN(4)] {
		period := []int64{1, 7, 10, 50, 100, 333, 1000}[r.IntN(7)]
		if kind == bucket.FixedWindow {
			period = 10 + r.Int64N(200)
		}
		rate := scale * (1 + r.Int64N(4*period+20))
		burst := scale * (8 + r.Int64N(100))
		if kind == bucket.FixedWindow {
			burst = rate
		}
		b, ok := bucket.New(kind, "", rate, burst, period)
		if !ok {
			panic("too large")
		}
		set.Add(b)
	}
	set.AllowLeases(time.Duration(1+r.IntN(100)) * ms)
	return set
}

func (s *simulation) describe() string {
	text := fmt.Sprintf("%d processes, life %s, a call each %s, latency up to %s, n up to %d, failures 1/%d, "+
		"changes %t, closes %t, restarts %t, late backs %t, waves %t, denials %t, hoards %t, renews %t",
		len(s.processes), s.life, s.gap,
		s.latency, s.maxN, s.failures, s.changes, s.closes, s.restarts, s.lateBacks, s.waves, s.denials, s.hoards, s.renews)
	for _, b := range s.buckets {
		text += fmt.Sprintf("; kind %d: burst %d, floor %d, cost %d, drain %d, period %d", b.Kind, b.Burst, b.Floor,
			b.Cost, b.Drain, b.Period)
	}
	return text
}

// report prints a violation and its trace.
func (s *simulation) report() string {
	const most = 300
	return fmt.Sprintf("seed %d, %s\n%s\n%s\nreplay: go test ./internal/lease -run TestSimulation -seed %d -v",
		s.seed, s.describe(), strings.Join(s.trace[max(0, len(s.trace)-most):], "\n"),
		cmp.Or(s.violation, "no token too many is used"), s.seed)
}

func (s *simulation) note(format string, args ...any) {
	if s.violation == "" && *simSeed != 0 && *simSeeds == 0 {
		s.trace = append(s.trace, fmt.Sprintf("%12s  ", time.Since(s.start))+fmt.Sprintf(format, args...))
	}
}

func (s *simulation) violated(format string, args ...any) {
	s.note(format, args...)
	if s.violation == "" {
		s.violation = fmt.Sprintf("at %s ", time.Since(s.start)) + fmt.Sprintf(format, args...)
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
)

// situation is what all systems go through.
type situation struct {
	levels  int
	shared  bool // all callers have the same keys, with 200 of 1,000 slots held; else each its own, with 2 of 4 held
	rate    bool
	callers int
}

// situations returns all, in the order of the table.
func situations() []situation {
	var all []situation
	for _, s := range []situation{
		{levels: 1, shared: true}, {levels: 2, shared: true}, {levels: 3, shared: true},
		{levels: 3}, {levels: 3, rate: true},
	} {
		for _, s.callers = range []int{1, 16, 64} {
			if s.callers != 16 || s.levels == 3 && s.shared {
				all = append(all, s)
			}
		}
	}
	return all
}

func (s situation) slots() (slots, held int) {
	if s.shared {
		return 1000, 200
	}
	return 4, 2
}

// name is what -only matches.
func (s situation) name() string {
	slots, _ := s.slots()
	rate := ""
	if s.rate {
		rate = "/rate"
	}
	return fmt.Sprintf("levels=%d/slots=%d%s/callers=%d", s.levels, slots, rate, s.callers)
}

// ids returns the keys of a caller at the levels.
func (s situation) ids(caller int) []string {
	if s.shared {
		caller = 0
	}
	return slices.Repeat([]string{strconv.Itoa(1_000_000 + caller)}, s.levels)
}

// round is what one system did in one round. All figures are per request; times are microseconds.
type round struct {
	time                 float64 // wall time of the round
	admitted             float64 // median from the start of a request until it is admitted
	redisCPU, processCPU float64
	reads, commands      float64 // of Redis; what is sent together is one read
	denied, degraded     float64 // not admitted; decided by ginlimit without Redis
}

const (
	// inspections is how often a reading of the server's usage counts as a command and a read in the next.
	inspections = 3
	// rest is how long a round waits for what its system does in the background.
	rest = 10 * time.Millisecond
)

// result is what a system did in all rounds of a situation.
type result struct {
	system string
	rounds []round
}

// trial measures the systems in a situation: in each round every system once, in an order that is shuffled anew.
func trial(ctx context.Context, server *redisserver.Server, systems []system, s situation, o options) (
	found []result, err error) {
	if err := server.Client.FlushAll(ctx).Err(); err != nil {
		return nil, err
	}
	slots, held := s.slots()
	l := limits{slots: slices.Repeat([]int{slots}, s.levels), rate: s.rate}
	var all []*contestant
	for _, system := range systems {
		if !system.takesPart(l) {
			continue
		}
		c, err := system.start(server.Addr, l)
		if err != nil {
			return nil, err
		}
		defer c.end()
		keys := s.callers
		if s.shared {
			keys = 1
		}
		for i := range keys * held {
			release, ok := c.hold(ctx, s.ids(i/held)...)
			if !ok {
				return nil, fmt.Errorf("%s: no slot to hold", c.name)
			}
			defer release()
		}
		all, found = append(all, c), append(found, result{system: c.name})
	}
	callers := make([]*caller, s.callers)
	for i := range callers {
		callers[i] = newCaller(ctx, "/", s.ids(i)...)
	}
	order := rand.Perm(len(all))
	for n := range o.rounds + 1 {
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, i := range order {
			r, err := measure(ctx, server, all[i], callers, o.length)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", all[i].name, err)
			}
			if n > 0 { // the first is to warm up
				found[i].rounds = append(found[i].rounds, r)
			}
		}
	}
	return found, nil
}

// measure runs one round of a contestant and reads, before and after, what the process and Redis have used.
func measure(ctx context.Context, server *redisserver.Server, c *contestant, callers []*caller, length time.Duration) (
	round, error) {
	runtime.GC() // the garbage of the others
	redisBefore, err1 := server.Usage(ctx)
	processBefore, err2 := cpu()
	if err := errors.Join(err1, err2); err != nil {
		return round{}, err
	}
	wall, latencies, denied, degraded := send(c, callers, length)
	time.Sleep(rest)
	processAfter, err1 := cpu()
	redisAfter, err2 := server.Usage(ctx)
	if err := errors.Join(err1, err2, ctx.Err()); err != nil {
		return round{}, err
	}
	n := float64(len(latencies)) + denied + degraded
	slices.Sort(latencies)
	r := round{
		time:       float64(wall.Nanoseconds()) / 1e3 / n,
		redisCPU:   (redisAfter.CPU - redisBefore.CPU) * 1e6 / n,
		processCPU: (processAfter - processBefore).Seconds() * 1e6 / n,
		reads:      max(0, redisAfter.Reads-redisBefore.Reads-inspections) / n,
		commands:   max(0, redisAfter.Commands-redisBefore.Commands-inspections) / n,
		denied:     denied / n,
		degraded:   degraded / n,
	}
	if len(latencies) > 0 {
		r.admitted = float64(latencies[len(latencies)/2].Nanoseconds()) / 1e3
	}
	return r, nil
}

// send has every caller send one request after the other until the time is over. It returns how long each request
// waited until it was admitted.
func send(c *contestant, callers []*caller, length time.Duration) (
	wall time.Duration, latencies []time.Duration, denied, degraded float64) {
	var all sync.WaitGroup
	var notAdmitted, withoutRedis atomic.Int64
	own := make([][]time.Duration, len(callers))
	begin := time.Now()
	for i, caller := range callers {
		all.Go(func() {
			start := time.Now()
			for more := true; more; more = start.Sub(begin) < length { // once at least
				switch admitted := caller.call(c); {
				case caller.degraded():
					withoutRedis.Add(1)
				case !admitted:
					notAdmitted.Add(1)
				default:
					own[i] = append(own[i], caller.admitted.Sub(start))
				}
				start = time.Now()
			}
		})
	}
	all.Wait()
	return time.Since(begin), slices.Concat(own...), float64(notAdmitted.Load()), float64(withoutRedis.Load())
}

// cpu returns the CPU time of the process.
func cpu() (time.Duration, error) {
	var usage syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), err
}

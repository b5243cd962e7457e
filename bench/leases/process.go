package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

// askedProcess has the settings of a process in its environment.
const askedProcess = "BENCH_LEASES_PROCESS"

// settings are those of a process.
type settings struct {
	Addr           string
	Rate           int
	Lease          time.Duration
	PerSecond      float64 // requests of this process
	Seed           [2]uint64
	Drain          bool // takes the burst first
	WarmUp, Length time.Duration
}

// report is what a process prints at its end, about the requests after the warm-up.
type report struct {
	Asked, Admitted int
	Degraded        int     // decided without Redis, or an error
	CPU             float64 // seconds
	Latencies       []time.Duration
}

// beProcessIfAsked is one of the processes, and does not return, if the environment says so.
func beProcessIfAsked() {
	text := os.Getenv(askedProcess)
	if text == "" {
		return
	}
	var s settings
	err := json.Unmarshal([]byte(text), &s)
	if err == nil {
		err = s.run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run connects, prints a line, reads when to start, and prints its report at the end.
func (s settings) run(ctx context.Context) error {
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr}) // as in the quickstart
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		return err
	}
	policy, err := limiter.Policy("api", ginlimit.PerSecond(s.Rate), ginlimit.WithLease(s.Lease))
	if err != nil {
		return err
	}
	if _, err := policy.AllowUpTo(ctx, "client", s.drained()); err != nil {
		return err
	}
	var start int64
	fmt.Println("ready")
	if _, err := fmt.Scanln(&start); err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(s.Seed[0], s.Seed[1]))
	warm := time.Unix(0, start).Add(s.WarmUp)
	ask(ctx, policy, time.Unix(0, start), arrivals(r, s.PerSecond, s.WarmUp))
	time.Sleep(time.Until(warm))
	before, err := ownCPU()
	if err != nil {
		return err
	}
	found := ask(ctx, policy, warm, arrivals(r, s.PerSecond, s.Length))
	time.Sleep(time.Until(warm.Add(s.Length)))
	after, err := ownCPU()
	if err != nil {
		return err
	}
	found.CPU = (after - before).Seconds()
	return json.NewEncoder(os.Stdout).Encode(found)
}

// drained returns how many tokens the process takes at once when it connects.
func (s settings) drained() int {
	if s.Drain {
		return s.Rate
	}
	return 1
}

// arrivals returns when the requests of a Poisson stream arrive.
func arrivals(r *rand.Rand, perSecond float64, length time.Duration) []time.Duration {
	var all []time.Duration
	for at := r.ExpFloat64(); at < perSecond*length.Seconds(); at += r.ExpFloat64() {
		all = append(all, time.Duration(at/perSecond*float64(time.Second)))
	}
	return all
}

// ask sends each request when it arrives, whether the others are answered or not.
func ask(ctx context.Context, policy *ginlimit.Policy, start time.Time, arrivals []time.Duration) report {
	type decision struct {
		took               time.Duration
		admitted, degraded bool
	}
	decisions := make([]decision, len(arrivals))
	var all sync.WaitGroup
	for i, at := range arrivals {
		if early := time.Until(start.Add(at)); early > 0 {
			time.Sleep(early)
		}
		all.Go(func() {
			asked := time.Now()
			r, err := policy.Allow(ctx, "client")
			decisions[i] = decision{time.Since(asked), r.Allowed, err != nil || r.Source == ginlimit.FromLocal}
		})
	}
	all.Wait()
	found := report{Asked: len(decisions)}
	for _, d := range decisions {
		found.Latencies = append(found.Latencies, d.took)
		if d.admitted {
			found.Admitted++
		}
		if d.degraded {
			found.Degraded++
		}
	}
	return found
}

func ownCPU() (time.Duration, error) {
	var usage syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), err
}

// Command leases compares a policy with leases to the same policy without them, under the loads that people have:
// several processes, each with a Poisson stream of requests of one key. It prints a table in Markdown.
//
//	go run ./leases [-rounds 5] [-round 3s] [-only regexp]
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
)

// leaseLife is that of the policy with leases.
const leaseLife = 200 * time.Millisecond

// options are the flags, and what only a test sets.
type options struct {
	rounds         int
	warmUp, length time.Duration
	idle           time.Duration // how long an idle Redis is measured
	only           *regexp.Regexp
}

// situation is what both policies go through.
type situation struct {
	rate      int     // of the limit, a second; the burst is as large
	load      float64 // what is asked for, of the rate
	processes int
}

// name is what -only matches.
func (s situation) name() string {
	return fmt.Sprintf("rate=%d/load=%g/processes=%d", s.rate, s.load, s.processes)
}

// situations returns all, in the order of the table.
func situations() []situation {
	var all []situation
	for _, limit := range []struct {
		rate  int
		loads []float64
	}{
		{500, []float64{0.1, 0.5, 0.9, 1, 1.1, 1.6, 4}},
		{50_000, []float64{0.5, 0.9}},
	} {
		for _, load := range limit.loads {
			for _, processes := range []int{2, 8} {
				all = append(all, situation{limit.rate, load, processes})
			}
		}
	}
	return all
}

func main() {
	beProcessIfAsked()
	o := options{warmUp: time.Second, idle: 2 * time.Second}
	flag.IntVar(&o.rounds, "rounds", 5, "rounds in each situation, with leases and without in each")
	flag.DurationVar(&o.length, "round", 3*time.Second, "how long each is measured in a round, after a second to warm up")
	only := flag.String("only", "", "regular expression for the situations, like 'rate=500/load=(0.9|4)/processes=2$'")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if o.only, err = regexp.Compile(*only); err == nil {
		err = compare(ctx, o, os.Stdout, os.Stderr)
	}
	if err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// compare measures the situations.
func compare(ctx context.Context, o options, out, progress io.Writer) error {
	server, err := redisserver.Start(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	idle, err := idleCPU(ctx, server, o.idle)
	if err != nil {
		return err
	}
	start := time.Now()
	t := newTable(out)
	for _, s := range situations() {
		if !o.only.MatchString(s.name()) {
			continue
		}
		var with, without []round
		for n := range o.rounds { // in turns
			lives := []time.Duration{leaseLife, 0}
			if n%2 == 1 {
				slices.Reverse(lives)
			}
			for _, life := range lives {
				r, err := measure(ctx, server, s, life, n, o)
				if err != nil {
					return fmt.Errorf("%s: %w", s.name(), err)
				}
				r.redisCPU = max(0, r.redisCPU-idle*1e6/r.asked)
				if life > 0 {
					with = append(with, r)
				} else {
					without = append(without, r)
				}
			}
		}
		t.add(s, with, without)
		fmt.Fprintf(progress, "%s after %.0f s\n", s.name(), time.Since(start).Seconds())
	}
	t.end()
	return nil
}

// idleCPU returns how many seconds of CPU a second an idle server uses.
func idleCPU(ctx context.Context, server *redisserver.Server, length time.Duration) (float64, error) {
	before, err := server.Usage(ctx)
	if err != nil {
		return 0, err
	}
	time.Sleep(length)
	after, err := server.Usage(ctx)
	return (after.CPU - before.CPU) / length.Seconds(), err
}

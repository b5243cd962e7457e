// Command increx compares what a decision costs Redis: by its own commands, by the smallest script, and by ginlimit.
// INCREX is measured if the server has it; REDIS_SERVER names another server. It prints a table in Markdown.
//
//	go run ./increx [-rounds 9] [-round 300ms]
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
	"github.com/ginlimit/ginlimit/bench/internal/spread"
)

// options are the flags.
type options struct {
	rounds int
	length time.Duration
}

// situation is how decisions are asked for.
type situation struct {
	name     string
	clients  int
	limit    int // in an hour
	callers  int
	pipeline bool // one caller sends commands for as many together; ginlimit does that itself
}

// situations are the columns of the table. Nobody uses up the first limits; the last one denies everybody.
var situations = []situation{
	{"1 caller", 1000, plenty, 1, false},
	{"64 callers", 1000, plenty, 64, false},
	{"pipelines of 64", 1000, plenty, 64, true},
	{"64 callers, one client", 1, plenty, 64, false},
	{"64 callers, denied", 1000, 1, 64, false},
}

const plenty = 1_000_000_000

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 9, "rounds, each with all contestants in all situations")
	flag.DurationVar(&o.length, "round", 300*time.Millisecond, "how long each is measured in a round")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := compare(ctx, o, os.Stdout, os.Stderr); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// compare measures all contestants in turns, in a new order in each situation and round.
func compare(ctx context.Context, o options, out, progress io.Writer) error {
	server, err := redisserver.Start(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	all, err := contestants(ctx, server)
	if err != nil {
		return err
	}
	costs := make([][]float64, len(all)*len(situations))
	for n := range o.rounds {
		for i, s := range situations {
			for _, j := range rand.Perm(len(all)) {
				cost, err := measure(ctx, server, all[j], s, o.length)
				if err != nil {
					return fmt.Errorf("%s: %s: %w", all[j].name, s.name, err)
				}
				costs[j*len(situations)+i] = append(costs[j*len(situations)+i], cost)
			}
		}
		fmt.Fprintf(progress, "round %d of %d\n", n+1, o.rounds)
	}
	print(out, all, costs)
	return nil
}

// print writes the table: the median and the middle half of the rounds.
func print(out io.Writer, all []contestant, costs [][]float64) {
	head, line := "| Redis CPU, µs per decision |", "|---|"
	for _, s := range situations {
		head, line = head+" "+s.name+" |", line+"---|"
	}
	fmt.Fprintf(out, "%s\n%s\n", head, line)
	for j, c := range all {
		cells := []string{c.name}
		for i := range situations {
			cells = append(cells, spread.Of(costs[j*len(situations)+i]).Text(2))
		}
		fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | "))
	}
}

// measure returns the microseconds of Redis that a decision costs a contestant.
func measure(ctx context.Context, server *redisserver.Server, c contestant, s situation, length time.Duration) (float64,
	error) {
	if err := server.Client.FlushAll(ctx).Err(); err != nil {
		return 0, err
	}
	d, err := c.start(server.Addr, s)
	if err != nil {
		return 0, err
	}
	defer d.close()
	for i := range s.clients { // the connection, the script, and what a limit of one has
		if err := d.decide(ctx, []string{client(i)}); err != nil {
			return 0, err
		}
	}
	if _, err := run(ctx, d, s, length/5); err != nil {
		return 0, err
	}
	before, err1 := server.Usage(ctx)
	decided, err2 := run(ctx, d, s, length)
	after, err3 := server.Usage(ctx)
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return 0, err
		}
	}
	return (after.CPU - before.CPU) * 1e6 / float64(decided), nil
}

func client(i int) string { return "client:" + strconv.Itoa(i) }

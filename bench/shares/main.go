// Command shares compares a decision with shares with one without, on the same Redis. It prints tables in Markdown.
//
//	go run ./shares [-rounds 21] [-round 150ms] [-only regexp]
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
)

// options are the flags, and what only a test sets.
type options struct {
	rounds  int
	length  time.Duration
	only    *regexp.Regexp
	most    int // tenants at most, for a test
	profile string
}

func main() {
	o := options{most: 100_000}
	flag.IntVar(&o.rounds, "rounds", 21, "rounds in each situation, with and without shares once in each")
	flag.DurationVar(&o.length, "round", 150*time.Millisecond, "how long a round is")
	flag.StringVar(&o.profile, "profile", "", "file for a CPU profile of the rounds with shares")
	only := flag.String("only", "", "regular expression for the situations, like 'callers=64|memory'")
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

// compare measures all situations, and the memory of Redis.
func compare(ctx context.Context, o options, out, progress io.Writer) error {
	server, err := redisserver.Start(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	start := time.Now()
	t := table{out: out}
	for _, s := range situations() {
		if !o.only.MatchString(s.name()) {
			continue
		}
		s.tenants = min(s.tenants, o.most)
		with, without, err := trial(ctx, server, s, o)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name(), err)
		}
		t.add(s, with, without)
		fmt.Fprintf(progress, "%s after %.0f s\n", s.name(), time.Since(start).Seconds())
	}
	t.end()
	if !o.only.MatchString("memory") {
		return nil
	}
	tenants := min(10_000, o.most)
	each, err := memory(ctx, server, tenants)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nMemory of Redis for each of %d tenants that hold something: %.0f B\n", tenants, each)
	return nil
}

// Command inflight compares requests in flight at several levels: ginlimit, and the scripts that sub2api and
// LiteLLM publish, on the same Redis. It prints tables in Markdown.
//
//	go run ./inflight [-sub2api concurrency_cache.go] [-litellm parallel_request_limiter_v3.py] [-rounds 11]
//	    [-round 150ms] [-only regexp]
//
// The scripts are read from files of checkouts that the user has. Without a file, its system is left out.
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
	files
	rounds   int
	length   time.Duration
	only     *regexp.Regexp
	patience time.Duration // how long the slots of a dead process are waited for; LiteLLM forgets after 60 s
	others   int           // how many requests are sent beside those that are denied
}

func main() {
	holdIfAsked()
	o := options{patience: 11 * time.Second, others: 2000}
	flag.StringVar(&o.Sub2api, "sub2api", "", "backend/internal/repository/concurrency_cache.go of Wei-Shaw/sub2api")
	flag.StringVar(&o.LiteLLM, "litellm", "", "litellm/proxy/hooks/parallel_request_limiter_v3.py of BerriAI/litellm")
	flag.IntVar(&o.rounds, "rounds", 11, "rounds in each situation, every system once in each")
	flag.DurationVar(&o.length, "round", 150*time.Millisecond, "how long a system runs in a round")
	only := flag.String("only", "", "regular expression for the situations, like 'levels=3/|behaviour'")
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

// compare measures the systems in the situations, and then shows how they behave.
func compare(ctx context.Context, o options, out, progress io.Writer) error {
	systems, err := o.systems()
	if err != nil {
		return err
	}
	o.sayMissing(progress)
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
		found, err := trial(ctx, server, systems, s, o)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name(), err)
		}
		t.add(s, found)
		fmt.Fprintf(progress, "%s after %.0f s\n", s.name(), time.Since(start).Seconds())
	}
	t.end()
	if !o.only.MatchString("behaviour") {
		return nil
	}
	return behave(ctx, server, systems, o, out)
}

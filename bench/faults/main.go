// Command faults has Redis fail under ginlimit and its peers, each set up as its documentation says, and shows what
// clients see. It prints tables in Markdown.
//
//	go run ./faults [-rounds 3] [-only regexp] [-libraries regexp]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// options are what is compared, and how.
type options struct {
	rounds      int
	faults      []fault
	contestants []contestant // ginlimit first
	phases      phases
}

func main() {
	o := options{phases: phases{before: 2 * time.Second, during: 3 * time.Second, after: 2 * time.Second}}
	flag.IntVar(&o.rounds, "rounds", 1, "rounds; a figure is the median")
	only := flag.String("only", "", "regular expression for the faults, like 'frozen|OOM'")
	libraries := flag.String("libraries", "", "regular expression for the peers, like 'ulule|Fiber'")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // standard error is for progress
	redis.SetLogger(silent{})
	err := o.choose(*only, *libraries)
	if err == nil {
		err = compare(ctx, o, os.Stdout, os.Stderr)
	}
	if err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// choose takes the faults and peers whose names match.
func (o *options) choose(only, libraries string) error {
	name, err1 := regexp.Compile(only)
	peer, err2 := regexp.Compile(libraries)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	o.faults = slices.DeleteFunc(faults(), func(f fault) bool { return !name.MatchString(f.name) })
	o.contestants = slices.DeleteFunc(contestants(), func(c contestant) bool {
		return c.name != "ginlimit" && !peer.MatchString(c.name)
	})
	return nil
}

// silent drops what go-redis logs.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// compare has the libraries go through the faults, and writes the tables.
func compare(ctx context.Context, o options, out, progress io.Writer) error {
	var rows []row
	for _, f := range o.faults {
		rows = append(rows, row{f, make([][]outcome, len(o.contestants))})
	}
	for start, n := time.Now(), 1; n <= o.rounds; n++ {
		for _, r := range rows {
			for i, c := range o.contestants {
				found, err := c.run(ctx, r.fault, o.phases)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", r.fault.name, c.name, err)
				}
				r.outcomes[i] = append(r.outcomes[i], found)
			}
			fmt.Fprintf(progress, "round %d, %s: after %.0f s\n", n, r.fault.name, time.Since(start).Seconds())
		}
	}
	var names []string
	for _, c := range o.contestants {
		names = append(names, c.name)
	}
	report(out, names, rows)
	return nil
}

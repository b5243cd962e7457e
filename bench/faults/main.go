// Command faults has Redis fail under ginlimit and its peers, each set up as its documentation says, and shows what
// clients see. It prints tables in Markdown.
//
//	go run ./faults [-rounds 1] [-only regexp] [-libraries regexp]
package main

import (
	"context"
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

// options are the flags, and what only a test sets.
type options struct {
	rounds          int
	only, libraries *regexp.Regexp
	phases          phases
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
	var err error
	if o.only, err = regexp.Compile(*only); err == nil {
		if o.libraries, err = regexp.Compile(*libraries); err == nil {
			err = compare(ctx, o, os.Stdout, os.Stderr)
		}
	}
	if err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// silent drops what go-redis logs.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// compare has the libraries go through the faults, and writes the tables.
func compare(ctx context.Context, o options, out, progress io.Writer) error {
	all := slices.DeleteFunc(contestants(), func(c contestant) bool {
		return c.name != "ginlimit" && !o.libraries.MatchString(c.name)
	})
	var rows []row
	for _, f := range faults() {
		if o.only.MatchString(f.name) {
			rows = append(rows, row{f, make([][]outcome, len(all))})
		}
	}
	for start, n := time.Now(), 1; n <= o.rounds; n++ {
		for _, r := range rows {
			for i, c := range all {
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
	for _, c := range all {
		names = append(names, c.name)
	}
	for _, t := range tables() {
		t.write(out, names, rows)
	}
	return nil
}

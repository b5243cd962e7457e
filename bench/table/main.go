// Command table compares ginlimit with the other libraries. It prints a table in Markdown while it measures, and draws
// a plot if every situation of the plot was measured.
//
//	go run ./table [-rounds 11] [-round 120ms] [-only regexp] [-json rounds.json] [-plot plot.svg]
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/peers"
	"github.com/ginlimit/ginlimit/bench/internal/proxy"
)

// options are the flags.
type options struct {
	rounds int
	length time.Duration
	only   *regexp.Regexp
	json   string
	plot   string
}

func main() {
	proxy.RunIfAsked()
	var o options
	flag.IntVar(&o.rounds, "rounds", 11, "rounds in each situation, every library once in each")
	flag.DurationVar(&o.length, "round", 120*time.Millisecond,
		"how long a library runs in a round; with wrk whole seconds")
	only := flag.String("only", "", "regular expression for the situations to measure, like 'hot/|callers=64$|http'")
	flag.StringVar(&o.json, "json", "", "file for every round as JSON")
	flag.StringVar(&o.plot, "plot", "plot.svg", "file for the plot")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if o.only, err = regexp.Compile(*only); err == nil {
		err = compare(ctx, o, peers.All(), situations(), os.Stdout, os.Stderr)
	}
	if err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// compare measures the libraries in the situations.
func compare(ctx context.Context, o options, libraries []peers.Library, all []situation,
	out, progress io.Writer) error {
	contestants, end, err := startAll(ctx, libraries)
	if err != nil {
		return err
	}
	defer end()
	start := time.Now()
	t, measured := table{out: out}, map[string]results{}
	var rounds []Round
	for _, s := range all {
		if !o.only.MatchString(s.name) {
			continue
		}
		if s.tool != nil && !s.tool.installed() {
			fmt.Fprintf(progress, "no %s: apt-get install %s\n", s.tool.name, s.tool.debian)
			continue
		}
		if s.distance > 0 && runtime.GOOS != "linux" {
			fmt.Fprintf(progress, "%s needs Linux\n", s.name)
			continue
		}
		found, err := trial(ctx, s, contestants, o.rounds, o.length)
		if err != nil {
			return err
		}
		r := newResults(s, contestants, found)
		t.add(r)
		measured[s.name], rounds = r, append(rounds, found...)
		fmt.Fprintf(progress, "%s after %.0f s\n", s.name, time.Since(start).Seconds())
	}
	t.end()
	if o.json != "" {
		if err := writeJSON(o, rounds); err != nil {
			return err
		}
	}
	if drawing := plot(measured); drawing != nil && o.plot != "" {
		return os.WriteFile(o.plot, drawing, 0o644)
	}
	return nil
}

// writeJSON writes every round, and what they were measured with.
func writeJSON(o options, rounds []Round) error {
	data, err := json.MarshalIndent(struct {
		Go      string  `json:"go"`
		CPUs    int     `json:"cpus"`
		RoundMS float64 `json:"round_ms"`
		Rounds  []Round `json:"rounds"`
	}{runtime.Version(), runtime.NumCPU(), float64(o.length) / 1e6, rounds}, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(o.json, append(data, '\n'), 0o644)
}

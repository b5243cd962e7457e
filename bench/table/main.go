// Command table compares ginlimit with the other libraries: it runs the benchmarks, or reads their output
// from the file named as its argument, prints a table in Markdown, and writes a plot.
//
//	go run ./table [-count 5] [-decisions 10000] [-plot plot.svg] [output.txt]
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/perf/benchfmt"
)

func main() {
	count := flag.Int("count", 5, "how often each benchmark is run")
	decisions := flag.Int("decisions", 10_000, "decisions in each run")
	plotted := flag.String("plot", "plot.svg", "where the plot goes")
	flag.Parse()
	if err := compare(*count, *decisions, *plotted, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func compare(count, decisions int, plotted, file string) error {
	var output io.Reader
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		output = f
	} else {
		run := exec.Command("go", "test", "-run", "^$", "-bench", "Decisions|DistantRedis|HTTP", "-timeout", "2h",
			"-benchtime", strconv.Itoa(decisions)+"x", "-count", strconv.Itoa(count), ".")
		var out bytes.Buffer
		run.Stdout, run.Stderr = io.MultiWriter(&out, os.Stderr), os.Stderr
		if err := run.Run(); err != nil {
			return err
		}
		output = &out
	}
	m, err := read(output)
	if err != nil {
		return err
	}
	printTable(m)
	return os.WriteFile(plotted, plot(m), 0o644)
}

// measurements are the values of each unit, of each library in each situation.
type measurements struct {
	situations []string // in the order of the benchmarks
	values     map[string]map[string]map[string][]float64
}

func read(r io.Reader) (measurements, error) {
	m := measurements{values: map[string]map[string]map[string][]float64{}}
	reader := benchfmt.NewReader(r, "benchmarks")
	for reader.Scan() {
		result, ok := reader.Result().(*benchfmt.Result)
		if !ok {
			continue
		}
		name := string(result.Name)
		name, _, _ = strings.Cut(strings.TrimPrefix(name, "Benchmark"), "-")
		i := strings.LastIndexByte(name, '/')
		situation, library := name[:i], name[i+1:]
		if m.values[situation] == nil {
			m.situations = append(m.situations, situation)
			m.values[situation] = map[string]map[string][]float64{}
		}
		if m.values[situation][library] == nil {
			m.values[situation][library] = map[string][]float64{}
		}
		for _, v := range result.Values {
			m.values[situation][library][v.Unit] = append(m.values[situation][library][v.Unit], v.Value)
		}
	}
	if len(m.situations) == 0 {
		return m, errors.Join(errors.New("no benchmark in the output"), reader.Err())
	}
	return m, reader.Err()
}

// median returns that of a library's values of a unit, and whether there are any.
func (m measurements) median(situation, library, unit string) (float64, bool) {
	v := slices.Sorted(slices.Values(m.values[situation][library][unit]))
	if len(v) == 0 {
		return 0, false
	}
	return v[len(v)/2], true
}

// bestPeer returns the fastest other library.
func (m measurements) bestPeer(situation string) string {
	var best string
	for library := range m.values[situation] {
		if library == "ginlimit" || library == "nothing" {
			continue
		}
		this, _ := m.median(situation, library, "sec/op")
		if other, ok := m.median(situation, best, "sec/op"); !ok || this < other {
			best = library
		}
	}
	return best
}

// printTable prints a line for each situation: medians, and how many times as fast as the best peer ginlimit is.
func printTable(m measurements) {
	fmt.Println("| | µs per decision | best peer | times as fast | p99 | its p99 | allocations | Redis CPU | redis_rate's |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, s := range m.situations {
		peer := m.bestPeer(s)
		cell := func(library, unit string, scale float64, format string) string {
			v, ok := m.median(s, library, unit)
			if !ok {
				return ""
			}
			return fmt.Sprintf(format, v*scale)
		}
		ours, _ := m.median(s, "ginlimit", "sec/op")
		theirs, _ := m.median(s, peer, "sec/op")
		fmt.Printf("| %s | %s | %s %s | **%.2f** | %s | %s | %s | %s | %s |\n", label(s),
			cell("ginlimit", "sec/op", 1e6, "%.1f"), cell(peer, "sec/op", 1e6, "%.1f"), peer, theirs/ours,
			cell("ginlimit", "p99-µs", 1, "%.0f µs")+cell("ginlimit", "p99-ms", 1, "%.0f ms"),
			cell(peer, "p99-µs", 1, "%.0f µs")+cell(peer, "p99-ms", 1, "%.0f ms"),
			cell("ginlimit", "allocs/op", 1, "%.0f"), cell("ginlimit", "redis-cpu-µs/op", 1, "%.2f µs"), cell("redis_rate", "redis-cpu-µs/op", 1, "%.1f µs"))
	}
}

var labels = strings.NewReplacer("Decisions/", "", "DistantRedis", "1 ms to Redis", "HTTP", "HTTP with ab, 64 connections", "clients=1000000", "1,000,000 clients",
	"clients=1000", "1,000 clients", "hot", "one client", "refused", "all refused", "/callers=", ", callers: ")

func label(situation string) string { return labels.Replace(situation) }

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/peers"
)

// connections is how many a tool keeps alive. All are of one client.
const connections = "64"

// tool is a program that sends requests over HTTP.
type tool struct {
	name, debian string
	run          func(ctx context.Context, c *contestant, length time.Duration) (load, error)
}

// tools returns those that are known. Without one its situation is left out.
func tools() []*tool {
	return []*tool{{"wrk", "wrk", runWrk}, {"ab", "apache2-utils", runAB}}
}

func (t tool) installed() bool {
	_, err := exec.LookPath(t.name)
	return err == nil
}

// listen serves the engine over HTTP.
func (c *contestant) listen() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: c.engine}
	go func() { _ = server.Serve(listener) }()
	c.cleanup = append(c.cleanup, func() { _ = server.Close() })
	c.url = "http://" + listener.Addr().String() + "/"
	return nil
}

// runWrk runs wrk for whole seconds, since it knows no shorter time.
func runWrk(ctx context.Context, c *contestant, length time.Duration) (load, error) {
	seconds := strconv.Itoa(int(math.Ceil(length.Seconds())))
	out, err := exec.CommandContext(ctx, "wrk", "-t", "1", "-c", connections, "-d", seconds+"s", "--latency",
		"-H", peers.ClientHeader+": client", c.url).CombinedOutput()
	if err != nil {
		return load{}, fmt.Errorf("wrk: %w: %s", err, out)
	}
	n, err1 := number(out, `(\d+) requests in `)
	perSecond, err2 := number(out, `Requests/sec: +([\d.]+)`)
	p50, err3 := latency(out, `50% +(\S+)`)
	p99, err4 := latency(out, `99% +(\S+)`)
	wrong, _ := number(out, `Non-2xx or 3xx responses: (\d+)`) // or there is none
	l := load{decisions: int(n), wrong: int(wrong), p50: p50, p99: p99}
	if perSecond > 0 {
		l.wall = time.Duration(n / perSecond * float64(time.Second))
	}
	return l, errors.Join(err1, err2, err3, err4)
}

// abRequests is how many requests a second ab is given.
const abRequests = 30_000

// runAB runs ab with a number of requests that takes about the time.
func runAB(ctx context.Context, c *contestant, length time.Duration) (load, error) {
	dir, err := os.MkdirTemp("", "ab")
	if err != nil {
		return load{}, err
	}
	defer os.RemoveAll(dir)
	percentiles := filepath.Join(dir, "percentiles.csv")
	requests := max(200, int(length.Seconds()*abRequests))
	out, err := exec.CommandContext(ctx, "ab", "-l", "-q", "-k", "-c", connections, "-n",
		strconv.Itoa(requests), "-e", percentiles,
		"-H", peers.ClientHeader+": client", c.url).CombinedOutput()
	if err != nil {
		return load{}, fmt.Errorf("ab: %w: %s", err, out)
	}
	served, err := os.ReadFile(percentiles)
	if err != nil {
		return load{}, err
	}
	n, err1 := number(out, `Complete requests: +(\d+)`)
	perSecond, err2 := number(out, `Requests per second: +([\d.]+)`)
	p50, err3 := number(served, `(?m)^50,([\d.]+)`)
	p99, err4 := number(served, `(?m)^99,([\d.]+)`)
	wrong, _ := number(out, `Non-2xx responses: +(\d+)`) // or there is none
	l := load{decisions: int(n), wrong: int(wrong), p50: p50 * 1e3, p99: p99 * 1e3}
	if perSecond > 0 {
		l.wall = time.Duration(n / perSecond * float64(time.Second))
	}
	return l, errors.Join(err1, err2, err3, err4)
}

func number(out []byte, pattern string) (float64, error) {
	m := regexp.MustCompile(pattern).FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("no %s in %s", pattern, out)
	}
	return strconv.ParseFloat(string(m[1]), 64)
}

// latency returns microseconds.
func latency(out []byte, pattern string) (float64, error) {
	m := regexp.MustCompile(pattern).FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("no %s in %s", pattern, out)
	}
	d, err := time.ParseDuration(string(m[1]))
	return float64(d) / 1e3, err
}

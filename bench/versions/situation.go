package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
)

// situation is how requests come, and what limits them: a name of process/limits.go.
type situation struct {
	name              string
	callers, clients  int
	limits            string
	requestsOfOneTurn int
}

// denied limits each client to one request a day.
const denied = "denied"

// situations take a tenth of a second for each turn, about.
var situations = []situation{
	{"1 caller", 1, 1000, "token", 2000},
	{"2 callers", 2, 1000, "token", 3000},
	{"4 callers", 4, 1000, "token", 4000},
	{"16 callers", 16, 1000, "token", 10_000},
	{"64 callers", 64, 1000, "token", 20_000},
	{"512 callers", 512, 1000, "token", 30_000},
	{"one client, 16 callers", 16, 1, "token", 15_000},
	{"one client, 64 callers", 64, 1, "token", 40_000},
	{"one client, 512 callers", 512, 1, "token", 60_000},
	{"denied, 64 callers", 64, 1000, denied, 100_000},
	{"three limits, 16 callers", 16, 1000, "limits", 8000},
	{"AllOf of three, 1 caller", 1, 1000, "policies", 1000},
	{"AllOf of three, 64 callers", 64, 1000, "policies", 8000},
	{"slots, 16 callers", 16, 1000, "slots", 5000},
	{"slots, 16 callers in line for 4", 16, 1, "queue", 5000},
	{"lease, 64 callers", 64, 10, "lease", 40_000},
	{"shares, 64 callers", 64, 1000, "shares", 10_000},
}

// contestant is a process of a version, and its Redis.
type contestant struct {
	server *redisserver.Server
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
}

func start(ctx context.Context, program string) (*contestant, error) {
	server, err := redisserver.Start(ctx)
	if err != nil {
		return nil, err
	}
	c := &contestant{server: server, cmd: exec.CommandContext(ctx, program, server.Addr)}
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		c.out = json.NewDecoder(out)
		if c.in, err = c.cmd.StdinPipe(); err == nil {
			err = c.cmd.Start()
		}
	}
	if err != nil {
		server.Close()
		return nil, err
	}
	return c, nil
}

func (c *contestant) close() {
	_ = c.in.Close()
	_ = c.cmd.Wait()
	c.server.Close()
}

// run runs one turn, and returns the CPU that each decision took in µs, and its allocations.
func (c *contestant) run(ctx context.Context, s situation) (cpu, allocations float64, err error) {
	if s.limits == denied { // so that all denials are remembered
		if _, err := c.send(s, 0); err != nil {
			return 0, 0, err
		}
	}
	before, err := c.server.Usage(ctx)
	if err != nil {
		return 0, 0, err
	}
	done, err := c.send(s, s.requestsOfOneTurn)
	if err != nil {
		return 0, 0, err
	}
	after, err := c.server.Usage(ctx)
	if err != nil {
		return 0, 0, err
	}
	n := float64(s.requestsOfOneTurn)
	if float64(done.Wrong) > n/100 {
		return 0, 0, fmt.Errorf("%d wrong answers", done.Wrong)
	}
	return (done.CPU.Seconds() + after.CPU - before.CPU) * 1e6 / n, done.Allocations / n, nil
}

// done is what the process did.
type done struct {
	Wrong       int
	CPU         time.Duration
	Allocations float64
}

// send tells the process to make n requests.
func (c *contestant) send(s situation, n int) (d done, err error) {
	err = json.NewEncoder(c.in).Encode(map[string]any{
		"Callers": s.callers, "Clients": s.clients, "Requests": n, "Limits": s.limits,
	})
	if err != nil {
		return d, err
	}
	return d, c.out.Decode(&d)
}

package main

import (
	"context"
	"errors"
	"runtime"
	"syscall"
	"time"
)

// Round is what one library did in one round of a situation. All figures but Decisions are per
// decision; times are microseconds.
type Round struct {
	Situation  string  `json:"situation"`
	Library    string  `json:"library"`
	Round      int     `json:"round"`
	Place      int     `json:"place"` // in the order of this round
	Decisions  int     `json:"decisions"`
	Time       float64 `json:"time_us"` // the round's wall time
	P50        float64 `json:"p50_us"`
	P99        float64 `json:"p99_us"`
	P999       float64 `json:"p999_us"` // with a tool 0
	ProcessCPU float64 `json:"process_cpu_us"`
	RedisCPU   float64 `json:"redis_cpu_us"`
	// CPU of its Redis since this library's round before, as of expired keys
	RedisIdle   float64 `json:"redis_idle_cpu_us"`
	Allocations float64 `json:"allocations"`
	Commands    float64 `json:"redis_commands"` // those that scripts call are among them
	Reads       float64 `json:"redis_reads"`    // of a connection by Redis: what is sent together is one
	Wrong       float64 `json:"wrong"`          // another status than expected, or decided without Redis
}

// load is what was sent in a round.
type load struct {
	decisions, wrong int
	wall             time.Duration
	p50, p99, p999   float64 // µs
}

// inspections is how often a reading of a server's usage counts as a command and a read in the next.
const inspections = 3

// measure runs one round of a contestant and reads, before and after, what the process and its Redis have used.
func measure(ctx context.Context, c *contestant, run func() (load, error)) (Round, error) {
	runtime.GC() // the garbage of the others
	redisBefore, err1 := c.server.Usage(ctx)
	processBefore, err2 := usageOfProcess()
	if err := errors.Join(err1, err2); err != nil {
		return Round{}, err
	}
	l, err := run()
	if err != nil {
		return Round{}, err
	}
	processAfter, err1 := usageOfProcess()
	redisAfter, err2 := c.server.Usage(ctx)
	if err := errors.Join(err1, err2); err != nil {
		return Round{}, err
	}
	if l.decisions == 0 {
		return Round{}, errors.New("no decision in a round")
	}
	n := float64(l.decisions)
	var idle float64
	if c.redisCPU > 0 {
		idle = redisBefore.CPU - c.redisCPU
	}
	c.redisCPU = redisAfter.CPU
	return Round{
		Library: c.library.Name, Decisions: l.decisions,
		Time: float64(l.wall.Nanoseconds()) / 1e3 / n, P50: l.p50, P99: l.p99, P999: l.p999,
		ProcessCPU:  (processAfter.cpu - processBefore.cpu) * 1e6 / n,
		RedisCPU:    (redisAfter.CPU - redisBefore.CPU) * 1e6 / n,
		RedisIdle:   idle * 1e6 / n,
		Allocations: float64(processAfter.allocations-processBefore.allocations) / n,
		Commands:    max(0, redisAfter.Commands-redisBefore.Commands-inspections) / n,
		Reads:       max(0, redisAfter.Reads-redisBefore.Reads-inspections) / n,
		Wrong:       float64(l.wrong) / n,
	}, nil
}

type processUsage struct {
	cpu         float64 // seconds
	allocations uint64
}

func usageOfProcess() (processUsage, error) {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return processUsage{}, err
	}
	cpu := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	return processUsage{cpu.Seconds(), memory.Mallocs}, nil
}

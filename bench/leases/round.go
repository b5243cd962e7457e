package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
)

// round is what all processes did in one round. Times are microseconds; those of CPU and calls are per decision.
type round struct {
	asked, admitted      float64 // a second
	calls                float64 // of a script
	redisCPU, processCPU float64
	p50, p99             float64
	fairness             float64
	degraded             float64 // share of the decisions
}

// process is one that has been started.
type process struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

// startProcess starts a process and waits until it is connected.
func startProcess(ctx context.Context, s settings) (*process, error) {
	text, err1 := json.Marshal(s)
	program, err2 := os.Executable()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), askedProcess+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return nil, err
	}
	p := &process{cmd, in, bufio.NewReader(out)}
	if _, err := p.out.ReadString('\n'); err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	return p, nil
}

// measure runs the processes once, with leases of a life or none. Rounds of one number have the same requests.
//
// At the limit and above, a process takes the burst before the warm-up.
func measure(ctx context.Context, server *redisserver.Server, s situation, life time.Duration, number int,
	o options) (r round, err error) {
	if err := server.Client.FlushAll(ctx).Err(); err != nil {
		return r, err
	}
	ctx, end := context.WithCancel(ctx)
	var all []*process
	defer func() {
		end() // those that are still there after an error
		for _, p := range all {
			_ = p.cmd.Wait()
		}
	}()
	for i := range s.processes {
		p, err := startProcess(ctx, settings{
			Addr: server.Addr, Rate: s.rate, Lease: life, PerSecond: s.load * float64(s.rate) / float64(s.processes),
			Seed: [2]uint64{uint64(number), uint64(i)}, Drain: s.load >= 1 && i == s.processes-1,
			WarmUp: o.warmUp, Length: o.length,
		})
		if err != nil {
			return r, err
		}
		all = append(all, p)
	}
	start := time.Now()
	for _, p := range all {
		if _, err := fmt.Fprintln(p.in, start.UnixNano()); err != nil {
			return r, err
		}
	}
	time.Sleep(time.Until(start.Add(o.warmUp)))
	callsBefore, usageBefore, err1 := usage(ctx, server)
	time.Sleep(time.Until(start.Add(o.warmUp + o.length)))
	calls, used, err2 := usage(ctx, server)
	if err := errors.Join(err1, err2); err != nil {
		return r, err
	}
	var reports []report
	for _, p := range all {
		var found report
		if err := json.NewDecoder(p.out).Decode(&found); err != nil {
			return r, err
		}
		reports = append(reports, found)
	}
	r = sum(reports, o.length)
	n := r.asked * o.length.Seconds()
	r.calls, r.redisCPU = (calls-callsBefore)/n, (used-usageBefore)*1e6/n
	return r, nil
}

// usage returns how many calls of a script a server has had, and how many seconds of CPU it has used.
func usage(ctx context.Context, server *redisserver.Server) (calls, cpu float64, err error) {
	calls, err1 := redisserver.Info(ctx, server.Client, "commandstats", `cmdstat_evalsha:calls=(\d+)`)
	used, err2 := server.Usage(ctx)
	return calls, used.CPU, errors.Join(err1, err2)
}

// sum adds up what the processes report.
func sum(reports []report, length time.Duration) round {
	var asked, admitted, degraded int
	var cpu float64
	var latencies []time.Duration
	var shares []float64
	for _, p := range reports {
		asked, admitted, degraded, cpu = asked+p.Asked, admitted+p.Admitted, degraded+p.Degraded, cpu+p.CPU
		latencies = append(latencies, p.Latencies...)
		shares = append(shares, float64(p.Admitted)/float64(p.Asked))
	}
	slices.Sort(latencies)
	at := func(percent int) float64 {
		if len(latencies) == 0 {
			return 0
		}
		return float64(latencies[len(latencies)*percent/100]) / 1e3
	}
	n := float64(asked)
	return round{
		asked: n / length.Seconds(), admitted: float64(admitted) / length.Seconds(), processCPU: cpu * 1e6 / n,
		p50: at(50), p99: at(99), fairness: slices.Max(shares) / slices.Min(shares), degraded: float64(degraded) / n,
	}
}

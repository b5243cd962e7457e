package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
)

// situation is what callers do, with and without shares.
type situation struct {
	callers int
	tenants int  // that hold something
	denied  bool // the limit is far below what the callers ask for
}

// situations returns all, in the order of the table.
func situations() []situation {
	return []situation{
		{callers: 1, tenants: 1}, {callers: 1, tenants: 20}, {callers: 1, tenants: 1000}, {callers: 1, tenants: 100_000},
		{callers: 64, tenants: 1}, {callers: 64, tenants: 20}, {callers: 64, tenants: 100_000},
		{callers: 1, tenants: 20, denied: true}, {callers: 64, tenants: 20, denied: true},
	}
}

// name is what -only matches.
func (s situation) name() string {
	text := fmt.Sprintf("callers=%d/tenants=%d", s.callers, s.tenants)
	if s.denied {
		text += "/denied"
	}
	return text
}

// limit is one that nobody uses up, and from which hardly anything flows back meanwhile; or one of which hardly any
// request is admitted. Its burst is sixteen tokens for each tenant.
func (s situation) limit() ginlimit.Limit {
	if s.denied {
		return ginlimit.PerSecond(20).WithBurst(16 * s.tenants)
	}
	return ginlimit.PerMinute(100).WithBurst(16_000_000)
}

// contestant decides on one key, with shares or without.
type contestant struct {
	policies []*ginlimit.Policy // of each tenant; one without shares
	close    func()
}

const key = "all"

// start returns a contestant with a client and a limiter of its own, as in the quickstart. The deny cache is off where
// Redis is to decide on what is denied.
func start(ctx context.Context, addr string, s situation, shares bool) (*contestant, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	options := []ginlimit.LimiterOption{ginlimit.WithTimeout(time.Second), ginlimit.WithReplicas(1)}
	if s.denied {
		options = append(options, ginlimit.WithDenyCache(0))
	}
	limiter, err := ginlimit.NewLimiter(rdb, options...)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	c := &contestant{close: func() { _ = limiter.Close(); _ = rdb.Close() }}
	if !shares {
		policy, err := limiter.Policy("plain", s.limit())
		if err == nil {
			c.policies = []*ginlimit.Policy{policy}
			err = c.fill(ctx, s.tenants)
		}
		return c, err
	}
	policy, err := limiter.Policy("shared", s.limit(), ginlimit.WithShares(noTenant))
	if err != nil {
		return c, err
	}
	for i := range s.tenants {
		c.policies = append(c.policies, policy.Share(strconv.Itoa(1_000_000+i), 1))
	}
	return c, c.fill(ctx, s.tenants)
}

// fill charges the bucket a token for each tenant.
func (c *contestant) fill(ctx context.Context, tenants int) error {
	var all sync.WaitGroup
	var errs [64]error
	for n := range errs {
		all.Go(func() {
			for i := n; i < tenants && errs[n] == nil; i += len(errs) {
				_, errs[n] = c.policies[i%len(c.policies)].Allow(ctx, key)
			}
		})
	}
	all.Wait()
	return errors.Join(errs[:]...)
}

// round is what a contestant did in one round. All figures are per decision; times are microseconds.
type round struct {
	time                 float64 // wall time of the round
	redisCPU, processCPU float64
	reads                float64 // of Redis; what is sent together is one read
	denied               float64
}

const (
	// inspections is how often a reading of the server's usage counts as a command and a read in the next.
	inspections = 3
	// rest is how long a round waits for what its limiter does in the background.
	rest = 10 * time.Millisecond
)

// trial measures a situation: in each round with shares and without, in an order that is drawn anew.
func trial(ctx context.Context, server *redisserver.Server, s situation, o options) (with, without []round, err error) {
	if err := server.Client.FlushAll(ctx).Err(); err != nil {
		return nil, nil, err
	}
	var both [2]*contestant
	for i := range both {
		c, err := start(ctx, server.Addr, s, i == 1)
		if c != nil {
			defer c.close()
		}
		if err != nil {
			return nil, nil, err
		}
		both[i] = c
	}
	var found [2][]round
	for n := range o.rounds + 1 {
		first := rand.IntN(2)
		for _, i := range []int{first, 1 - first} {
			end, err := o.profileOf(n, i == 1)
			if err != nil {
				return nil, nil, err
			}
			r, err := measure(ctx, server, both[i], s, o.length)
			end()
			if err != nil {
				return nil, nil, err
			}
			if n > 0 { // the first is to warm up
				found[i] = append(found[i], r)
			}
		}
	}
	return found[1], found[0], nil
}

// profileOf begins a CPU profile if there is to be one, which is of the last round with shares.
func (o options) profileOf(n int, shares bool) (end func(), err error) {
	if o.profile == "" || n < o.rounds || !shares {
		return func() {}, nil
	}
	f, err := os.Create(o.profile)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { pprof.StopCPUProfile(); _ = f.Close() }, nil
}

// measure runs one round of a contestant and reads, before and after, what the process and Redis have used.
func measure(ctx context.Context, server *redisserver.Server, c *contestant, s situation, length time.Duration) (
	round, error) {
	runtime.GC() // the garbage of the other
	redisBefore, err1 := server.Usage(ctx)
	processBefore, err2 := cpu()
	if err := errors.Join(err1, err2); err != nil {
		return round{}, err
	}
	wall, decisions, denied, err := decide(ctx, c, s.callers, length)
	if err != nil {
		return round{}, err
	}
	time.Sleep(rest)
	processAfter, err1 := cpu()
	redisAfter, err2 := server.Usage(ctx)
	if err := errors.Join(err1, err2, ctx.Err()); err != nil {
		return round{}, err
	}
	n := float64(decisions)
	return round{
		time:       float64(wall.Nanoseconds()) / 1e3 / n,
		redisCPU:   (redisAfter.CPU - redisBefore.CPU) * 1e6 / n,
		processCPU: (processAfter - processBefore).Seconds() * 1e6 / n,
		reads:      max(0, redisAfter.Reads-redisBefore.Reads-inspections) / n,
		denied:     float64(denied) / n,
	}, nil
}

// decide has every caller ask for one tenant at random after the other until the time is over.
func decide(ctx context.Context, c *contestant, callers int, length time.Duration) (
	wall time.Duration, decisions, denied int64, err error) {
	var all sync.WaitGroup
	var n, no atomic.Int64
	errs := make([]error, callers)
	begin := time.Now()
	for i := range callers {
		all.Go(func() {
			random := rand.New(rand.NewPCG(rand.Uint64(), 0))
			for more := true; more; more = time.Since(begin) < length && errs[i] == nil { // once at least
				result, err := c.policies[random.IntN(len(c.policies))].Allow(ctx, key)
				if err == nil && result.Source == ginlimit.FromLocal {
					err = errors.New("a decision was made without Redis")
				}
				if n.Add(1); !result.Allowed {
					no.Add(1)
				}
				errs[i] = err
			}
		})
	}
	all.Wait()
	return time.Since(begin), n.Load(), no.Load(), errors.Join(errs...)
}

// memory returns how much memory of Redis each of some tenants needs that hold something.
func memory(ctx context.Context, server *redisserver.Server, tenants int) (each float64, err error) {
	if err := server.Client.FlushAll(ctx).Err(); err != nil {
		return 0, err
	}
	c, err := start(ctx, server.Addr, situation{callers: 1, tenants: 1}, true)
	if c != nil {
		defer c.close()
	}
	if err != nil {
		return 0, err
	}
	before, err := redisserver.Info(ctx, server.Client, "memory", `used_memory:(\d+)`)
	if err != nil {
		return 0, err
	}
	more, err := start(ctx, server.Addr, situation{callers: 1, tenants: tenants + 1}, true)
	if more != nil {
		defer more.close()
	}
	if err != nil {
		return 0, err
	}
	after, err := redisserver.Info(ctx, server.Client, "memory", `used_memory:(\d+)`)
	return (after - before) / float64(tenants), err
}

// cpu returns the CPU time of the process.
func cpu() (time.Duration, error) {
	var usage syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), err
}

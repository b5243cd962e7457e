package simulation_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// simPlan is all that a seed stands for.
type simPlan struct {
	seed            uint64
	algorithm       ginlimit.Algorithm
	timeout         time.Duration
	latency, jitter time.Duration // of the network, one way
	clock           time.Duration // how far the server's clock is ahead at first
	slots           bool          // calls take slots of InFlight, of which the reference knows nothing
	nodes           int           // masters; more than one are a cluster
	processes       []simProcess
	keys            []simKey
	calls           []simCall // in the order of their times
	faults          []simFault
}

// simProcess is how one process is configured.
type simProcess struct {
	client    redis.Options
	failure   ginlimit.FailureMode
	replicas  int
	denyOrNil *int // WithDenyCache
	inline    bool // callers send their calls themselves where they may
}

// simKey is a client under its limits, which may change.
type simKey struct {
	name     string
	versions [][]ginlimit.Limit
}

// simCall is one call of a limiter.
type simCall struct {
	at       time.Duration
	process  int
	key      int
	op       string
	n        int
	block    time.Duration
	patience time.Duration // the end of the caller's context, 0 if it has none
	cancels  bool          // it ends by being cancelled, not by a deadline
	retries  int           // how often a denied caller waits RetryAfter and asks again
}

func (c simCall) String() string {
	text := fmt.Sprintf("process %d: %s(client %d, n=%d)", c.process, c.op, c.key, c.n)
	if c.block > 0 {
		text += fmt.Sprintf(" for %s", c.block)
	}
	if c.patience > 0 {
		text += fmt.Sprintf(" with %s of patience", c.patience)
	}
	return text
}

// simRecovery and simTail are how long a run goes on after its faults, to see that decisions return
// to Redis: at first they need not ([simulation.excused]), and then they must have.
const (
	simRecovery = time.Second
	simTail     = 2500 * time.Millisecond
)

// newSimPlan draws a plan.
func newSimPlan(seed uint64) *simPlan {
	r := rand.New(rand.NewPCG(seed, 1))
	p := &simPlan{seed: seed}
	p.algorithm = pick(r, ginlimit.TokenBucket, ginlimit.TokenBucket, ginlimit.TokenBucket,
		ginlimit.FixedWindow, ginlimit.SlidingWindow)
	p.timeout = pick[time.Duration](r, 10, 20, 50, 50, 100, 120) * time.Millisecond
	p.latency = p.timeout/200 + upTo(r, p.timeout/60)
	p.jitter = upTo(r, p.latency/2)
	p.clock = upTo(r, time.Millisecond)
	p.nodes = pick(r, 1, 1, 1, 2+r.IntN(2))
	for range 1 + r.IntN(4) {
		p.processes = append(p.processes, newSimProcess(r, p.timeout))
	}
	for i := range 1 + r.IntN(4) {
		key := simKey{name: fmt.Sprint("client ", i)}
		periods := drawPeriods(r)
		before, after := drawLimits(r, p.algorithm, periods), drawLimits(r, p.algorithm, periods)
		if after[0].Rate == before[0].Rate { // they are to be told apart
			after[0].Rate++
		}
		key.versions = [][]ginlimit.Limit{before, after}
		if i > 0 && r.IntN(2) == 0 { // calls under the same limits share a command
			key.versions = p.keys[0].versions
		}
		p.keys = append(p.keys, key)
	}
	length := 500*time.Millisecond + upTo(r, 2*time.Second)
	p.drawCalls(r, 100, 0, length)
	for range pick(r, 0, 1, 1, 2, 3, 4) {
		p.faults = append(p.faults, p.drawFault(r, length))
	}
	quiet := length
	for _, f := range p.faults {
		quiet = max(quiet, f.end())
		if f.hard() && f.lasts > 4*p.timeout {
			p.drawCalls(r, 12, f.at, f.lasts)
		}
	}
	p.drawCalls(r, 5, quiet, simRecovery)
	p.drawCalls(r, 20, quiet+simRecovery, simTail)
	slices.SortStableFunc(p.calls, func(a, b simCall) int { return cmp.Compare(a.at, b.at) })
	return p
}

func pick[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }

// upTo draws a time, to the microsecond.
func upTo(r *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(d/time.Microsecond)+1)) * time.Microsecond
}

func newSimProcess(r *rand.Rand, timeout time.Duration) simProcess {
	p := simProcess{
		failure:  pick(r, ginlimit.FailLocal, ginlimit.FailLocal, ginlimit.FailOpen, ginlimit.FailClosed),
		replicas: 1 + r.IntN(4),
		client: redis.Options{
			Addr:                  simAddr.String(), // not a name: go-redis would look it up
			Protocol:              pick(r, 2, 3),
			ContextTimeoutEnabled: r.IntN(2) == 0,
			ReadTimeout:           pick(r, 0, 2*timeout, 4*timeout),
			DialerRetries:         pick(r, 0, 1),
			MinIdleConns:          pick(r, 0, 0, 2),
			// Nobody waits for a connection, though dials hang for 5 s and there are 8 reports a second: go-redis' timers of
			// those who do are shared by all bubbles, which is fatal.
			PoolSize:                 128 + r.IntN(8),
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		},
	}
	switch r.IntN(3) {
	case 0:
		p.denyOrNil = new(int)
	case 1:
		entries := 1 + r.IntN(64)
		p.denyOrNil = &entries
	}
	p.inline = r.IntN(2) == 0
	return p
}

// connect returns a client of a process: of the server, or of the cluster.
func (p *simPlan) connect(process int, dial func(context.Context, simPath) (net.Conn, error)) redis.UniversalClient {
	o := p.processes[process].client
	o.ClientName = strconv.Itoa(process)
	o.Dialer = func(ctx context.Context, _, addr string) (net.Conn, error) {
		return dial(ctx, simPath{process, simNodeAt(addr)})
	}
	if p.processes[process].inline {
		o.Dialer = redisstore.KeepsDeadlines(o.Dialer)
	}
	if p.nodes == 1 {
		return redis.NewClient(&o)
	}
	cluster := redis.ClusterOptions{
		ClientName: o.ClientName, Dialer: o.Dialer, Protocol: o.Protocol, ContextTimeoutEnabled: o.ContextTimeoutEnabled,
		ReadTimeout: o.ReadTimeout, DialerRetries: o.DialerRetries, MinIdleConns: o.MinIdleConns, PoolSize: o.PoolSize,
		MaintNotificationsConfig: o.MaintNotificationsConfig,
	}
	for node := range p.nodes {
		cluster.Addrs = append(cluster.Addrs, simNodeAddr(node))
	}
	return redis.NewClusterClient(&cluster)
}

func drawPeriods(r *rand.Rand) []time.Duration {
	all := []time.Duration{7, 50, 100, 250, 333, 1000, 3000, 10_000}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:pick(r, 1, 1, 1, 2, 3)]
}

// drawLimits draws limits that a hundred calls in a second or two exhaust.
func drawLimits(r *rand.Rand, a ginlimit.Algorithm, periods []time.Duration) (limits []ginlimit.Limit) {
	for _, ms := range periods {
		l := ginlimit.Limit{Rate: 1 + r.IntN(min(120, max(2, int(ms)/12))), Period: ms * time.Millisecond, Algorithm: a}
		if a == ginlimit.TokenBucket && r.IntN(2) == 0 {
			l.Burst = 1 + r.IntN(2*l.Rate)
		}
		limits = append(limits, l)
	}
	return limits
}

// drawCalls draws calls within a time: some alone, some of many callers at once.
func (p *simPlan) drawCalls(r *rand.Rand, calls int, from, length time.Duration) {
	gap := length / time.Duration(calls)
	at := from
	for calls > 0 && at < from+length {
		at += upTo(r, 2*gap)
		together := 1
		if r.IntN(6) == 0 {
			together = min(calls, 2+r.IntN(12))
		}
		calls -= together
		process, key := r.IntN(len(p.processes)), r.IntN(len(p.keys))
		for range together {
			c := p.drawCall(r, process, key)
			c.at = at
			if r.IntN(3) == 0 {
				c.at += upTo(r, p.latency)
			}
			p.calls = append(p.calls, c)
			if r.IntN(4) == 0 {
				process = r.IntN(len(p.processes))
			}
			if r.IntN(4) == 0 {
				key = r.IntN(len(p.keys))
			}
		}
		at += gap * time.Duration(together-1)
	}
}

func (p *simPlan) drawCall(r *rand.Rand, process, key int) simCall {
	limits := p.keys[key].versions[0]
	most := int(testkit.Burst(limits[0]))
	c := simCall{process: process, key: key, op: "AllowN", n: 1, retries: pick(r, 0, 0, 1, 2)}
	switch r.IntN(30) {
	case 0, 1, 2, 3:
		c.n = 1 + r.IntN(most)
	case 4:
		c.n = most + r.IntN(3)
	case 5, 6, 7, 8:
		c.op, c.n = "AllowUpTo", 1+r.IntN(2*most)
	case 9, 10:
		c.op = "Peek"
	case 11, 12:
		c.op, c.n = "Refund", 1+r.IntN(most)
	case 13:
		c.op, c.block = "Block", time.Millisecond+upTo(r, 100*time.Millisecond)
	case 14:
		c.op = "Reset"
	case 15, 16:
		c.op, c.patience = "Wait", time.Millisecond+upTo(r, 300*time.Millisecond)
		c.cancels = r.IntN(2) == 0
	}
	if r.IntN(10) == 0 && c.op != "Wait" {
		c.patience, c.cancels = 1+upTo(r, 4*p.latency), r.IntN(2) == 0
	}
	return c
}

package simulation_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
)

// slotPlan is everything that a seed of the simulation of slots stands for.
type slotPlan struct {
	*simPlan // processes, network and nodes
	levels   []slotLevel
	plans    bool // the number of the first level comes from the plan of its client
	changes  []slotChange
	queue    int           // how many requests of a client wait in a process; 0 is none
	wait     time.Duration // how long they wait
	requests []slotRequest
	local    bool // processes decide themselves while Redis does not
	late     bool // answers of Redis are often late
}

// slotLevel is a policy of AllOf, under whose keys requests are in flight.
type slotLevel struct {
	name string
	keys int
	n    []int // how many may be in flight, as each process has it
	rate int   // tokens a second, and the burst; 0 is no such limit
}

// slotChange gives a client of the first level another plan.
type slotChange struct {
	at  time.Duration
	key int
	n   int // 0 is a plan that does not limit requests in flight, so that the policy's number counts
}

// slotRequest is a request, or work that takes a slot by Reserve.
type slotRequest struct {
	at       time.Duration
	process  int
	keys     []int         // of each level
	holds    time.Duration // how long it is in flight
	patience time.Duration // until its client leaves; 0 is never
	acquires bool          // it is no request, and only counts at the first level
	panics   bool          // its handler panics in the end
}

// levelNames are the names of the policies.
var levelNames = [...]string{"api", "user", "account"}

func drawSlots(seed uint64) *slotPlan {
	r := rand.New(rand.NewPCG(seed, 17))
	p := &slotPlan{simPlan: &simPlan{seed: seed, slots: true, timeout: 50 * time.Millisecond}}
	p.nodes = pick(r, 1, 1, 1, 2, 3)
	if p.nodes > 1 { // levels are decided one after another, and go-redis follows some redirections after a pause
		p.timeout = 300 * time.Millisecond
	}
	p.latency = time.Duration(20+r.IntN(2000)) * time.Microsecond
	p.jitter = time.Duration(r.IntN(2000)) * time.Microsecond
	for range pick(r, 1, 2, 3, 4) {
		p.processes = append(p.processes, newSimProcess(r, p.timeout))
	}
	for _, name := range levelNames[:pick(r, 1, 1, 2, 3)] {
		p.levels = append(p.levels, p.drawLevel(r, name))
	}
	length := time.Duration(1+r.IntN(30)) * time.Second
	if p.plans = r.IntN(3) == 0; p.plans {
		for range r.IntN(10) {
			p.changes = append(p.changes, slotChange{upTo(r, length), r.IntN(p.levels[0].keys), pick(r, 0, 1, 1, 2, 3, 5, 20)})
		}
	}
	if r.IntN(3) == 0 {
		p.queue = pick(r, 1, 2, 5, 50)
		p.wait = time.Millisecond + upTo(r, pick(r, 100*time.Millisecond, 2*time.Second, 15*time.Second))
	}
	p.drawSlotFaults(r, length)
	requests, longest := 100+r.IntN(200), 20*time.Second
	if r.IntN(2) == 0 { // with room for most of them
		requests, longest = 20+r.IntN(100), pick(r, 100*time.Millisecond, 2*time.Second)
	}
	for range requests {
		p.drawRequests(r, length, longest)
	}
	if p.late = r.IntN(3) == 0; p.late {
		p.jitter = upTo(r, p.timeout)
		for i := range p.processes {
			// A cluster client would close most connections: a report's context ends before the four replies of a handshake.
			p.processes[i].client.ContextTimeoutEnabled = p.processes[i].client.ContextTimeoutEnabled && p.nodes == 1
		}
	}
	p.local = p.late || r.IntN(3) == 0
	return p
}

func (p *slotPlan) drawLevel(r *rand.Rand, name string) slotLevel {
	l := slotLevel{name: name, keys: pick(r, 1, 1, 2, 3), rate: pick(r, 0, 0, 0, 1+r.IntN(30))}
	n, differs := pick(r, 1, 1, 2, 3, 5, 20), r.IntN(4) == 0
	for range p.processes {
		if differs { // policies of one name may leave some of the slots to each other
			n = pick(r, 1, 2, 3, 5, 20)
		}
		l.n = append(l.n, n)
	}
	return l
}

// drawSlotFaults draws what happens. All of it together is shorter than what no slot is lost in.
func (p *slotPlan) drawSlotFaults(r *rand.Rand, length time.Duration) {
	outage := simSlotOutage
	for range r.IntN(4) {
		f := simFault{
			kind: pick(r, "freeze", "partition", "slow", "cut", "cut one", "half-open", "lost replies", "restart", "LOADING",
				"BUSY", "SCRIPT FLUSH", "die"),
			at: upTo(r, length), process: r.IntN(len(p.processes)), node: -1,
			lasts: max(0, min(outage, upTo(r, pick(r, 100*time.Millisecond, 2*time.Second, simSlotOutage)))),
		}
		f.extra = f.lasts / 10
		if p.nodes > 1 && r.IntN(2) == 0 {
			f.node = r.IntN(p.nodes)
		}
		outage -= f.lasts + simSlotFound // one may begin before Redis is found again after another
		p.faults = append(p.faults, f)
	}
	if p.nodes == 1 || r.IntN(4) == 0 {
		return
	}
	for range 1 + r.IntN(10) {
		p.faults = append(p.faults, simFault{kind: "move slot", at: upTo(r, length), process: -1, node: r.IntN(p.nodes),
			key: r.IntN(100), lasts: time.Millisecond + upTo(r, pick(r, 20*time.Millisecond, 400*time.Millisecond))})
	}
}

// drawRequests draws one request, or a few at once, that are in flight for up to longest.
func (p *slotPlan) drawRequests(r *rand.Rand, length, longest time.Duration) {
	q := slotRequest{at: upTo(r, length), process: r.IntN(len(p.processes)), acquires: r.IntN(2*len(p.levels)) == 0}
	q.holds = upTo(r, min(longest, pick(r, time.Millisecond, 50*time.Millisecond, time.Second, longest)))
	q.patience = pick(r, 0, 0, upTo(r, 20*time.Millisecond))
	for range pick(r, 1, 1, 1, 5) {
		q.keys = nil
		for _, l := range p.levels {
			q.keys = append(q.keys, r.IntN(l.keys))
		}
		p.requests = append(p.requests, q)
	}
}

// level returns the options of a process' policy of a level. The function returns what the plan of a client says.
func (p *slotPlan) level(i, process int, plan func(context.Context, string) int) (opts []ginlimit.PolicyOption) {
	l := p.levels[i]
	limits := l.limits(process)
	if i == 0 && p.plans {
		opts = append(opts, ginlimit.InFlight(l.n[process]),
			ginlimit.WithLimitFunc(func(ctx context.Context, client string) ([]ginlimit.Limit, error) {
				n := plan(ctx, client)
				if n == 0 && l.rate == 0 {
					return []ginlimit.Limit{ginlimit.Unlimited()}, nil
				} else if n == 0 {
					return []ginlimit.Limit{ginlimit.PerSecond(l.rate)}, nil
				}
				return append([]ginlimit.Limit{ginlimit.InFlight(n)}, limits[1:]...), nil
			}))
	} else {
		opts = append(opts, ginlimit.WithLimits(limits...))
	}
	if p.queue > 0 {
		opts = append(opts, ginlimit.WithQueue(p.queue, p.wait))
	}
	return append(opts, ginlimit.WithKey(func(c *gin.Context) (string, error) { return c.GetHeader(l.name), nil }))
}

// limits returns the limits of a level in a process: requests in flight first.
func (l *slotLevel) limits(process int) []ginlimit.Limit {
	limits := []ginlimit.Limit{ginlimit.InFlight(l.n[process])}
	if l.rate > 0 {
		limits = append(limits, ginlimit.PerSecond(l.rate))
	}
	return limits
}

// describe says how the levels are configured.
func (p *slotPlan) describe() string {
	var text strings.Builder
	text.WriteString(p.simPlan.describe())
	for _, l := range p.levels {
		fmt.Fprintf(&text, "%s: %d keys, in flight in each process %d, %d/s\n", l.name, l.keys, l.n, l.rate)
	}
	fmt.Fprintf(&text, "plans %t, a queue of %d for %s, local %t, late %t\n",
		p.plans, p.queue, p.wait, p.local, p.late)
	return text.String()
}

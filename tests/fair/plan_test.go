package fair_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// manner is how a tenant asks.
type manner uint8

const (
	greedy manner = iota // until it is denied, and again soon, whatever RetryAfter is
	polite               // for as much as it gets, and after RetryAfter
	light                // at random, for half its fair share
)

// String returns the manner in a word.
func (m manner) String() string { return [...]string{"greedy", "polite", "light"}[m] }

// tenant is one of those that share a limit.
type tenant struct {
	manner         manner
	weight         int
	least, most    int   // cost of a try
	every          int64 // milliseconds until it tries again; of a light one on average; 0 of a polite one
	joins, leaves  int64 // milliseconds
	process        int   // of its callers, or -1: each try is of another process
	tries, denials int   // of a light one in the steady time: first tries, and how many were denied
}

// plan is what a seed draws. Times are milliseconds.
type plan struct {
	seed    uint64
	limit   ginlimit.Limit
	perBusy int // tokens of the largest cost in the burst, for each unit of weight
	weights int // of all tenants
	tenants []tenant

	// The first tenant is alone until alone; all are there until some leave at leave. What a tenant took
	// alone has flowed back at steady and at again.
	alone, steady, leave, again, end int64

	processes         int // 0: the limiter is in the process alone
	faultAt, faultEnd int64
}

// bursts are the tokens of the largest cost in the burst, for each unit of weight.
var bursts = []int{2, 4, 8, 16, 32, 64}

// newPlan draws a plan. tries is about how many decisions it makes.
func newPlan(seed uint64, tries float64) *plan {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := &plan{seed: seed, perBusy: bursts[rng.IntN(len(bursts))]}
	n := 1 + rng.IntN(50)
	budget := tries / 4
	if rng.IntN(10) == 0 {
		budget *= 5
	}
	for n > 1 && float64(n*n*p.perBusy/2+200*n) > budget { // a large burst is paid back slowly
		n -= 1 + rng.IntN(n/2+1)
	}
	n = max(1, n)
	cost := []int{1, 1, 10, 100, 1000, 4000}[rng.IntN(6)]
	smallest := max(1, cost/5)
	if rng.IntN(10) == 0 {
		smallest = max(1, cost/100)
	}
	p.tenants = make([]tenant, n)
	for i := range p.tenants {
		t := &p.tenants[i]
		t.weight, t.most, t.process = 1, smallest+rng.IntN(cost-smallest+1), -1
		if rng.IntN(5) == 0 {
			t.weight = 2 + rng.IntN(9)
		}
		if t.least = t.most; rng.IntN(3) == 0 {
			t.least = smallest + rng.IntN(t.most-smallest+1)
		}
		if t.manner = manner(rng.IntN(3)); i == 0 {
			t.manner, t.most = manner(rng.IntN(2)), cost
			t.least = cost
		}
		p.weights += t.weight
	}
	// A tenant of weight 1 gets the largest cost once in this time.
	interval := int64(50 + rng.IntN(500))
	rate := max(1, int64(cost*p.weights)*1000/interval)
	p.limit = ginlimit.Limit{Rate: int(rate), Period: time.Second, Burst: p.perBusy * cost * p.weights}
	p.schedule(rng, interval)
	admissions, own := 0.0, make([]float64, n) // own is how often a tenant gets its cost
	for i := range p.tenants {
		t := &p.tenants[i]
		own[i] = float64(interval) / float64(t.weight) * float64(t.least+t.most) / float64(2*cost)
		admissions += float64(p.end) / own[i]
	}
	zeal := max(1, min(100, tries/admissions))
	for i := range p.tenants {
		t := &p.tenants[i]
		switch t.manner {
		case greedy:
			t.every = max(1, int64(own[i]/(1+zeal*rng.Float64())))
		case light:
			t.every = max(1, int64(2*own[i]))
		}
	}
	return p
}

// schedule draws when tenants join and leave.
func (p *plan) schedule(rng *rand.Rand, interval int64) {
	fill := int64(p.limit.Burst)*1000/int64(p.limit.Rate) + 1
	if rng.IntN(2) == 0 {
		p.alone = fill/2 + interval
	}
	joined := p.alone
	for i := range p.tenants {
		t := &p.tenants[i]
		if i > 0 {
			t.joins = p.alone
			if rng.IntN(3) == 0 {
				t.joins += rng.Int64N(fill)
			}
			joined = max(joined, t.joins)
		}
	}
	// A tenant of weight w alone takes up to w/(1+w) of the burst, and pays it back at its fair rate.
	p.steady = joined + fill*int64(p.weights)/2 + fill
	p.leave = p.steady + 100*interval
	p.again = p.leave + 3*fill
	p.end = p.again
	for i := range p.tenants {
		p.tenants[i].leaves = 1 << 60
	}
	if len(p.tenants) > 2 && rng.IntN(2) == 0 {
		for i := range p.tenants {
			if rng.IntN(3) == 0 {
				p.tenants[i].leaves = p.leave
			}
		}
		p.end = p.again + 100*interval
	}
}

// String returns the plan in a few lines.
func (p *plan) String() string {
	s := fmt.Sprintf("seed %d: %s, %d tokens of the largest cost for each unit of weight, %d processes; "+
		"alone until %d ms, steady %d to %d ms, again %d to %d ms, fault %d to %d ms\n", p.seed, p.limit, p.perBusy,
		p.processes, p.alone, p.steady, p.leave, p.again, p.end, p.faultAt, p.faultEnd)
	for i, t := range p.tenants {
		s += fmt.Sprintf("  tenant %d: %s, weight %d, costs %d to %d, every %d ms, from %d to %d ms\n",
			i, t.manner, t.weight, t.least, t.most, t.every, t.joins, t.leaves)
	}
	return s
}

// What LiteLLM's priority reservations are documented to have got wrong. 6,000 tokens a minute are
// shared.
var upstream = ginlimit.Limit{Rate: 6000, Period: time.Minute, Burst: 800}

// onEveryShare runs a test on every backend, with the policy of each tenant.
func onEveryShare(t *testing.T, test func(t *testing.T, of func(tenant string, weight int) *ginlimit.Policy)) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := testkit.NewPolicy(t, b.Limiter, "upstream", upstream, ginlimit.WithShares(noTenant))
		test(t, p.Share)
	})
}

// TestLiteLLMReservationsUnderLoadAreAllCounted: limit and reservations were skipped silently, and teams
// passed the model's capacity (BerriAI/litellm#35422). Here 200 callers reserve and settle at once, and
// together never have more than there is.
func TestLiteLLMReservationsUnderLoadAreAllCounted(t *testing.T) {
	onEveryShare(t, func(t *testing.T, of func(string, int) *ginlimit.Policy) {
		const callers, estimate, actual = 200, 20, 5
		var reserved, admitted atomic.Int64
		var all sync.WaitGroup
		release := make(chan struct{})
		for i := range callers {
			p := of(fmt.Sprint("key ", i%4), 1)
			all.Go(func() {
				r, err := p.Reserve(t.Context(), "model", estimate)
				if err != nil || !r.Result().Allowed {
					return
				}
				reserved.Add(estimate)
				admitted.Add(1)
				<-release
				_ = r.Settle(context.WithoutCancel(t.Context()), actual) // an outage is an error though it is made
			})
		}
		time.Sleep(2 * time.Second) // all have an answer, and 200 tokens have flowed back
		require.LessOrEqual(t, reserved.Load(), int64(upstream.Burst))
		require.Greater(t, reserved.Load(), int64(upstream.Burst/2), "four tenants get four fifths of the burst and more")
		close(release)
		all.Wait()
		time.Sleep(time.Second)

		// What was not used is back: one of the four has room for half the burst again.
		used := admitted.Load() * actual
		require.Less(t, used, int64(300))
		res := testkit.Must(of("key 0", 1).AllowN(t.Context(), "model", 300))
		require.True(t, res.Allowed, "what was reserved and not used is given back")
	})
}

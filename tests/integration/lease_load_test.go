package integration

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Leases at the loads that people have: several processes ask for one key at random times, below its
// limit, at it and far above it.

const (
	loadLife = 200 * time.Millisecond
	loadWarm = 3 * time.Second // until the burst is gone, and Redis' clock is trusted
	loadTime = 9 * time.Second
	// maxLate is how late a machine may be to ask, so that only leases decide who is admitted. On a
	// busier machine the test asserts no more than the bound. If a call had no answer within this time,
	// a machine that was half as late counts as busy: both wait for the same processor.
	maxLate = 100 * time.Millisecond
)

// poisson is a load on some keys. The limit's burst is its rate.
type poisson struct {
	limit     ginlimit.Limit
	of        float64 // the limit
	processes int
	keys      int
	calls     float64 // to Redis for each decision, at most

	scriptCalls int // after the warm-up

	mu     sync.Mutex
	seen   [][]seen // by key
	shares []int    // tokens that each process was granted after the warm-up
	late   time.Duration
	lost   bool // a call had no answer
}

// TestLeasesUnderLoad: no load has more admitted than burst + rate × time. Who asks for less than the
// limit is never denied. Who asks for more gets all of it, in equal shares. And few decisions need a
// call to Redis.
func TestLeasesUnderLoad(t *testing.T) { // not beside other tests, which would make the machine busy
	// Who gets what is left is a matter of chance, which many keys even out. The standard deviation of a
	// share is about 3 % with two processes, 6 % with eight.
	underLoad(t, 2, 1, 0.15, &poisson{limit: ginlimit.PerSecond(25), of: 4})
	underLoad(t, 8, 4, 0.3, &poisson{limit: ginlimit.PerSecond(50), of: 2})
}

// underLoad runs all loads of some processes at once. Each may call Redis factor times as often as with
// two processes.
func underLoad(t *testing.T, processes int, factor, apart float64, fair *poisson) {
	fair.processes, fair.keys, fair.calls = processes, 16, 1
	loads := []*poisson{fair}
	for of, calls := range map[float64]float64{0.5: 0.06, 0.9: 0.04, 1: 0.06, 1.6: 0.04, 4: 0.02} {
		loads = append(loads, &poisson{
			limit: ginlimit.PerSecond(500), of: of, processes: processes, keys: 1, calls: calls * factor,
		})
	}
	var all sync.WaitGroup
	for _, p := range loads {
		start := p.prepare(t)
		all.Go(start)
	}
	all.Wait()
	for _, p := range loads {
		t.Run(fmt.Sprintf("%g × %s, %d processes", p.of, p.limit, p.processes), p.judge)
	}
	mean := 0.0
	for _, share := range fair.shares {
		mean += float64(share) / float64(processes)
	}
	for _, share := range fair.shares {
		if !fair.busy() {
			assert.InEpsilon(t, mean, share, apart, "shares %v", fair.shares)
		}
	}
}

// prepare starts a server and its processes, and returns what runs the load.
func (p *poisson) prepare(t *testing.T) (run func()) {
	addr := testkit.StartRedis(t)
	admin := testkit.Connect(t, addr)
	p.shares, p.seen = make([]int, p.processes), make([][]seen, p.keys)
	var policies []*ginlimit.Policy
	for range p.processes {
		policies = append(policies, testkit.NewPolicy(t, testkit.NewLimiter(t, testkit.ConnectDirect(t, addr),
			ginlimit.WithTimeout(maxLate)), "load",
			p.limit, ginlimit.WithLease(loadLife)))
	}
	return func() {
		var all sync.WaitGroup
		start := time.Now()
		for i, policy := range policies {
			for key := range p.keys {
				all.Go(func() { p.ask(t.Context(), policy, i, key, start) })
			}
		}
		<-time.After(time.Until(start.Add(loadWarm)))
		before := testkit.ScriptCalls(t, admin)
		<-time.After(time.Until(start.Add(loadWarm + loadTime)))
		p.scriptCalls = testkit.ScriptCalls(t, admin) - before
		all.Wait()
	}
}

// ask asks at random times, as independent clients do. None of them waits for another one.
func (p *poisson) ask(ctx context.Context, policy *ginlimit.Policy, process, key int, start time.Time) {
	gap := float64(time.Second) * float64(p.processes) / (p.of * float64(p.limit.Rate))
	var all sync.WaitGroup
	for next := random(gap); next < loadWarm+loadTime; next += random(gap) {
		<-time.After(time.Until(start.Add(next)))
		all.Go(func() {
			d := seen{at: time.Since(start)}
			d.r, d.err = policy.Allow(ctx, fmt.Sprint("hot ", key))
			d.took = time.Since(start) - d.at
			p.mu.Lock()
			defer p.mu.Unlock()
			p.seen[key] = append(p.seen[key], d)
			p.late, p.lost = max(p.late, d.at-next), p.lost || d.err != nil
			if d.r.Allowed && d.at > loadWarm {
				p.shares[process]++
			}
		})
	}
	all.Wait()
}

// random returns a random time between two calls of independent clients.
func random(mean float64) time.Duration { return time.Duration(rand.ExpFloat64() * mean) }

// busy reports whether the machine was too busy to show more than the bound.
func (p *poisson) busy() bool { return p.late > maxLate || p.lost && p.late > maxLate/2 }

func (p *poisson) judge(t *testing.T) {
	// A policy with leases is decided by its burst less twice what flows back in a life. What processes
	// hold is not left for others.
	lent := float64(p.limit.Rate) * loadLife.Seconds()
	capacity := float64(p.limit.Rate) - 2*lent
	asked, admitted, denied, expected, fullest := 0, 0, 0, 0, 0
	for _, all := range p.seen {
		slices.SortFunc(all, func(a, b seen) int { return cmp.Compare(a.at, b.at) })
		var granted []admission
		without, least := newSimpleBucket(p.limit, capacity), newSimpleBucket(p.limit, capacity-lent)
		for _, d := range all {
			if d.err != nil {
				require.True(t, p.busy(), "%s, up to %s late", d.err, p.late)
			}
			if d.r.Allowed {
				granted = append(granted, admission{d.at, d.at + d.took, 1})
			}
			fits, fitsLeast := without.take(d.at), least.take(d.at)
			if d.at <= loadWarm {
				continue
			}
			asked++
			switch {
			case d.r.Allowed:
				admitted++
			case fits:
				denied++
			}
			if fitsLeast {
				expected++
			}
		}
		fullest = max(fullest, fullestSpan(p.limit, granted))
	}
	perDecision := float64(p.scriptCalls) / float64(asked)
	say(t, "%d of %d admitted, %d without leases; %.4f calls for each decision, %d of a burst of %d in the fullest "+
		"span, shares %v, up to %s late", admitted, asked, expected, perDecision, fullest, p.limit.Rate, p.shares, p.late)
	assert.LessOrEqual(t, fullest, p.limit.Rate)
	if p.busy() {
		return
	}
	assert.LessOrEqual(t, perDecision, p.calls)
	if p.of < 1 {
		assert.Zero(t, denied, "denied, and allowed without leases")
		return
	}
	used := 0.98
	if p.processes == 2 {
		used = 0.99
	}
	assert.GreaterOrEqual(t, float64(admitted), used*float64(expected))
}

// simpleBucket is a token bucket without leases.
type simpleBucket struct {
	rate, capacity, level float64 // tokens
	at                    time.Duration
}

func newSimpleBucket(limit ginlimit.Limit, capacity float64) *simpleBucket {
	return &simpleBucket{rate: float64(limit.Rate), capacity: capacity, level: capacity}
}

func (b *simpleBucket) take(at time.Duration) bool {
	b.level = min(b.capacity, b.level+(at-b.at).Seconds()*b.rate)
	b.at = at
	if b.level < 1 {
		return false
	}
	b.level--
	return true
}

package fair_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"


	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// newProcessPlan draws a plan of several processes.
func newProcessPlan(seed uint64) *plan {
	p := newPlan(seed, 1500)
	rng := rand.New(rand.NewPCG(seed, 3))
	p.processes = 1 + rng.IntN(8)
	if rng.IntN(2) == 0 {
		p.faultAt = rng.Int64N(p.steady)
		p.faultEnd = p.faultAt + 500 + rng.Int64N(5000)
		// The bucket may be full when Redis is back, and whoever comes first takes much of it again.
		const recovers = 10000
		later := p.faultEnd + recovers
		p.steady, p.leave, p.again, p.end = p.steady+later, p.leave+later, p.again+later, p.end+later
		for i := range p.tenants {
			if t := &p.tenants[i]; t.leaves < 1<<60 {
				t.leaves = p.leave
			}
		}
	}
	return p
}

// TestProcessSimulation has the processes' callers ask side by side. While Redis is away each process
// decides by its part of the limit.
func TestProcessSimulation(t *testing.T) {
	onSeeds(t, 2, func(t *testing.T, seed uint64) (l *ledger) {
		plan := newProcessPlan(seed)
		testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
			var limiters []*ginlimit.Limiter
			for range plan.processes {
				limiter := testkit.Must(ginlimit.NewLimiter(b.Connect(t), ginlimit.WithReplicas(plan.processes),
					ginlimit.WithLogger(slog.New(slog.DiscardHandler))))
				defer limiter.Close()
				limiters = append(limiters, limiter)
			}
			r := newRun(plan, limiters...)
			if plan.faultEnd > 0 {
				for at, message := range map[int64]string{plan.faultAt: "LOADING Redis is away", plan.faultEnd: ""} {
					timer := time.AfterFunc(time.Duration(at)*time.Millisecond, func() { b.Mini.SetError(message) })
					defer timer.Stop()
				}
			}
			r.all()
			r.forgets(t, b)
			l = r.ledger
		})
		l.finish()
		return l.fails(t)
	})
}

// forgets checks that Redis keeps no tenant of which nothing is left after the next charge, and nothing
// once the bucket is full.
func (r *run) forgets(t *testing.T, b *testkit.Bubble) {
	l, p := r.ledger, r.plan
	fill := int64(p.limit.Burst)*1000/int64(p.limit.Rate) + 1000
	r.sleep(max(r.now(), p.faultEnd) + fill + 31000) // and the breakers are closed
	testkit.Must(r.shares[0][0].AllowN(context.Background(), "upstream", p.tenants[0].most))
	for _, key := range b.Mini.Keys() {
		if !strings.Contains(key, "upstream") {
			continue
		}
		members, err := b.Mini.HKeys(key)
		if err != nil {
			continue // the bucket, or the bounds
		}
		named := 0
		for _, name := range members {
			if len(name) > 1 && strings.HasPrefix(name, ":") {
				named++
			}
		}
		if named != 1 {
			l.violate("%d tenants are kept, of which one holds something: %v", named, members)
		}
	}
	time.Sleep(time.Duration(fill) * time.Millisecond)
	for _, key := range b.Mini.Keys() {
		if strings.Contains(key, "upstream") {
			l.violate("%s is kept, though the bucket is full", key)
		}
	}
}

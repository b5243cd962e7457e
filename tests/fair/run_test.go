package fair_test

import (
	"container/heap"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// noTenant is the function of policies that serve no requests.
func noTenant(*gin.Context) (string, int) { return "", 0 }

// try is a try to come.
type try struct {
	at     int64
	order  uint64 // of tries of the same millisecond
	tenant int
	cost   int
	again  int // after as many denials; no other try follows it
}

// agenda is a heap of tries.
type agenda []try

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].order < a[j].order
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }

// Push implements [heap.Interface].
func (a *agenda) Push(x any) { *a = append(*a, x.(try)) }

// Pop implements [heap.Interface].
func (a *agenda) Pop() any {
	last := len(*a) - 1
	x := (*a)[last]
	*a = (*a)[:last]
	return x
}

// run is one run of a plan, in a bubble.
type run struct {
	plan   *plan
	start  time.Time
	rng    *rand.Rand
	agenda agenda
	// shares are, of each process, the policy of each tenant.
	shares [][]*ginlimit.Policy
	ledger *ledger
}

// newRun prepares a run with the limiter of each process.
func newRun(p *plan, limiters ...*ginlimit.Limiter) *run {
	r := &run{plan: p, start: time.Now(), rng: rand.New(rand.NewPCG(p.seed, 2)), ledger: newLedger(p)}
	for _, limiter := range limiters {
		policy, err := limiter.Policy("fair", p.limit, ginlimit.WithShares(noTenant))
		if err != nil {
			panic(err)
		}
		shares := make([]*ginlimit.Policy, len(p.tenants))
		for i, t := range p.tenants {
			shares[i] = policy.Share(fmt.Sprint("tenant ", i), t.weight)
		}
		r.shares = append(r.shares, shares)
	}
	for i, t := range p.tenants {
		r.plans(i, t.joins)
	}
	return r
}

func (r *run) now() int64 { return time.Since(r.start).Milliseconds() }

// sleep waits for a millisecond of the run.
func (r *run) sleep(until int64) {
	time.Sleep(time.Until(r.start.Add(time.Duration(until) * time.Millisecond)))
}

// plans adds a tenant's next try.
func (r *run) plans(tenant int, at int64) {
	t := &r.plan.tenants[tenant]
	cost := t.least + r.rng.IntN(t.most-t.least+1)
	heap.Push(&r.agenda, try{at, r.rng.Uint64(), tenant, cost, 0})
}

// asks makes a try.
func (r *run) asks(t try, process int) answer {
	res, err := r.shares[process][t.tenant].AllowN(context.Background(), "upstream", t.cost)
	if err != nil {
		panic(err)
	}
	return answer{tenant: t.tenant, cost: t.cost, process: process, first: t.again == 0, now: r.now(), Result: res}
}

// all makes all tries until the plan's end. Processes ask side by side.
func (r *run) all() {
	var answers []answer
	for len(r.agenda) > 0 && r.agenda[0].at < r.plan.end {
		now := max(r.now(), r.agenda[0].at)
		r.sleep(now)
		var tries []try
		for len(r.agenda) > 0 && r.agenda[0].at <= now && (len(tries) == 0 || r.plan.processes > 0) {
			tries = append(tries, heap.Pop(&r.agenda).(try))
		}
		answers = append(answers[:0], make([]answer, len(tries))...)
		if r.plan.processes == 0 {
			answers[0] = r.asks(tries[0], 0)
		} else {
			var callers sync.WaitGroup
			for i, t := range tries {
				process := r.rng.IntN(len(r.shares))
				callers.Go(func() { answers[i] = r.asks(t, process) })
			}
			callers.Wait()
		}
		r.ledger.note(answers)
		for i, a := range answers {
			r.follows(tries[i], a)
		}
	}
}

// follows adds the try that follows an answer.
func (r *run) follows(made try, a answer) {
	t := &r.plan.tenants[made.tenant]
	if a.now >= t.leaves {
		return
	}
	switch {
	case t.manner != light && a.Allowed:
		r.plans(made.tenant, a.now)
	case t.manner == greedy:
		r.plans(made.tenant, made.at+t.every)
	case t.manner == polite:
		r.plans(made.tenant, a.now+a.RetryAfter.Milliseconds())
	default:
		if made.again == 0 {
			r.plans(made.tenant, made.at+int64(r.rng.ExpFloat64()*float64(t.every)+0.5))
		}
		if !a.Allowed && made.again < 10 { // then it gives up
			made.at, made.again = a.now+a.RetryAfter.Milliseconds(), made.again+1
			heap.Push(&r.agenda, made)
		}
	}
}

// waits checks RetryAfter: some tenants take what they get, one by one, and then one waits that nobody
// else disturbs. It is admitted then, and not two milliseconds before: RetryAfter is for a quarter of a
// thousandth of a token more than is needed, so that rounding never makes it too short.
func (r *run) waits() {
	for range 5 {
		for _, i := range r.rng.Perm(len(r.plan.tenants)) {
			for r.rng.IntN(3) > 0 && r.asksNow(i, r.plan.tenants[i].most).Allowed {
			}
		}
		i := r.rng.IntN(len(r.plan.tenants))
		a := answer{Result: ginlimit.Result{Allowed: true}}
		cost := r.plan.tenants[i].most
		for a.Allowed && len(r.ledger.violated) == 0 { // else nobody may ever be denied
			a = r.asksNow(i, cost)
		}
		if a.Allowed {
			return
		}
		r.sleep(a.now + max(0, a.RetryAfter.Milliseconds()-2))
		if early := r.asksNow(i, cost); early.Allowed {
			r.ledger.violate("RetryAfter %s of tenant %d for %d tokens is too long: 2 ms less are enough", a.RetryAfter, i, cost)
			continue
		}
		r.sleep(a.now + a.RetryAfter.Milliseconds())
		if late := r.asksNow(i, cost); !late.Allowed {
			r.ledger.violate("tenant %d waited RetryAfter %s for %d tokens, and is denied for %s more",
				i, a.RetryAfter, cost, late.RetryAfter)
		}
	}
}

// asksNow makes a try that is no part of the plan.
func (r *run) asksNow(tenant, cost int) answer {
	a := r.asks(try{tenant: tenant, cost: cost, again: 1}, r.rng.IntN(len(r.shares)))
	r.ledger.note([]answer{a})
	return a
}

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

// forgets checks that Redis keeps no tenant of which nothing is left after the next charge, and nothing two
// minutes after the bucket is full.
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
	time.Sleep(time.Duration(fill)*time.Millisecond + 2*time.Minute)
	for _, key := range b.Mini.Keys() {
		if strings.Contains(key, "upstream") {
			l.violate("%s is kept, though the bucket was full two minutes ago", key)
		}
	}
}

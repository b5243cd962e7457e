package integration

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Histories of requests of two policies with different costs are linearizable: at one moment a request
// takes of both, or of none as exactly those that deny it have too little. Each policy has two clients,
// so some requests share the one and not the other.
//
// The nodes of a cluster decide in turn. There each bucket alone is linearizable. What the first policy
// took of a request that the second one denies is given back before the request ends, or never if Redis
// is unavailable.

// severalLimits are the limits of the policies "requests", at a cost of 1, and "tokens".
var severalLimits = [2]ginlimit.Limit{ginlimit.PerDay(1).WithBurst(10), slowLimit}

// severalNames are the names of these policies.
var severalNames = [2]string{"requests", "tokens"}

// clientsOf returns the indices of the buckets of a request: of its first policy, and of its second one.
func clientsOf(o operation) [2]int { return [2]int{o.pair % 2, 2 + o.pair/2} }

// severalCosts returns what a request takes of each policy.
func severalCosts(o operation) [2]int { return [2]int{1, o.n} }

// sequentialBuckets is the model: its state is how many tokens are taken of each bucket.
var sequentialBuckets = porcupine.NondeterministicModel{
	Partition: byKey,
	Init:      func() []any { return []any{[4]int{}} },
	Step: func(state, input, output any) []any {
		before, in, out := state.([4]int), input.(operation), output.(outcome)
		after, denied := before, 0
		if in.verb == allowN {
			for i, at := range clientsOf(in) {
				if after[at] += severalCosts(in)[i]; after[at] > severalLimits[i].Burst {
					denied |= 1 << i
				}
			}
			if denied > 0 {
				after = before
			}
		} else if in.verb == refund {
			after[in.pair] = max(0, after[in.pair]-in.n)
		}
		switch in.verb {
		case peek:
			if !out.lost && out.several[0].Remaining != severalLimits[in.pair/2].Burst-after[in.pair] {
				return nil
			}
		case allowN:
			if out.lost {
				return []any{before, after}
			}
			for i, r := range out.several {
				want := ginlimit.Result{}
				if denied == 0 || denied&(1<<i) > 0 {
					want.Name, want.Allowed = severalNames[i], denied == 0
					want.Remaining = severalLimits[i].Burst - after[clientsOf(in)[i]]
				}
				if r.Name != want.Name || r.Allowed != want.Allowed || r.Remaining != want.Remaining {
					return nil
				}
			}
		case refund:
			if out.lost {
				return []any{before, after}
			}
		}
		return []any{after}
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(operation), output.(outcome)
		return fmt.Sprintf("%+v: lost %t, %+v", in, out.lost, out.several)
	},
}

// several is a process that serves requests of two policies.
type several struct {
	handler  gin.HandlerFunc
	policies [2]*ginlimit.Policy
}

func newSeveral(l *testkit.Limiter) *several {
	var p several
	for i, name := range severalNames {
		p.policies[i] = l.Must(name, severalLimits[i],
			ginlimit.WithKey(func(c *gin.Context) (string, error) { return c.GetString(name), nil }),
			ginlimit.WithCost(func(c *gin.Context) int { return c.GetInt("cost of " + name) }))
	}
	p.handler = ginlimit.AllOf(p.policies[:]...)
	return &p
}

// do makes a request, or does something to one bucket.
func (p *several) do(o operation) (out outcome, err error) {
	ctx, client := context.Background(), func(at int) string { return fmt.Sprintf("%s, %d", o.key, at) }
	switch o.verb {
	case peek:
		out.several[0], err = p.policies[o.pair/2].Peek(ctx, client(o.pair))
	case refund:
		err = p.policies[o.pair/2].Refund(ctx, client(o.pair), o.n)
	default:
		c, _ := gin.CreateTestContext(httptest.NewRecorder())
		c.Request = httptest.NewRequest(http.MethodGet, "/", nil)
		for i, at := range clientsOf(o) {
			c.Set(severalNames[i], client(at))
			c.Set("cost of "+severalNames[i], severalCosts(o)[i])
		}
		p.handler(c)
		if c.Writer.Status() == http.StatusServiceUnavailable {
			err = ginlimit.ErrUnavailable
		}
		for _, r := range ginlimit.Results(c) {
			for i, name := range severalNames {
				if r.Name == name {
					out.several[i] = r
				}
			}
		}
	}
	out.lost = err != nil
	return out, err
}

// ofOneBucket returns what an operation on a cluster is for each bucket, in the words of [sequentialBucket].
// Where it is strict, all that is taken of a denied request is given back.
func ofOneBucket(o porcupine.Operation, strict bool) (each []porcupine.Operation) {
	in, out := o.Input.(operation), o.Output.(outcome)
	add := func(at int, verb verb, n int, r ginlimit.Result, lost bool) {
		single := o
		if lost {
			single.Return = time.Hour.Nanoseconds()
		}
		single.Input = operation{key: fmt.Sprintf("%s, %d", in.key, at), verb: verb, n: n, burst: severalLimits[at/2].Burst}
		single.Output = outcome{result: r, lost: lost}
		each = append(each, single)
	}
	if in.verb != allowN {
		add(in.pair, in.verb, in.n, out.several[0], out.lost)
		return each
	}
	costs, clients := severalCosts(in), clientsOf(in)
	switch first, second := out.several[0], out.several[1]; {
	case out.lost:
		add(clients[0], refund, costs[0], ginlimit.Result{}, true)
		add(clients[0], allowN, costs[0], ginlimit.Result{}, true)
		add(clients[1], allowN, costs[1], ginlimit.Result{}, true)
	case first.Name == "": // what it left is not reported, and it is given back
		add(clients[0], allowN, costs[0], ginlimit.Result{Granted: costs[0], Source: ginlimit.FromOpen}, false)
		add(clients[0], refund, costs[0], ginlimit.Result{}, !strict)
		add(clients[1], allowN, costs[1], second, false)
	default:
		add(clients[0], allowN, costs[0], first, false)
		if second.Name != "" {
			add(clients[1], allowN, costs[1], second, false)
		}
	}
	return each
}

// recordSeveral has callers of several processes make requests of two policies. It reports whether calls
// were sent together.
func (h *history) recordSeveral(t *testing.T, disturb disturbance, strict bool) (merged bool) {
	h.verbs, h.keys = []verb{allowN, allowN, allowN, allowN, refund, peek}, 1
	var mu sync.Mutex
	processes := map[*testkit.Limiter]*several{}
	h.do = func(l *testkit.Limiter, o operation, _ ginlimit.Limit) (outcome, error) {
		mu.Lock()
		if processes[l] == nil {
			processes[l] = newSeveral(l)
		}
		p := processes[l]
		mu.Unlock()
		out, err := p.do(o)
		if !strict && o.verb == allowN && err == nil && out.several[0].Name == "" {
			h.lost.Add(1) // what is given back
		}
		return out, err
	}
	h.record(t, disturb)
	for l := range processes {
		stats := l.Stats()
		merged = merged || stats.Decisions > stats.Batches
	}
	return merged
}

func TestConcurrentRequestsOfTwoPoliciesAreLinearizable(t *testing.T) {
	t.Parallel()
	for name, disturb := range map[string]disturbance{
		"undisturbed":       undisturbed,
		"connections cut":   cutConnections,
		"scripts flushed":   flushScripts,
		"slow Redis":        delayReplies,
		"frozen Redis":      freezeServer,
		"replies swallowed": swallowReplies,
	} {
		for _, direct := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ContextTimeoutEnabled %t", name, direct), func(t *testing.T) {
				t.Parallel()
				h := newHistory(t, direct)
				merged := h.recordSeveral(t, disturb, true)
				h.check(t, sequentialBuckets.ToModel())
				if name == "slow Redis" {
					require.True(t, merged, "no requests shared a batch")
				}
			})
		}
	}
}

func TestConcurrentRequestsOfTwoPoliciesOnAClusterAreLinearizable(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		disturb disturbance
		strict  bool
	}{
		"undisturbed":     {undisturbed, true},
		"scripts flushed": {flushScripts, true},
		"frozen Redis":    {freezeServer, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addrs, nodes := testkit.StartClusterProcesses(t, 2)
			var opts []ginlimit.LimiterOption
			if row.strict {
				opts = append(opts, testkit.Patient())
			}
			h := newHistory(t, true, opts...)
			h.addr, h.server = addrs[0], nodes[0]
			h.connect = func() redis.UniversalClient {
				return redis.NewClusterClient(&redis.ClusterOptions{
					Addrs: addrs, ContextTimeoutEnabled: true, ReadTimeout: h.read, MaxRedirects: -1,
				})
			}
			if row.strict {
				h.read = time.Minute
			}
			h.recordSeveral(t, row.disturb, row.strict)
			if row.strict {
				require.Zero(t, h.lost.Load())
			}
			var each []porcupine.Operation
			for _, o := range h.operations {
				each = append(each, ofOneBucket(o, row.strict)...)
			}
			h.operations = each
			h.check(t, sequentialBucket.ToModel())
		})
	}
}

package integration

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Requests under several policies whose keys lie on different nodes of a cluster. The history of each bucket alone is
// linearizable: an allowed request takes its tokens at one moment. A denied one finds too few at one moment, or takes
// its tokens at one moment and gives them back at a later one, both before it returns. So nothing of it is missing
// afterwards, nor given twice. A request without a decision does both, or only the first, or neither, at any time.

// severalLimits are the limits of the policies, as slow as [slowLimit].
var severalLimits = []ginlimit.Limit{slowLimit, slowLimit.WithBurst(30), slowLimit.WithBurst(40)}

// severalHistory is what callers of several processes do and are told.
type severalHistory struct {
	addrs     []string
	processes []*os.Process
	proxies   []*testkit.Proxy
	limits    []ginlimit.Limit
	policies  [][]*ginlimit.Policy // of each process
	clients   [][]string           // of each policy, whose key lies on a node of that policy
	disturbs  bool
	mistake   func(p *ginlimit.Policy, client string, n int)

	mu        sync.Mutex
	all       []told
	lost      int
	disturbed [][2]int64
	now       bool // something disturbs
}

const severalKeys, severalRounds = 3, 2000

// newSeveralHistory starts a cluster, to be asked through proxies.
func newSeveralHistory(t *testing.T, direct bool, algorithm ginlimit.Algorithm,
	opts ...ginlimit.LimiterOption) *severalHistory {
	h := &severalHistory{proxies: make([]*testkit.Proxy, 3)}
	h.addrs, h.processes = testkit.StartClusterProcesses(t, 3)
	ways := map[string]string{}
	for i, addr := range h.addrs {
		h.proxies[i], ways[addr] = testkit.StartProxy(t, addr)
	}
	for i, l := range severalLimits {
		if algorithm != ginlimit.TokenBucket {
			l = ginlimit.PerDay(l.Burst).WithAlgorithm(algorithm)
		}
		h.limits = append(h.limits, l)
		h.clients = append(h.clients, clientsOn(fmt.Sprint("p", i), i))
	}
	for range processes {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: h.addrs, ContextTimeoutEnabled: direct, ReadTimeout: 200 * time.Millisecond,
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, ways[addr])
			},
		})
		t.Cleanup(func() { _ = rdb.Close() })
		limiter := testkit.NewLimiter(t, rdb, opts...)
		var policies []*ginlimit.Policy
		for i, l := range h.limits {
			name := fmt.Sprint("p", i)
			policies = append(policies, testkit.NewPolicy(t, limiter, name, l, testkit.Key(name),
				ginlimit.WithCost(func(c *gin.Context) int { return testkit.Must(strconv.Atoi(c.GetHeader("N" + name))) })))
		}
		h.policies = append(h.policies, policies)
	}
	return h
}

// clientsOn returns clients whose keys of a policy lie on one of three nodes.
func clientsOn(policy string, node int) (clients []string) {
	for i := 0; len(clients) < severalKeys*severalRounds; i++ {
		if client := fmt.Sprint("client ", i); hashSlot(policy+"|"+client)*3/16384 == node {
			clients = append(clients, client)
		}
	}
	return clients
}

// hashSlot returns the hash slot of a hash tag, by CRC-16/XMODEM.
func hashSlot(tag string) int {
	crc := uint16(0)
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			carry := crc >> 15
			crc = crc<<1 ^ carry*0x1021
		}
	}
	return int(crc % 16384)
}

// record has callers of all processes make random requests for a while.
func (h *severalHistory) record(t *testing.T, disturb disturbance) {
	seed, start := uint64(time.Now().UnixNano()), time.Now()
	say(t, "seed %d", seed)
	now := func() int64 { return time.Since(start).Nanoseconds() }
	goesOn := func() bool { // on a busy machine, until there is enough to check
		h.mu.Lock()
		defer h.mu.Unlock()
		passed, enough := time.Since(start), len(h.all) >= linearizableAnswers
		return passed < linearizableTime || !enough && passed < 10*linearizableTime
	}
	var all sync.WaitGroup
	for caller := range 4 * processes {
		all.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(caller)))
			for goesOn() {
				h.mu.Lock()
				round := (int(now()/1e8) + h.lost) % severalRounds // so that few calls of a key are lost
				h.mu.Unlock()
				asked := told{process: caller % processes, called: now()}
				for _, i := range random.Perm(len(h.limits))[:2+random.IntN(2)] {
					client := h.clients[i][round*severalKeys+random.IntN(severalKeys)]
					asked.parts = append(asked.parts, part{policy: i, n: 1 + random.IntN(maxTokens), client: client})
				}
				h.ask(t, asked, random.IntN(2) == 0, random.IntN(2) == 0, now)
				<-time.After(time.Duration(random.IntN(3000)) * time.Microsecond)
			}
		})
	}
	for i := 0; disturb != nil && time.Since(start) < linearizableTime-200*time.Millisecond; i++ {
		begin, node := now(), i%len(h.addrs)
		h.setDisturbed(true)
		disturb(t, h.addrs[node], h.processes[node], h.proxies[node])
		h.disturbed = append(h.disturbed, [2]int64{begin, now()})
		<-time.After(ginlimit.DefaultTimeout)
		h.setDisturbed(false)
		<-time.After(250 * time.Millisecond)
	}
	all.Wait()
	for _, proxy := range h.proxies {
		proxy.Delay.Store(0)
	}
	h.look(t, start)
}

// ask makes a request, by a handler or by ReserveAll, and may cancel what it took.
func (h *severalHistory) ask(t *testing.T, asked told, handler, cancel bool, now func() int64) {
	reservation, results, err := (*ginlimit.Reservation)(nil), []ginlimit.Result(nil), error(nil)
	if handler {
		results, err = h.request(asked)
	} else {
		var charges []ginlimit.Charge
		for _, p := range asked.parts {
			charges = append(charges, ginlimit.Charge{Policy: h.policies[asked.process][p.policy], Client: p.client, N: p.n})
		}
		if reservation, err = ginlimit.ReserveAll(context.Background(), charges...); err == nil {
			results = reservation.Results()
		}
	}
	if asked.failed = err != nil; err != nil {
		assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
		defer pause(time.Duration(rand.IntN(20)) * time.Millisecond)
	}
	asked.allowed = len(results) > 0 && results[0].Allowed
	for _, r := range results {
		at := slices.IndexFunc(asked.parts, func(p part) bool { return fmt.Sprint("p", p.policy) == r.Name })
		asked.parts[at].remaining, asked.parts[at].denies = r.Remaining, !r.Allowed
	}
	for _, p := range asked.parts {
		if h.mistake != nil && !asked.allowed && !asked.failed && !p.denies {
			h.mistake(h.policies[asked.process][p.policy], p.client, p.n)
		}
	}
	asked.returned = now()
	h.add(asked)
	if !asked.allowed || reservation == nil || !cancel {
		return
	}
	undone := told{process: asked.process, called: now(), parts: asked.parts, cancels: true}
	undone.failed = reservation.Cancel(context.Background()) != nil
	undone.returned = now()
	h.add(undone)
}

// request makes a request by a handler. It returns what was decided, in the order of its policies.
func (h *severalHistory) request(asked told) (results []ginlimit.Result, err error) {
	var policies []*ginlimit.Policy
	var edit []func(*http.Request)
	for _, p := range asked.parts {
		name := fmt.Sprint("p", p.policy)
		policies = append(policies, h.policies[asked.process][p.policy])
		edit = append(edit, testkit.With(name, p.client), testkit.With("N"+name, strconv.Itoa(p.n)))
	}
	look := func(c *gin.Context) {
		c.Next()
		results = ginlimit.Results(c)
	}
	response := testkit.Get(testkit.Serve(look, ginlimit.AllOf(policies...)), "/", edit...)
	if response.Code == http.StatusServiceUnavailable {
		return nil, ginlimit.ErrUnavailable
	}
	return results, nil
}

func (h *severalHistory) setDisturbed(now bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = now
}

func (h *severalHistory) add(a told) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all = append(h.all, a); a.failed || h.isLate(a) || h.now {
		h.lost++
	}
}

// look reads in the end what is left of each bucket: what is given back late was by then.
func (h *severalHistory) look(t *testing.T, start time.Time) {
	t.Helper()
	if h.disturbs {
		pause(3 * time.Second)
	}
	seen := map[string]bool{}
	var last []told
	for _, a := range h.all {
		for _, p := range a.parts {
			if id := fmt.Sprint(p.policy, p.client); !seen[id] {
				seen[id] = true
				called := time.Since(start).Nanoseconds()
				var left ginlimit.Result
				require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
					rows, err := h.policies[0][p.policy].Status(t.Context(), p.client)
					if err == nil {
						left = rows[0]
					}
					return err == nil
				}))
				p.remaining = left.Remaining
				last = append(last, told{called: called, returned: time.Since(start).Nanoseconds(), parts: []part{p}})
			}
		}
	}
	h.all = append(h.all, last...)
}

// isLate reports whether what a request has taken may be given back after it has returned: it has waited for that as
// long as for a decision.
func (h *severalHistory) isLate(a told) bool {
	return h.disturbs && a.returned-a.called > ginlimit.DefaultTimeout.Nanoseconds()
}

// isDisturbed reports whether a give-back of a request may have been lost.
func (h *severalHistory) isDisturbed(a told) bool {
	slack := ginlimit.DefaultTimeout.Nanoseconds()
	return h.isLate(a) || slices.ContainsFunc(h.disturbed, func(d [2]int64) bool {
		return a.called <= d[1]+slack && a.returned >= d[0]
	})
}

// buckets returns the history of each bucket.
func (h *severalHistory) buckets() map[string][]porcupine.Operation {
	all := map[string][]porcupine.Operation{}
	for id, a := range h.all {
		for _, p := range a.parts {
			kinds := []stepKind{borrows, givesBack}
			switch {
			case a.cancels && a.failed:
				kinds = []stepKind{mayGive}
			case a.cancels:
				kinds, id = []stepKind{givesBack}, -1
			case a.failed:
				kinds = []stepKind{mayTake}
			case a.allowed:
				kinds = []stepKind{takes}
			case p.denies:
				kinds = []stepKind{denies}
			case len(a.parts) == 1:
				kinds = []stepKind{looks}
			case h.isDisturbed(a): // its tokens may come back late, or not
				kinds = []stepKind{mayTake}
			}
			for _, kind := range kinds {
				name := fmt.Sprint(p.policy, p.client)
				all[name] = append(all[name], porcupine.Operation{
					ClientId: a.process, Input: step{p, kind, id}, Call: a.called, Return: a.returned,
				})
			}
		}
	}
	return all
}

// wrong returns the buckets whose history the model does not explain.
func (h *severalHistory) wrong(t *testing.T) (wrong []string) {
	model, kinds, canceled := bucketOfSeveral(h.limits), map[stepKind]int{}, 0
	buckets := h.buckets()
	for _, name := range slices.Sorted(maps.Keys(buckets)) {
		part := buckets[name]
		for _, o := range part {
			if kinds[o.Input.(step).kind]++; o.Input.(step).of < 0 {
				canceled++
			}
		}
		if result := porcupine.CheckOperationsTimeout(model, part, 5*time.Second); result != porcupine.Ok {
			wrong = append(wrong, fmt.Sprint(name, ": ", result))
			slices.SortFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
			for _, o := range part {
				t.Logf("%s: %d to %d µs %+v", name, o.Call/1000, o.Return/1000, o.Input)
			}
		}
	}
	say(t, "%d requests, %d uncertain, %d buckets; %d allowed, %d denied, %d of a denied one given back, %d canceled",
		len(h.all), h.lost, len(buckets), kinds[takes], kinds[denies], kinds[borrows], canceled)
	require.Greater(t, kinds[borrows], linearizableAnswers/20, "there is too little to check")
	return wrong
}

func TestSeveralPoliciesOnAClusterAreLinearizable(t *testing.T) {
	t.Parallel()
	type row struct {
		disturb   disturbance
		algorithm ginlimit.Algorithm
	}
	for name, row := range map[string]row{
		"undisturbed":       {},
		"fixed windows":     {nil, ginlimit.FixedWindow},
		"sliding windows":   {nil, ginlimit.SlidingWindow},
		"connections cut":   {disturb: cutConnections},
		"scripts flushed":   {disturb: flushScripts},
		"slow Redis":        {disturb: delayReplies},
		"frozen Redis":      {disturb: freezeServer},
		"replies swallowed": {disturb: swallowReplies},
	} {
		for _, direct := range []bool{false, true} {
			testkit.Run(t, fmt.Sprintf("%s, ContextTimeoutEnabled %t", name, direct), func(t *testing.T) {
				opts := []ginlimit.LimiterOption{testkit.Patient()}
				if row.disturb != nil {
					opts[0] = ginlimit.WithTimeout(ginlimit.DefaultTimeout)
				}
				h := newSeveralHistory(t, direct, row.algorithm, opts...)
				h.disturbs = row.disturb != nil
				h.record(t, row.disturb)
				require.Empty(t, h.wrong(t))
			})
		}
	}
}

// TestMistakesOfSeveralPoliciesAreFound: tokens of a denied request that are not given back, or given back twice.
func TestMistakesOfSeveralPoliciesAreFound(t *testing.T) {
	t.Parallel()
	for name, mistake := range map[string]func(p *ginlimit.Policy, client string, n int){
		"not given back": func(p *ginlimit.Policy, client string, n int) {
			_, _ = p.AllowN(context.Background(), client, n)
		},
		"given back twice": func(p *ginlimit.Policy, client string, n int) {
			_ = p.Refund(context.Background(), client, n)
		},
	} {
		testkit.Run(t, name, func(t *testing.T) {
			h := newSeveralHistory(t, false, ginlimit.TokenBucket, testkit.Patient())
			h.mistake = mistake
			h.record(t, nil)
			require.NotEmpty(t, h.wrong(t))
		})
	}
}

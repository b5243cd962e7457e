//go:build integration

package limits_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// severalClients are clients of redis-servers: one, one that may be several, a cluster, and a ring.
func severalClients(t *testing.T) map[string]redis.UniversalClient {
	all := map[string]redis.UniversalClient{
		"server":  testkit.Connect(t, testkit.StartRedis(t)),
		"wrapped": wrap(testkit.Connect(t, testkit.StartRedis(t))),
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{Addrs: testkit.StartCluster(t, 3)}),
		"ring": redis.NewRing(&redis.RingOptions{Addrs: map[string]string{
			"one": testkit.StartRedis(t), "two": testkit.StartRedis(t),
		}}),
	}
	t.Cleanup(func() {
		for _, name := range []string{"cluster", "ring"} {
			_ = all[name].Close()
		}
	})
	return all
}

// TestSeveralPoliciesOnServersEqualTheModel, in what is decided and in what is charged after each step.
func TestSeveralPoliciesOnServersEqualTheModel(t *testing.T) {
	t.Parallel()
	for name, rdb := range severalClients(t) {
		testkit.Run(t, name, func(t *testing.T) {
			for seed := range uint64(testkit.Steps(severalSeeds)) {
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					l := testkit.NewLimiter(t, rdb, ginlimit.WithPrefix(fmt.Sprint("seed", seed)))
					follow(t, place{source: ginlimit.FromRedis, real: true}, seed, severalSteps, l)
				})
			}
		})
	}
}

// TestAPolicyWhoseServerIsGoneGoesByItsFailureMode, and the others by their servers: one of three nodes of a cluster
// was killed.
func TestAPolicyWhoseServerIsGoneGoesByItsFailureMode(t *testing.T) {
	t.Parallel()
	addrs, processes := testkit.StartClusterProcesses(t, 3, "--cluster-require-full-coverage", "no",
		"--cluster-node-timeout", "60000")
	rdb := testkit.ConnectCluster(t, addrs...)
	l, slots := testkit.NewLimiter(t, rdb), testkit.Connect(t, addrs[1])
	gone := func(name, client string) bool {
		slot := testkit.Must(slots.ClusterKeySlot(context.Background(), "{"+name+"|"+client+"}").Result())
		return slot < 16384/3
	}
	require.True(t, testkit.Must(l.Allow(t.Context(), "k", ginlimit.PerHour(1))).Allowed)
	require.NoError(t, processes[0].Kill())
	for seed := range uint64(testkit.Steps(severalSeeds)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			l := testkit.NewLimiter(t, rdb, ginlimit.WithPrefix(fmt.Sprint("gone", seed)))
			follow(t, place{source: ginlimit.FromRedis, real: true, lost: gone}, seed, severalSteps, l)
		})
	}
}

// TestSeveralPoliciesOnAFullRedisEqualTheModel: it is full for some of the steps.
func TestSeveralPoliciesOnAFullRedisEqualTheModel(t *testing.T) {
	t.Parallel()
	for name, joint := range map[string]bool{"one script": true, "several scripts": false} {
		testkit.Run(t, name, func(t *testing.T) {
			server := testkit.Connect(t, testkit.StartRedis(t, "--maxmemory-policy", "noeviction"))
			rdb := redis.UniversalClient(server)
			if !joint {
				rdb = wrap(rdb)
			}
			fill := func(full bool) {
				bytes := map[bool]string{true: "1", false: "0"}[full]
				require.NoError(t, server.ConfigSet(t.Context(), "maxmemory", bytes).Err())
			}
			for seed := range uint64(testkit.Steps(severalSeeds)) {
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					defer fill(false)
					l := testkit.NewLimiter(t, rdb, ginlimit.WithPrefix(fmt.Sprint("full", seed)))
					at := place{source: ginlimit.FromRedis, real: true, fill: fill, joint: joint}
					follow(t, at, seed, severalSteps, l)
				})
			}
		})
	}
}

// TestAFullRedisKeepsNothingOfARequestThatFailsOrIsDenied, which is charged by commands that it obeys, and given back.
func TestAFullRedisKeepsNothingOfARequestThatFailsOrIsDenied(t *testing.T) {
	t.Parallel()
	for name, wrapped := range map[string]bool{"one script": false, "several scripts": true} {
		testkit.Run(t, name, func(t *testing.T) {
			server := testkit.Connect(t, testkit.StartRedis(t, "--maxmemory-policy", "noeviction"))
			memory := func(bytes string) { require.NoError(t, server.ConfigSet(t.Context(), "maxmemory", bytes).Err()) }
			rdb := redis.UniversalClient(server)
			if wrapped {
				rdb = wrap(rdb)
			}
			l := testkit.NewLimiter(t, rdb)
			limits := map[string][]ginlimit.PolicyOption{
				"bucket":  {ginlimit.PerDay(100)},
				"two":     {ginlimit.PerDay(100), ginlimit.PerHour(100)},
				"fixed":   {ginlimit.PerDay(100).WithAlgorithm(ginlimit.FixedWindow)},
				"sliding": {ginlimit.PerDay(100).WithAlgorithm(ginlimit.SlidingWindow)},
				"quota":   {ginlimit.PerCalendar(100, ginlimit.CalendarMonth(time.UTC, 1))},
				"banning": {ginlimit.PerDay(100), ginlimit.WithBan(time.Hour, time.Hour)},
				"slots":   {ginlimit.PerDay(100), ginlimit.InFlight(5)},
			}
			one := testkit.NewPolicy(t, l, "one", ginlimit.PerDay(1))
			require.True(t, testkit.Must(one.Allow(t.Context(), "k")).Allowed)
			for name, opts := range limits {
				t.Run(name, func(t *testing.T) {
					p := testkit.NewPolicy(t, l, name, opts...)
					fresh := testkit.NewPolicy(t, l, name+" fresh", ginlimit.PerDay(100))
					reserveAll(t, charge(p, "k", 3)).Release()
					left := 97
					for first, all := range [][]ginlimit.Charge{
						{charge(p, "k", 2), charge(one, "k", 1)}, {charge(one, "k", 1), charge(p, "k", 2)},
						{charge(p, "k", 2), charge(fresh, "k", 1)}, {charge(fresh, "k", 1), charge(p, "k", 2)},
					} {
						for range 10 {
							memory("1")
							r, err := ginlimit.ReserveAll(t.Context(), all...)
							memory("0")
							if err == nil && r.Result().Allowed {
								left -= 2
								r.Release()
							}
							require.Equal(t, left, remaining(t, p)[0], "%d: %v", first, err)
						}
					}
				})
			}
		})
	}
}

// TestAKnownDenialCostsAClusterNoCall, wherever its policy stands.
func TestAKnownDenialCostsAClusterNoCall(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 3)
	rdb := testkit.ConnectCluster(t, addrs...)
	calls := func() (n int) {
		for _, addr := range addrs {
			n += testkit.ScriptCalls(t, testkit.Connect(t, addr))
		}
		return n
	}
	l := testkit.NewLimiter(t, rdb, testkit.RemembersDenials())
	for i := range 12 { // every node knows the script
		testkit.Must(l.Allow(t.Context(), fmt.Sprint("warm ", i), ginlimit.PerHour(1)))
	}
	for at := range 3 {
		charges := make([]ginlimit.Charge, 3)
		for i := range charges {
			limit := ginlimit.PerHour(1000)
			if i == at {
				limit = ginlimit.PerHour(1)
			}
			charges[i] = charge(testkit.NewPolicy(t, l, fmt.Sprint(at, " ", i), limit), "k", 1)
		}
		require.True(t, reserveAll(t, charges...).Result().Allowed)
		start := time.Now()
		require.False(t, reserveAll(t, charges...).Result().Allowed)
		before := calls()
		for range 100 {
			require.False(t, reserveAll(t, charges...).Result().Allowed)
		}
		if after := calls(); time.Since(start) < 900*time.Millisecond { // a denial is remembered for a second
			require.Equal(t, before, after)
		}
	}
}

// lossy are servers behind proxies that swallow replies.
type lossy struct {
	addrs   []string
	proxies []*testkit.Proxy
	rdb     redis.UniversalClient
}

// lossyServers are a cluster and a ring of three.
func lossyServers(t *testing.T) map[string]*lossy {
	cluster, ring := &lossy{addrs: testkit.StartCluster(t, 3)}, &lossy{}
	ways, shards := map[string]string{}, map[string]string{}
	for i, addr := range cluster.addrs {
		proxy, way := testkit.StartProxy(t, addr)
		cluster.proxies, ways[addr] = append(cluster.proxies, proxy), way
		ring.addrs = append(ring.addrs, testkit.StartRedis(t))
		proxy, shards[fmt.Sprint(i)] = testkit.StartProxy(t, ring.addrs[i])
		ring.proxies = append(ring.proxies, proxy)
	}
	const read = time.Second // no other server is as late, however busy the machine is
	cluster.rdb = redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.addrs, ReadTimeout: read,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, ways[addr])
		}})
	ring.rdb = redis.NewRing(&redis.RingOptions{Addrs: shards, ReadTimeout: read, HeartbeatFrequency: time.Hour})
	t.Cleanup(func() { _, _ = cluster.rdb.Close(), ring.rdb.Close() })
	return map[string]*lossy{"cluster": cluster, "ring": ring}
}

// lostClient is a client, and what requests took of its buckets that is known, and what else may have been taken.
type lostClient struct {
	name        string
	nodes       []int // of each policy
	taken, more []int
}

const lostPolicies, lostBurst = 4, 1000

// lostRule returns the limits of a policy: each kind, and slots.
func lostRule(i int) []ginlimit.PolicyOption {
	window := ginlimit.PerDay(lostBurst)
	return [lostPolicies][]ginlimit.PolicyOption{
		{ginlimit.PerDay(1).WithBurst(lostBurst)},
		{window.WithAlgorithm(ginlimit.FixedWindow), ginlimit.WithFailureMode(ginlimit.FailOpen)},
		{window.WithAlgorithm(ginlimit.SlidingWindow), ginlimit.WithFailureMode(ginlimit.FailLocal)},
		{ginlimit.PerDay(1).WithBurst(lostBurst), ginlimit.InFlight(5)},
	}[i]
}

// TestAServerWhoseRepliesAreLostCostsOthersNothing: while one of three servers decides, and its replies are lost, what
// the others took for a request that fails or is denied is given back, once, and what they took for one that is allowed
// stays. On that server alone a charge may stay that nobody knows of (guarantee 5).
func TestAServerWhoseRepliesAreLostCostsOthersNothing(t *testing.T) {
	t.Parallel()
	for name, servers := range lossyServers(t) {
		testkit.Run(t, name, func(t *testing.T) {
			l := testkit.NewLimiter(t, servers.rdb, ginlimit.WithTimeout(2*time.Second))
			var policies []*ginlimit.Policy
			for i := range lostPolicies {
				policies = append(policies, testkit.NewPolicy(t, l, fmt.Sprint("p", i), lostRule(i)...))
			}
			empty := testkit.NewPolicy(t, l, "empty", ginlimit.PerDay(1))
			var clients []*lostClient
			for i := range 12 {
				clients = append(clients, servers.newClient(t, fmt.Sprint("client ", i), policies))
				require.True(t, testkit.Must(empty.Allow(t.Context(), clients[i].name)).Allowed)
			}
			for round := range servers.proxies {
				lost := round
				servers.proxies[lost].Swallow.Store(true)
				var all sync.WaitGroup
				for i, c := range clients {
					all.Go(func() { c.request(t, rand.New(rand.NewPCG(uint64(round), uint64(i))), policies, empty, lost) })
				}
				all.Wait()
				require.Positive(t, servers.proxies[lost].Swallowed.Load())
				servers.proxies[lost].Swallow.Store(false)
				for _, c := range clients {
					c.check(t, policies, round)
				}
			}
			require.Zero(t, l.Stats().Slots)
		})
	}
}

// newClient returns a client, once a token of each of its buckets is taken.
func (s *lossy) newClient(t *testing.T, name string, policies []*ginlimit.Policy) *lostClient {
	c := &lostClient{name: name, taken: make([]int, len(policies)), more: make([]int, len(policies))}
	for i, p := range policies {
		reserveAll(t, charge(p, name, 1)).Release()
		c.taken[i] = 1
		c.nodes = append(c.nodes, slices.IndexFunc(s.addrs, func(addr string) bool {
			keys := testkit.Must(testkit.Connect(t, addr).Keys(t.Context(), "*").Result())
			return slices.ContainsFunc(keys, func(key string) bool {
				return strings.Contains(key, fmt.Sprintf("{p%d|%s}", i, name))
			})
		}))
		require.GreaterOrEqual(t, c.nodes[i], 0)
	}
	return c
}

// request makes a request under some of the policies, perhaps also under one that denies, and may cancel it.
func (c *lostClient) request(t *testing.T, r *rand.Rand, policies []*ginlimit.Policy, empty *ginlimit.Policy,
	lost int) {
	some := r.Perm(len(policies))[:2+r.IntN(3)]
	var charges []ginlimit.Charge
	for _, i := range some {
		charges = append(charges, charge(policies[i], c.name, 1+r.IntN(4)))
	}
	all := charges
	if r.IntN(3) == 0 {
		all = slices.Insert(slices.Clone(charges), r.IntN(len(charges)+1), charge(empty, c.name, 1))
	}
	got, err := ginlimit.ReserveAll(t.Context(), all...)
	canceled, failed := false, error(nil)
	if err != nil {
		assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
	} else if canceled = r.IntN(2) == 0; canceled {
		failed = got.Cancel(t.Context())
	} else {
		got.Release()
	}
	allowed := err == nil && got.Result().Allowed
	for j, i := range some {
		switch n := charges[j].N; {
		case allowed && got.Results()[slices.Index(names(got.Results()), fmt.Sprint("p", i))].Source == ginlimit.FromRedis:
			if !canceled {
				c.taken[i] += n
			} else if failed != nil && c.nodes[i] == lost {
				c.more[i] += n
			}
		case c.nodes[i] == lost:
			c.more[i] += n
		}
	}
}

func names(results []ginlimit.Result) (all []string) {
	for _, r := range results {
		all = append(all, strings.TrimSuffix(r.Name, "-c"))
	}
	return all
}

// check reads what is taken. What is left of a charge that nobody knows of may still be given back.
func (c *lostClient) check(t *testing.T, policies []*ginlimit.Policy, round int) {
	t.Helper()
	for i, p := range policies {
		var taken, held int
		settled := testkit.BecomesTrue(t.Context().Done(), func() bool { // Redis answers again, and slots are free
			rows, err := p.Status(t.Context(), c.name)
			if err != nil || rows[0].Source != ginlimit.FromRedis {
				return false
			}
			taken, held = lostBurst-rows[0].Remaining, 0
			for _, row := range rows[1:] {
				held = row.Limit.InFlight - row.Remaining
			}
			return held == 0 && taken <= c.taken[i]+c.more[i]
		})
		require.True(t, settled && taken >= c.taken[i], "round %d: %s, policy %d: %d taken, %d slots held; want %d to %d",
			round, c.name, i, taken, held, c.taken[i], c.taken[i]+c.more[i])
		c.more[i] = taken - c.taken[i]
	}
}

//go:build integration

package limits_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
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

//go:build integration

package faults_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// dialing is how a client of another process connects: clients of one process are recognized by their addresses.
func dialing(ctx context.Context, network, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// TestLimitersOfAProcessCountOnce: five New on five routes, of which each admits all of its limit without Redis,
// and those of one limit admit it together.
func TestLimitersOfAProcessCountOnce(t *testing.T) {
	t.Parallel()
	addr, process := testkit.StartRedisProcess(t)
	r := gin.New()
	require.NoError(t, r.SetTrustedProxies(nil))
	rates := []int{100, 100, 100, 101, 102}
	for i, rate := range rates { // each has a client of its own
		l := testkit.Must(ginlimit.NewLimiter(testkit.Connect(t, addr), testkit.Patient(),
			ginlimit.WithLogger(slog.New(slog.DiscardHandler))))
		r.GET(fmt.Sprint("/", i), l.Handler(fmt.Sprint(rate, " a day"), ginlimit.PerDay(rate)), testkit.OK)
	}
	admitted := func(route, n int) (all int) {
		for range n {
			if testkit.Get(r, fmt.Sprint("/", route)).Code == http.StatusOK {
				all++
			}
		}
		return all
	}
	for i := range rates {
		require.Equal(t, 1, admitted(i, 1))
	}
	require.NoError(t, process.Kill())
	require.Equal(t, 100, admitted(0, 30)+admitted(1, 30)+admitted(2, 60))
	require.Equal(t, 101, admitted(3, 120))
	require.Equal(t, 102, admitted(4, 120))
}

// TestReplicasThatConfigureNothingShareTheLimit: limiters of default options in four processes count each other,
// and without Redis they admit together no more than the limit.
func TestReplicasThatConfigureNothingShareTheLimit(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func() (func() redis.UniversalClient, []*os.Process){
		"one server": func() (func() redis.UniversalClient, []*os.Process) {
			addr, process := testkit.StartRedisProcess(t)
			return func() redis.UniversalClient {
				rdb := redis.NewClient(&redis.Options{Addr: addr, Dialer: dialing})
				t.Cleanup(func() { _ = rdb.Close() })
				return rdb
			}, []*os.Process{process}
		},
		"cluster": func() (func() redis.UniversalClient, []*os.Process) {
			addrs, processes := testkit.StartClusterProcesses(t, 3)
			return func() redis.UniversalClient {
				rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Dialer: dialing})
				t.Cleanup(func() { _ = rdb.Close() })
				return rdb
			}, processes
		},
	} {
		connect, servers := start()
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const replicas = 4
			limit := ginlimit.PerDay(102)
			var limiters [replicas]*ginlimit.Limiter
			var policies [replicas]*ginlimit.Policy
			var logs [replicas]testkit.Buffer
			for i := range limiters {
				var err error
				limiters[i], err = ginlimit.NewLimiter(connect(), ginlimit.WithLogger(slog.New(slog.NewTextHandler(&logs[i], nil))))
				require.NoError(t, err)
				policies[i] = testkit.NewPolicy(t, testkit.Wrap(limiters[i], ginlimit.TokenBucket), "api", limit)
				t.Cleanup(func() { _ = limiters[i].Close() })
			}
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
				counted := 0
				for i, l := range limiters {
					_, err := policies[i].Allow(t.Context(), "192.0.2.2")
					if err == nil && l.Stats().Replicas == replicas {
						counted++
					}
				}
				return counted == replicas
			}))
			for _, server := range servers {
				require.NoError(t, server.Kill())
			}
			admitted := 0
			for range 2 * limit.Rate {
				for i := range limiters {
					r := testkit.Must(policies[i].Allow(t.Context(), "192.0.2.1"))
					require.Equal(t, ginlimit.FromLocal, r.Source)
					admitted += r.Granted
				}
			}
			require.Equal(t, replicas*(limit.Rate/replicas), admitted)
			for i, l := range limiters {
				require.Equal(t, replicas, l.Stats().Replicas)
				require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
					_, _ = policies[i].Allow(t.Context(), "192.0.2.1")
					return len(logs[i].String()) > 0
				}))
				require.Contains(t, logs[i].String(), "replicas=4")
			}
		})
	}
}

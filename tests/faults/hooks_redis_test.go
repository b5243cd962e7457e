//go:build integration

package faults_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// The dispatcher behind hooks of the client, which hold calls up, refuse them, or fail.

// TestALimiterMayBeMadeLate, while the application's commands are in flight: it leaves their client as it is. Clients
// before 9.22 cannot bear another hook then, and the race detector sees that.
func TestALimiterMayBeMadeLate(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	var others sync.WaitGroup
	decided := make(chan struct{})
	for range 4 {
		others.Go(func() {
			for {
				assert.NoError(t, rdb.Ping(t.Context()).Err())
				select {
				case <-decided:
					return
				default:
				}
			}
		})
	}
	_, err := testkit.NewLimiter(t, rdb).Allow(t.Context(), "k", ginlimit.PerHour(100))
	close(decided)
	others.Wait()
	require.NoError(t, err)
}

// dialing is how a client of another process connects: clients of one process are recognized by their addresses.
func dialing(ctx context.Context, network, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, addr)
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
		testkit.Run(t, name, func(t *testing.T) {
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

// TestPingOfWrongDatabaseSaysSo: Redis says "ERR".
func TestPingOfWrongDatabaseSaysSo(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: testkit.StartRedis(t), DB: 999})
	defer rdb.Close()
	err := testkit.NewLimiter(t, rdb).Ping(t.Context())
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.ErrorContains(t, err, "ERR: the database number is out of range")
}

// TestAHashSlotThatTwoNodesRedirectToEachOther costs its own clients Redis, and no others of the node.
func TestAHashSlotThatTwoNodesRedirectToEachOther(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 2)
	rdb := testkit.ConnectCluster(t, addrs...)
	limiter, log := testkit.LoggedLimiter(t, rdb, testkit.Patient(), ginlimit.WithFailureMode(ginlimit.FailLocal))
	limit := ginlimit.PerHour(1000)
	node, other := testkit.Connect(t, addrs[0]), testkit.Connect(t, addrs[1])
	slotOf := func(key string) int64 {
		return testkit.Must(node.ClusterKeySlot(t.Context(), testkit.RedisKey(key, limit)).Result())
	}
	var keys []string // of the node; the first has the hash slot
	for i := 0; len(keys) < 8; i++ {
		if key := fmt.Sprint("client ", i); slotOf(key) < 8192 && (keys == nil || slotOf(key) != slotOf(keys[0])) {
			keys = append(keys, key)
		}
	}
	require.Equal(t, ginlimit.FromRedis, testkit.Must(limiter.Allow(t.Context(), keys[1], limit)).Source)
	give := func(to *redis.Client) {
		id := testkit.Must(to.Do(t.Context(), "CLUSTER", "MYID").Text())
		require.NoError(t, node.Do(t.Context(), "CLUSTER", "SETSLOT", slotOf(keys[0]), "NODE", id).Err())
	}
	give(other)
	var all sync.WaitGroup
	for i, key := range keys {
		all.Go(func() {
			for range 100 {
				r, err := limiter.Allow(t.Context(), key, limit)
				assert.NoError(t, err)
				assert.Equal(t, i > 0, r.Source == ginlimit.FromRedis, key)
			}
		})
	}
	all.Wait()
	require.Nil(t, limiter.Stats().Transitions, log)
	give(node)
	require.Equal(t, ginlimit.FromRedis, testkit.Must(limiter.Allow(t.Context(), keys[0], limit)).Source)
}

//go:build integration

package faults_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// The dispatcher behind hooks of the client, which hold calls up, refuse them, or fail.

// TestALimiterMayBeMadeLate: it adds a hook to the client while the application's commands are in flight. The race
// detector finds clients that cannot bear it; those before 9.22 cannot.
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

// TestChangeEndsADenialOnItsWay resets a key while a denial that Redis has made is on its way: it is not
// remembered.
func TestChangeEndsADenialOnItsWay(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	decided, gate := make(chan struct{}), make(chan struct{})
	var next atomic.Bool
	rdb.AddHook(testkit.EveryScript(func(send func() error) error {
		err := send()
		if next.Swap(false) {
			close(decided)
			<-gate
		}
		return err
	}))
	limiter, limit := testkit.NewLimiter(t, rdb, testkit.RemembersDenials()), ginlimit.PerDay(1)
	testkit.Must(limiter.Allow(t.Context(), "k", limit))
	next.Store(true)
	var all sync.WaitGroup
	all.Go(func() {
		r, err := limiter.Allow(t.Context(), "k", limit)
		assert.NoError(t, err)
		assert.False(t, r.Allowed)
	})
	<-decided
	require.NoError(t, limiter.Reset(t.Context(), "k", limit))
	close(gate)
	all.Wait()
	require.True(t, testkit.Must(limiter.Allow(t.Context(), "k", limit)).Allowed)
}

// panicHook is a client's hook with a fault.
type panicHook struct{}

func TestPanicOfTheClientIsUnavailable(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	rdb.AddHook(panicHook{})
	_, err := testkit.NewLimiter(t, rdb).Allow(t.Context(), "k", ginlimit.PerHour(1))
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
}

func (panicHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (panicHook) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { panic("fault") }
}

func (panicHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

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

// TestPingOfWrongDatabaseSaysSo: Redis says "ERR".
func TestPingOfWrongDatabaseSaysSo(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: testkit.StartRedis(t), DB: 999})
	defer rdb.Close()
	err := testkit.NewLimiter(t, rdb).Ping(t.Context())
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.ErrorContains(t, err, "ERR: the database number is out of range")
}

// TestPingNeedsEveryServer kills one of two masters of a cluster, and one of two shards of a ring.
func TestPingNeedsEveryServer(t *testing.T) {
	t.Parallel()
	masters, nodes := testkit.StartClusterProcesses(t, 2)
	addr := testkit.StartRedis(t)
	other, shard := testkit.StartRedisProcess(t)
	for name, row := range map[string]struct {
		rdb  redis.UniversalClient
		kill func() error
	}{
		"cluster": {redis.NewClusterClient(&redis.ClusterOptions{Addrs: masters}), nodes[1].Kill},
		"ring":    {redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addr, "b": other}}), shard.Kill},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer row.rdb.Close()
			limiter := testkit.NewLimiter(t, row.rdb)
			require.NoError(t, limiter.Ping(t.Context()))
			require.NoError(t, row.kill())
			ring, ok := row.rdb.(*redis.Ring)
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
				err := limiter.Ping(t.Context())
				return ok && ring.Len() == 1 || err != nil && strings.Contains(err.Error(), "connection refused")
			}))
			require.True(t, !ok || testkit.BecomesTrue(t.Context().Done(), func() bool {
				return ring.Len() == 1 && limiter.Ping(t.Context()) == nil
			}), "once the ring leaves the shard out")
		})
	}
}

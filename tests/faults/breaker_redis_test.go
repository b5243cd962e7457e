//go:build integration

package faults_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestOpenBreakerSendsNoCalls(t *testing.T) {
	t.Parallel()
	addr, process := testkit.StartRedisProcess(t)
	for name, rdb := range testkit.Clients(t, addr) {
		var calls atomic.Int64
		rdb.AddHook(testkit.EveryScript(func(send func() error) error { calls.Add(1); return send() }))
		limiter, log := testkit.LoggedLimiter(t, rdb, ginlimit.WithTimeout(ginlimit.DefaultTimeout))
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
			_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
			return err == nil
		}))
		isOpen := func() bool {
			text := log.String()
			return strings.Count(text, "circuit breaker open") > strings.Count(text, "Redis is back")
		}
		require.NoError(t, process.Signal(syscall.SIGSTOP))
		// A busy machine may have opened it before, and an answer of that time may close it still.
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
			_, _ = limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
			text := log.String()
			<-time.After(300 * time.Millisecond)
			return isOpen() && log.String() == text
		}))
		before := calls.Load()
		for i := range 10_000 {
			_, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), ginlimit.PerHour(1))
			require.ErrorIs(t, err, ginlimit.ErrUnavailable)
		}
		require.LessOrEqual(t, calls.Load()-before, int64(10), "a blind probe every five seconds, %s", name)
		require.NoError(t, process.Signal(syscall.SIGCONT))
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
			_, _ = limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
			return !isOpen()
		}))
		for i := 1; i < 10; i++ { // and nothing was kept to be asked later; a late answer may have let client 0 pass
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
				r, err := limiter.Peek(t.Context(), fmt.Sprint("client ", 1000*i), ginlimit.PerHour(1))
				return err == nil && r.Allowed
			}), "%s, client %d", name, 1000*i)
		}
	}
}

// TestRefusedConnectionsAreNotTriedByEveryone counts the connections to a Redis that refuses the password.
func TestRefusedConnectionsAreNotTriedByEveryone(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t)
	admin := testkit.Connect(t, addr)
	require.NoError(t, admin.ConfigSet(t.Context(), "requirepass", "right").Err())
	rdb := redis.NewClient(&redis.Options{Addr: addr, Password: "wrong"})
	defer rdb.Close()
	limiter, log := testkit.LoggedLimiter(t, rdb)
	testkit.UntilLogged(t, limiter, log, "reason=WRONGPASS")
	connections := func() (n int) {
		stats := admin.Info(t.Context(), "stats").Val()
		_, err := fmt.Sscanf(stats[strings.Index(stats, "total_connections_received:"):], "total_connections_received:%d", &n)
		require.NoError(t, err)
		return n
	}
	before := connections()
	for i := range 10_000 {
		_, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), ginlimit.PerHour(1))
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	}
	require.Less(t, connections()-before, 500)
}

// TestMissingPasswordIsNOAUTH: Redis answers a command of more than ten parts by a protocol error then.
func TestMissingPasswordIsNOAUTH(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t)
	require.NoError(t, testkit.Connect(t, addr).ConfigSet(t.Context(), "requirepass", "right").Err())
	limiter, log := testkit.LoggedLimiter(t, testkit.Connect(t, addr))
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1), ginlimit.PerDay(1), ginlimit.PerMinute(1))
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
		return log.String() != ""
	}))
	require.NotContains(t, log.String(), "code=ERR")
}

// TestProbesSurviveTheDialer has the client's dialer panic, hang or return nothing.
func TestProbesSurviveTheDialer(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func() (net.Conn, error){
		"panics":  func() (net.Conn, error) { panic("fault") },
		"nothing": func() (net.Conn, error) { return nil, nil },
		"hangs":   func() (net.Conn, error) { <-time.After(2 * time.Second); return nil, errors.New("late") },
	} {
		testkit.Run(t, name, func(t *testing.T) {
			addr, process := testkit.StartRedisProcess(t)
			var broken atomic.Bool
			var dials atomic.Int64 // while it is broken
			rdb := redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
				if broken.Load() {
					dials.Add(1)
					return fault()
				}
				return net.Dial("tcp", addr)
			}})
			defer rdb.Close()
			limiter, log := testkit.LoggedLimiter(t, rdb, ginlimit.WithTimeout(ginlimit.DefaultTimeout))
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
				_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
				return err == nil
			}))
			require.NoError(t, process.Signal(syscall.SIGSTOP))
			testkit.UntilLogged(t, limiter, log, "circuit breaker open")
			broken.Store(true)
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
				// On a busy machine the breaker may have opened before the server stopped, and closed since.
				_, _ = limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
				return dials.Load() >= 3
			}))
			broken.Store(false)
			require.NoError(t, process.Signal(syscall.SIGCONT))
			testkit.UntilLogged(t, limiter, log, "Redis is back")
		})
	}
}

// TestRedisIsFoundByAWayOfAHook has a hook connect to a server whose address the client does not have.
func TestRedisIsFoundByAWayOfAHook(t *testing.T) {
	t.Parallel()
	addr, process := testkit.StartRedisProcess(t)
	rdb := testkit.Connect(t, testkit.RefusedAddr(t))
	rdb.AddHook(detour{addr})
	limiter, log := testkit.LoggedLimiter(t, rdb)
	testkit.Must(limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000)))
	require.NoError(t, process.Kill())
	testkit.UntilLogged(t, limiter, log, "circuit breaker open")
	require.NotNil(t, testkit.LaunchRedis(t, addr))
	testkit.UntilLogged(t, limiter, log, "Redis is back")
}

// detour is a client's hook that connects to another address.
type detour struct{ addr string }

func (d detour) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, _ string) (net.Conn, error) { return next(ctx, network, d.addr) }
}

// TestRefusalsAreLoggedOnce has the log told of errors of Redis now and then, without their text.
func TestRefusalsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	limiter, log := testkit.LoggedLimiter(t, rdb)
	require.NoError(t, rdb.RPush(t.Context(), testkit.RedisKey("secret", ginlimit.PerHour(1)), "x").Err())
	for range 100 {
		require.ErrorIs(t, testkit.Err(limiter.Allow(t.Context(), "secret", ginlimit.PerHour(1))), ginlimit.ErrUnavailable)
		testkit.Must(limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000)))
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), "code=WRONGTYPE")
	require.NotContains(t, log.String(), "secret")
}

// TestClientOfOneServerIsToldOfTheCluster asks one node of two, with a client that follows no redirection.
func TestClientOfOneServerIsToldOfTheCluster(t *testing.T) {
	t.Parallel()
	limiter, log := testkit.LoggedLimiter(t, testkit.Connect(t, testkit.StartCluster(t, 2)[0]))
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		_, _ = limiter.Allow(t.Context(), rand.Text(), ginlimit.PerHour(1))
		return strings.Contains(log.String(), "redis.NewClusterClient")
	}))
}

// TestCloseDoesNotWaitForATLSHandshake has the other end of a TLS connection say nothing. The
// Dialer of go-redis then waits for the client's DialTimeout, here longer than the test may take.
func TestCloseDoesNotWaitForATLSHandshake(t *testing.T) {
	t.Parallel()
	silent := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	defer silent.Close()
	rdb := redis.NewClient(&redis.Options{Addr: silent.Addr().String(),
		TLSConfig: &tls.Config{ServerName: "redis.example"}, DialTimeout: testkit.Patience})
	defer rdb.Close()
	limiter, log := testkit.LoggedLimiter(t, rdb, ginlimit.WithTimeout(ginlimit.DefaultTimeout))
	testkit.UntilLogged(t, limiter, log, "circuit breaker open")
	require.NoError(t, limiter.Close())
}

func (detour) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (detour) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// How long a decision takes, whatever Redis does.

// TestTimeoutBoundsEveryDecision has all callers back while Redis is still frozen, whatever the client's own
// timeouts are.
func TestTimeoutBoundsEveryDecision(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (redis.UniversalClient, func(syscall.Signal)){
		"server": func(t *testing.T) (redis.UniversalClient, func(syscall.Signal)) {
			addr, process := testkit.StartRedisProcess(t)
			return redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: testkit.Patience}),
				func(s syscall.Signal) { require.NoError(t, process.Signal(s)) }
		},
		"server, direct": func(t *testing.T) (redis.UniversalClient, func(syscall.Signal)) {
			addr, process := testkit.StartRedisProcess(t)
			return redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: testkit.Patience,
				ContextTimeoutEnabled: true}), func(s syscall.Signal) { require.NoError(t, process.Signal(s)) }
		},
		"server, direct, without a deadline": func(t *testing.T) (redis.UniversalClient, func(syscall.Signal)) {
			addr, process := testkit.StartRedisProcess(t)
			return redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: -2, ContextTimeoutEnabled: true}),
				func(s syscall.Signal) { require.NoError(t, process.Signal(s)) }
		},
		"cluster": func(t *testing.T) (redis.UniversalClient, func(syscall.Signal)) {
			addr, process := testkit.StartRedisProcess(t, "--cluster-enabled", "yes")
			require.NoError(t, testkit.Connect(t, addr).Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr},
				ReadTimeout: testkit.Patience}), func(s syscall.Signal) { require.NoError(t, process.Signal(s)) }
		},
	} {
		for _, callers := range []int{1, 64} {
			testkit.Run(t, fmt.Sprint(name, " ", callers), func(t *testing.T) {
				rdb, signal := start(t)
				defer rdb.Close()
				limiter, limit := testkit.NewLimiter(t, rdb, ginlimit.WithTimeout(100*time.Millisecond)), ginlimit.PerHour(10)
				works := func() bool {
					_, err := limiter.Allow(t.Context(), "k", limit)
					return err == nil
				}
				require.True(t, testkit.BecomesTrue(t.Context().Done(), works))
				signal(syscall.SIGSTOP)
				resume := sync.OnceFunc(func() { signal(syscall.SIGCONT) })
				defer resume()
				for range 3 {
					var all sync.WaitGroup
					for i := range callers {
						all.Go(func() {
							start := time.Now()
							_, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), limit)
							assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
							assert.Less(t, time.Since(start), time.Minute, "also on a busy machine")
						})
					}
					all.Wait()
				}
				resume()
				require.True(t, testkit.BecomesTrue(t.Context().Done(), works))
			})
		}
	}
}

// TestFrozenNodeHoldsUpItsOwnKeys asks a cluster of which a node is frozen.
func TestFrozenNodeHoldsUpItsOwnKeys(t *testing.T) {
	t.Parallel()
	addrs, processes := testkit.StartClusterProcesses(t, 3)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ReadTimeout: testkit.Patience})
	defer rdb.Close()
	limiter, limit := testkit.NewLimiter(t, rdb, ginlimit.WithTimeout(time.Hour)), ginlimit.PerHour(10)
	frozen := map[string]bool{}
	for i := range 60 {
		key := fmt.Sprint("client ", i)
		testkit.Must(limiter.Allow(t.Context(), key, limit))
		node := testkit.Must(rdb.MasterForKey(t.Context(), testkit.RedisKey(key, limit)))
		frozen[key] = node.Options().Addr == addrs[1]
	}
	require.NoError(t, processes[1].Signal(syscall.SIGSTOP))
	resume := sync.OnceFunc(func() { require.NoError(t, processes[1].Signal(syscall.SIGCONT)) })
	defer resume()
	ctx, cancel := context.WithCancel(t.Context())
	var waiting, others sync.WaitGroup
	for key, is := range frozen {
		if is {
			waiting.Go(func() { _, _ = limiter.Allow(ctx, key, limit) })
		}
	}
	for key, is := range frozen {
		if !is {
			others.Go(func() {
				_, err := limiter.Allow(t.Context(), key, limit)
				assert.NoError(t, err)
			})
		}
	}
	others.Wait()
	cancel()
	waiting.Wait()
	resume()
}

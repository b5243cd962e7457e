//go:build integration

package faults_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/pprof"
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

// TestOneCutLosesNothing cuts all connections once while decisions are on their way: that is no reason to give
// Redis up.
func TestOneCutLosesNothing(t *testing.T) {
	t.Parallel()
	p, addr := testkit.StartProxy(t, testkit.StartRedis(t))
	limiter, log := testkit.LoggedLimiter(t, testkit.Connect(t, addr))
	works := func() bool {
		_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
		return err == nil
	}
	require.True(t, testkit.BecomesTrue(t.Context().Done(), works))
	p.Swallow.Store(true)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			_, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), ginlimit.PerHour(1))
			if err != nil {
				assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
			}
		})
	}
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return p.Swallowed.Load() > 0 }))
	p.Swallow.Store(false)
	p.CutAll()
	p.Cut.Store(false)
	all.Wait()
	require.True(t, testkit.BecomesTrue(t.Context().Done(), works))
	require.Empty(t, log.String())
}

// TestCallersWhoLeaveAreNoFailure has callers give up on a Redis that is slower than they are patient.
func TestCallersWhoLeaveAreNoFailure(t *testing.T) {
	t.Parallel()
	p, addr := testkit.StartProxy(t, testkit.StartRedis(t))
	limiter, log := testkit.LoggedLimiter(t, testkit.Connect(t, addr), ginlimit.WithFailureMode(ginlimit.FailLocal))
	limit := ginlimit.PerDay(1000)
	r, err := limiter.Allow(t.Context(), "k", limit)
	require.NoError(t, err)
	require.Equal(t, ginlimit.FromRedis, r.Source)
	p.Delay.Store(int64(2 * time.Second)) // a busy machine may wake a caller late
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := limiter.Allow(ctx, "k", limit)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		cancel()
	}
	p.Delay.Store(0)
	r, err = limiter.Allow(t.Context(), "k", limit)
	require.NoError(t, err)
	require.Equal(t, ginlimit.FromRedis, r.Source)
	require.Empty(t, log.String())
	require.NoError(t, limiter.Close())
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

// TestFlappingRedisIsLoggedOnce has Redis answer looks and keep charges waiting.
func TestFlappingRedisIsLoggedOnce(t *testing.T) {
	testkit.Nightly(t, "calls that a busy machine delays by 50 ms are outages of their own, and lines of the log")
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	var slow atomic.Bool
	rdb.AddHook(chargesHook(func() error {
		if slow.Load() {
			<-time.After(80 * time.Millisecond)
		}
		return nil
	}))
	limiter, log := testkit.LoggedLimiter(t, rdb, ginlimit.WithTimeout(ginlimit.DefaultTimeout))
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
		return err == nil
	}))
	slow.Store(true)
	end := time.Now().Add(3 * time.Second)
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		_, _ = limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
		return time.Now().After(end)
	}))
	slow.Store(false)
	testkit.UntilLogged(t, limiter, log, "Redis is back")
	require.LessOrEqual(t, strings.Count(log.String(), "\n"), 4, log.String())
}

// TestOneFailureAfterTheReturnIsEnough has Redis answer looks and fail charges: each time that it seems to be back, one
// caller finds out, not several.
func TestOneFailureAfterTheReturnIsEnough(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	broken := errors.New("broken")
	rdb.AddHook(chargesHook(func() error { return broken }))
	limiter, log := testkit.LoggedLimiter(t, rdb)
	testkit.UntilLogged(t, limiter, log, "circuit breaker open")
	returns, before := 0, error(nil)
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
		if errors.Is(err, broken) {
			require.NotErrorIs(t, before, broken, "another one was sent")
			returns++
		}
		before = err
		return returns == 5
	}))
}

// chargesHook is called before each call of the script that is not a look, and may keep it from Redis.
type chargesHook func() error

func (h chargesHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); strings.HasPrefix(cmd.Name(), "eval") && fmt.Sprint(args[6]) != "0" {
			if err := h(); err != nil {
				return err
			}
		}
		return next(ctx, cmd)
	}
}

// TestProbesSurviveTheDialer has the client's dialer panic, hang or return nothing.
func TestProbesSurviveTheDialer(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func() (net.Conn, error){
		"panics":  func() (net.Conn, error) { panic("fault") },
		"nothing": func() (net.Conn, error) { return nil, nil },
		"hangs":   func() (net.Conn, error) { <-time.After(2 * time.Second); return nil, errors.New("late") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return dials.Load() >= 3 }))
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
	_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
	require.NoError(t, err)
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

// TestCloseEndsTheSearch closes a limiter whose Redis is lost.
func TestCloseEndsTheSearch(t *testing.T) {
	t.Parallel()
	pprof.Do(t.Context(), pprof.Labels("test", t.Name()), func(context.Context) {
		limiter, log := testkit.LoggedLimiter(t, testkit.Unreachable(t))
		testkit.UntilLogged(t, limiter, log, "circuit breaker open")
		require.Positive(t, testkit.GoroutinesLeft(t))
		require.NoError(t, limiter.Close())
		_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	})
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return testkit.GoroutinesLeft(t) == 0 }))
}

// TestRefusalsAreLoggedOnce has the log told of errors of Redis now and then, without their text.
func TestRefusalsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	limiter, log := testkit.LoggedLimiter(t, rdb)
	require.NoError(t, rdb.RPush(t.Context(), testkit.RedisKey("secret", ginlimit.PerHour(1)), "x").Err())
	for range 100 {
		_, err := limiter.Allow(t.Context(), "secret", ginlimit.PerHour(1))
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
		_, err = limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
		require.NoError(t, err)
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), "code=WRONGTYPE")
	require.NotContains(t, log.String(), "secret")
}

// TestConnectionsAreMadeHoweverLongTheWay has a client end calls with their context, on a way of which the round trips
// of a new connection take longer than the timeout. Redis decides all the same, for several at once.
func TestConnectionsAreMadeHoweverLongTheWay(t *testing.T) {
	testkit.Nightly(t, "nearly every call must be back within 50 ms, of which the way takes 40")
	// Not beside other tests: a machine that is busy with them makes calls late, too.
	for _, c := range []struct{ pool, callers int }{{pool: 10, callers: 4}, {pool: 3, callers: 4},
		{pool: 1, callers: 2}, {pool: 10, callers: 2}} {
		t.Run(fmt.Sprintf("%d connections, %d callers", c.pool, c.callers), func(t *testing.T) {
			p, addr := testkit.StartProxy(t, testkit.StartRedis(t))
			rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, PoolSize: c.pool})
			defer rdb.Close()
			limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithReplicas(1),
				ginlimit.WithLogger(slog.New(slog.DiscardHandler)))
			require.NoError(t, err)
			defer limiter.Close()
			policy, err := limiter.Policy("test", ginlimit.PerHour(1_000_000))
			require.NoError(t, err)
			// by one connection, so that Redis is not lost meanwhile
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
				r, err := policy.Allow(t.Context(), "k")
				return err == nil && r.Source == ginlimit.FromRedis
			}))
			p.Delay.Store(int64(20 * time.Millisecond))
			score := 0 // rises only if nearly every time Redis decides for all
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
				var inRedis atomic.Int64
				var all sync.WaitGroup
				for caller := range c.callers {
					all.Go(func() {
						r, err := policy.Allow(t.Context(), fmt.Sprint("k", caller))
						if assert.NoError(t, err) && r.Source == ginlimit.FromRedis {
							inRedis.Add(1)
						}
					})
				}
				all.Wait()
				if score++; int(inRedis.Load()) < c.callers {
					score = max(0, score-4)
				}
				return score == 10
			}))
		})
	}
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
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	rdb := redis.NewClient(&redis.Options{Addr: silent.Addr().String(),
		TLSConfig: &tls.Config{ServerName: "redis.example"}, DialTimeout: testkit.Patience})
	defer rdb.Close()
	limiter, log := testkit.LoggedLimiter(t, rdb, ginlimit.WithTimeout(ginlimit.DefaultTimeout))
	testkit.UntilLogged(t, limiter, log, "circuit breaker open")
	require.NoError(t, limiter.Close())
}

func (chargesHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (chargesHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (detour) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (detour) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

package ginlimit_test

import (
	"context"
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
)

// How Redis is given up for lost and found back.

// logged returns a limiter without fallback and its log.
func logged(t *testing.T, rdb redis.UniversalClient, opts ...ginlimit.Option) (*ginlimit.Limiter, *lockedBuffer) {
	var log lockedBuffer
	return newLimiter(t, rdb, append(opts, ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))...), &log
}

// untilLogged asks until the log has a word.
func untilLogged(t *testing.T, limiter *ginlimit.Limiter, log *lockedBuffer, word string) {
	t.Helper()
	require.True(t, becomesTrue(t.Context().Done(), func() bool {
		_, _ = limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
		return strings.Contains(log.String(), word)
	}))
}

func TestNobodyAsksALostRedis(t *testing.T) {
	t.Parallel()
	addr, process := startRedisProcess(t)
	for name, rdb := range clients(t, addr) {
		limiter, log := logged(t, rdb, ginlimit.WithTimeout(ginlimit.DefaultTimeout))
		var calls atomic.Int64
		rdb.AddHook(aroundHook(func(send func() error) error { calls.Add(1); return send() }))
		require.True(t, becomesTrue(t.Context().Done(), func() bool {
			_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
			return err == nil
		}))
		require.NoError(t, process.Signal(syscall.SIGSTOP))
		untilLogged(t, limiter, log, "Redis is lost")
		before := calls.Load()
		for i := range 10_000 {
			_, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), ginlimit.PerHour(1))
			require.ErrorIs(t, err, ginlimit.ErrUnavailable)
		}
		require.LessOrEqual(t, calls.Load()-before, int64(10), "a blind probe every five seconds, %s", name)
		require.NoError(t, process.Signal(syscall.SIGCONT))
		untilLogged(t, limiter, log, "Redis is back")
		for i := range 10 { // and nothing was kept to be asked later
			require.True(t, becomesTrue(t.Context().Done(), func() bool {
				r, err := limiter.Peek(t.Context(), fmt.Sprint("client ", 1000*i), ginlimit.PerHour(1))
				return err == nil && r.Allowed
			}))
		}
	}
}

// TestOneCutLosesNothing cuts all connections once while decisions are on their way: that is no reason to give
// Redis up.
func TestOneCutLosesNothing(t *testing.T) {
	t.Parallel()
	p, addr := startProxy(t, startRedis(t))
	limiter, log := logged(t, connect(t, addr))
	works := func() bool {
		_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
		return err == nil
	}
	require.True(t, becomesTrue(t.Context().Done(), works))
	p.swallow.Store(true)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			_, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), ginlimit.PerHour(1))
			if err != nil {
				assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
			}
		})
	}
	require.True(t, becomesTrue(t.Context().Done(), func() bool { return p.swallowed.Load() > 0 }))
	p.swallow.Store(false)
	p.cutAll()
	p.cut.Store(false)
	all.Wait()
	require.True(t, becomesTrue(t.Context().Done(), works))
	require.Empty(t, log.String())
}

// TestCallersWhoLeaveAreNoFailure has callers give up on a Redis that is slower than they are patient.
func TestCallersWhoLeaveAreNoFailure(t *testing.T) {
	t.Parallel()
	p, addr := startProxy(t, startRedis(t))
	limiter, log := logged(t, connect(t, addr), ginlimit.WithFailure(ginlimit.FailLocal))
	limit := ginlimit.PerDay(1000)
	r, err := limiter.Allow(t.Context(), "k", limit)
	require.NoError(t, err)
	require.Equal(t, ginlimit.FromRedis, r.Source)
	p.delay.Store(int64(100 * time.Millisecond))
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := limiter.Allow(ctx, "k", limit)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		cancel()
	}
	p.delay.Store(0)
	r, err = limiter.Allow(t.Context(), "k", limit)
	require.NoError(t, err)
	require.Equal(t, ginlimit.FromRedis, r.Source)
	require.Empty(t, log.String())
	require.NoError(t, limiter.Close())
}

// TestRefusedConnectionsAreNotTriedByEveryone counts the connections to a Redis that refuses the password.
func TestRefusedConnectionsAreNotTriedByEveryone(t *testing.T) {
	t.Parallel()
	addr := startRedis(t)
	admin := connect(t, addr)
	require.NoError(t, admin.ConfigSet(t.Context(), "requirepass", "right").Err())
	rdb := redis.NewClient(&redis.Options{Addr: addr, Password: "wrong"})
	defer rdb.Close()
	limiter, log := logged(t, rdb)
	untilLogged(t, limiter, log, "reason=WRONGPASS")
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

// TestFlappingRedisIsLostOnce has Redis answer looks and keep charges waiting.
func TestFlappingRedisIsLostOnce(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limiter, log := logged(t, rdb, ginlimit.WithTimeout(ginlimit.DefaultTimeout))
	var slow atomic.Bool
	rdb.AddHook(chargesHook(func() error {
		if slow.Load() {
			pause(80 * time.Millisecond)
		}
		return nil
	}))
	require.True(t, becomesTrue(t.Context().Done(), func() bool {
		_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
		return err == nil
	}))
	slow.Store(true)
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		_, _ = limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
		pause(time.Millisecond)
	}
	slow.Store(false)
	untilLogged(t, limiter, log, "Redis is back")
	require.LessOrEqual(t, strings.Count(log.String(), "\n"), 4, log.String())
}

// TestOneFailureAfterTheReturnIsEnough has Redis answer looks and fail charges: each time that it seems to be back, one
// caller finds out, not several.
func TestOneFailureAfterTheReturnIsEnough(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limiter, log := logged(t, rdb)
	broken := errors.New("broken")
	rdb.AddHook(chargesHook(func() error { return broken }))
	untilLogged(t, limiter, log, "Redis is lost")
	for returns, before := 0, error(nil); returns < 5; {
		_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
		if errors.Is(err, broken) {
			require.NotErrorIs(t, before, broken, "another one was sent")
			returns++
		} else {
			pause(time.Millisecond)
		}
		before = err
	}
}

// chargesHook is called before each call of the script that is not a look, and may keep it from Redis.
type chargesHook func() error

func (chargesHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h chargesHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); strings.HasPrefix(cmd.Name(), "eval") && fmt.Sprint(args[4]) != "0" {
			if err := h(); err != nil {
				return err
			}
		}
		return next(ctx, cmd)
	}
}
func (chargesHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestProbesSurviveTheDialer has the client's dialer panic, hang or return nothing.
func TestProbesSurviveTheDialer(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func() (net.Conn, error){
		"panics":  func() (net.Conn, error) { panic("fault") },
		"nothing": func() (net.Conn, error) { return nil, nil },
		"hangs":   func() (net.Conn, error) { pause(2 * time.Second); return nil, errors.New("late") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, process := startRedisProcess(t)
			var broken atomic.Bool
			rdb := redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
				if broken.Load() {
					return fault()
				}
				return net.Dial("tcp", addr)
			}})
			defer rdb.Close()
			limiter, log := logged(t, rdb, ginlimit.WithTimeout(ginlimit.DefaultTimeout))
			require.True(t, becomesTrue(t.Context().Done(), func() bool {
				_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
				return err == nil
			}))
			require.NoError(t, process.Signal(syscall.SIGSTOP))
			untilLogged(t, limiter, log, "Redis is lost")
			broken.Store(true)
			pause(500 * time.Millisecond)
			broken.Store(false)
			require.NoError(t, process.Signal(syscall.SIGCONT))
			untilLogged(t, limiter, log, "Redis is back")
		})
	}
}

// TestRedisIsFoundByAWayOfAHook has a hook connect to a server whose address the client does not have.
func TestRedisIsFoundByAWayOfAHook(t *testing.T) {
	t.Parallel()
	addr, process := startRedisProcess(t)
	rdb := nowhere(t)
	rdb.AddHook(detour{addr})
	limiter, log := logged(t, rdb)
	_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
	require.NoError(t, err)
	require.NoError(t, process.Kill())
	untilLogged(t, limiter, log, "Redis is lost")
	require.NotNil(t, launchRedis(t, addr))
	untilLogged(t, limiter, log, "Redis is back")
}

// detour is a client's hook that connects to another address.
type detour struct{ addr string }

func (d detour) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, _ string) (net.Conn, error) { return next(ctx, network, d.addr) }
}
func (detour) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (detour) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestCloseEndsTheSearch closes a limiter whose Redis is lost.
func TestCloseEndsTheSearch(t *testing.T) {
	t.Parallel()
	pprof.Do(t.Context(), pprof.Labels("test", t.Name()), func(context.Context) {
		limiter, log := logged(t, nowhere(t))
		untilLogged(t, limiter, log, "Redis is lost")
		require.Positive(t, goroutinesLeft(t))
		require.NoError(t, limiter.Close())
		_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	})
	require.True(t, becomesTrue(t.Context().Done(), func() bool { return goroutinesLeft(t) == 0 }))
}

// TestRefusalsAreToldOnce has the log told of errors of Redis now and then, without their text.
func TestRefusalsAreToldOnce(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limiter, log := logged(t, rdb)
	require.NoError(t, rdb.RPush(t.Context(), redisKey("secret", ginlimit.PerHour(1)), "x").Err())
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
	t.Parallel()
	for _, c := range []struct{ pool, callers int }{{pool: 10, callers: 4}, {pool: 3, callers: 4}, {pool: 1, callers: 2}, {pool: 10, callers: 2}} {
		t.Run(fmt.Sprintf("%d connections, %d callers", c.pool, c.callers), func(t *testing.T) {
			t.Parallel()
			p, addr := startProxy(t, startRedis(t))
			rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, PoolSize: c.pool})
			defer rdb.Close()
			limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithLogger(slog.New(slog.DiscardHandler)))
			require.NoError(t, err)
			defer limiter.Close()
			require.True(t, becomesTrue(t.Context().Done(), func() bool { // by one connection, so that Redis is not lost meanwhile
				r, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1_000_000))
				return err == nil && r.Source == ginlimit.FromRedis
			}))
			p.delay.Store(int64(20 * time.Millisecond))
			inARow := 0
			require.True(t, becomesTrue(t.Context().Done(), func() bool {
				var inRedis atomic.Int64
				var all sync.WaitGroup
				for caller := range c.callers {
					all.Go(func() {
						r, err := limiter.Allow(t.Context(), fmt.Sprint("k", caller), ginlimit.PerHour(1_000_000))
						if assert.NoError(t, err) && r.Source == ginlimit.FromRedis {
							inRedis.Add(1)
						}
					})
				}
				all.Wait()
				if inARow++; int(inRedis.Load()) < c.callers {
					inARow = 0
				}
				return inARow == 10
			}))
		})
	}
}

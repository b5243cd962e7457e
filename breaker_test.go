package ginlimit_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
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

// TestOneCutLosesNothing cuts the connections once: that is no reason to give Redis up.
func TestOneCutLosesNothing(t *testing.T) {
	t.Parallel()
	p, addr := startProxy(t, startRedis(t))
	limiter, log := logged(t, connect(t, addr))
	works := func() bool {
		_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
		return err == nil
	}
	require.True(t, becomesTrue(t.Context().Done(), works))
	p.cutAll()
	p.cut.Store(false)
	require.True(t, becomesTrue(t.Context().Done(), works)) // perhaps not on the first connection, which was cut
	require.Empty(t, log.String())
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
	limiter, log := logged(t, nowhere(t))
	untilLogged(t, limiter, log, "Redis is lost")
	require.NoError(t, limiter.Close())
	_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
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

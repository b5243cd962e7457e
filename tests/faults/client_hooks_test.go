package faults_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What limiters leave on the client that they are given.

// watched is a client whose connections note how deep in calls they are written to, which is deeper
// with each hook, and the time that a reply may take.
type watched struct {
	*redis.Client
	depth, patience atomic.Int64
}

type watchedConn struct {
	net.Conn
	by *watched
}

func newWatched(t testing.TB, dial func() (net.Conn, error)) *watched {
	w := &watched{}
	w.Client = redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ReadTimeout: time.Hour,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			conn, err := dial()
			return watchedConn{conn, w}, err
		}})
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func (c watchedConn) Write(p []byte) (int, error) {
	var calls [4096]uintptr
	c.by.depth.Store(int64(runtime.Callers(0, calls[:])))
	return c.Conn.Write(p)
}

func (c watchedConn) SetReadDeadline(t time.Time) error {
	c.by.patience.Store(int64(time.Until(t)))
	return c.Conn.SetReadDeadline(t)
}

// depthOf returns how deep the calls of an application's command are.
func (w *watched) depthOf(t testing.TB) int {
	require.NoError(t, w.Ping(t.Context()).Err())
	return int(w.depth.Load())
}

// framesOfHook is how much deeper a hook makes calls, or less.
const framesOfHook = 3

// TestLimitersShareAHook: however many there are, an application's commands pass one hook more.
func TestLimitersShareAHook(t *testing.T) {
	t.Parallel()
	rdb := newWatched(t, miniredisDialer(t))
	before := rdb.depthOf(t)
	for i := range 20 {
		_, err := testkit.NewLimiter(t, rdb.Client, ginlimit.WithPrefix(fmt.Sprint(i))).Allow(t.Context(),
			"k", ginlimit.PerHour(1))
		require.NoError(t, err)
	}
	require.LessOrEqual(t, rdb.depthOf(t), before+framesOfHook)
}

// TestHookIsAddedAgainOnlyForHooks: not for what else has go-redis look at the hooks of a client,
// such as transactions, connections and automatic pipelines.
func TestHookIsAddedAgainOnlyForHooks(t *testing.T) {
	t.Parallel()
	rdb := newWatched(t, miniredisDialer(t))
	limiter := testkit.NewLimiter(t, rdb.Client)
	auto, err := rdb.AutoPipeline()
	require.NoError(t, err)
	defer auto.Close()
	allow := func() {
		_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
		require.NoError(t, err)
	}
	before := rdb.depthOf(t)
	allow()
	for range 10 {
		conn := rdb.Conn()
		require.NoError(t, conn.Ping(t.Context()).Err())
		require.NoError(t, conn.Close())
		allow()
		require.NoError(t, rdb.Watch(t.Context(), func(tx *redis.Tx) error { return tx.Ping(t.Context()).Err() }, "w"))
		allow()
		require.NoError(t, auto.Ping(t.Context()).Err())
		allow()
	}
	require.LessOrEqual(t, rdb.depthOf(t), before+framesOfHook)
	for range 3 {
		var seen atomic.Int64
		rdb.AddHook(testkit.EveryScript(func(send func() error) error { seen.Add(1); return send() }))
		allow()
		allow()
		require.EqualValues(t, 2, seen.Load(), "a hook that is added later sees the limiter's commands")
	}
}

// TestLimitersOfAClientKeepTheirTimeouts, though they share a hook.
func TestLimitersOfAClientKeepTheirTimeouts(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		rdb := newWatched(t, b.Mini.Dial)
		limiters := map[time.Duration]*testkit.Limiter{}
		for _, timeout := range []time.Duration{time.Second, time.Minute, 30 * time.Minute} {
			limiters[timeout] = testkit.NewLimiter(t, rdb.Client, ginlimit.WithTimeout(timeout))
		}
		for range 3 {
			for timeout, limiter := range limiters {
				_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
				require.NoError(t, err)
				require.Equal(t, timeout, time.Duration(rdb.patience.Load()))
				require.NoError(t, rdb.Ping(t.Context()).Err())
				require.Equal(t, time.Hour, time.Duration(rdb.patience.Load()))
			}
		}
	})
}

// TestManyLimitersOfAClientAreWarnedOf once, at the hundredth that is open.
func TestManyLimitersOfAClientAreWarnedOf(t *testing.T) {
	t.Parallel()
	const line = `level=WARN msg="ginlimit: 100 limiters use one Redis client; make one limiter and share it"`
	addr := miniredis.RunT(t).Addr()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addr}})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr},
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
		}})
	for name, rdb := range map[string]redis.UniversalClient{"server": testkit.Connect(t, addr),
		"cluster": cluster, "ring": ring} {
		t.Run(name, func(t *testing.T) {
			defer rdb.Close()
			var logs []*testkit.Buffer
			use := func() *testkit.Limiter {
				limiter, log := testkit.LoggedLimiter(t, rdb, ginlimit.WithDenyCache(4), testkit.TrustsClock())
				logs = append(logs, log)
				_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
				require.NoError(t, err)
				return limiter
			}
			for range 60 {
				require.NoError(t, use().Close())
			}
			for range 99 {
				use()
			}
			for _, log := range logs {
				require.Empty(t, log.String())
			}
			last := len(logs)
			for range 20 {
				use()
			}
			require.Equal(t, 1, strings.Count(logs[last].String(), line), logs[last])
			for _, log := range logs[last+1:] {
				require.Empty(t, log.String())
			}
		})
	}
}

// TestHooksAndLimitersComeAtOnce: limiters are used for the first time while the application adds
// hooks. The race detector looks.
func TestHooksAndLimitersComeAtOnce(t *testing.T) {
	t.Parallel()
	rdb := newWatched(t, miniredisDialer(t))
	before := rdb.depthOf(t)
	var all sync.WaitGroup
	const hooks = 8
	for i := range hooks {
		limiter := testkit.NewLimiter(t, rdb.Client, ginlimit.WithPrefix(fmt.Sprint(i)))
		all.Go(func() { rdb.AddHook(testkit.EveryScript(func(send func() error) error { return send() })) })
		all.Go(func() {
			for range 20 {
				_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
				assert.NoError(t, err)
			}
			assert.NoError(t, limiter.Close())
		})
	}
	all.Wait()
	require.LessOrEqual(t, rdb.depthOf(t), before+(2*hooks+1)*framesOfHook)
}

// miniredisDialer connects to a Redis of the test's own.
func miniredisDialer(t *testing.T) func() (net.Conn, error) {
	addr := miniredis.RunT(t).Addr()
	return func() (net.Conn, error) { return net.Dial("tcp", addr) }
}

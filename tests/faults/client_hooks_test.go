package faults_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
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

// TestHooksSeeTheCommandsOfALimiter that is made after them. One that is added later does not.
func TestHooksSeeTheCommandsOfALimiter(t *testing.T) {
	t.Parallel()
	rdb := newWatched(t, miniredisDialer(t))
	before := rdb.depthOf(t)
	const limiters = 4
	var seen [limiters]atomic.Int64
	for i := range limiters {
		rdb.AddHook(testkit.EveryScript(func(send func() error) error { seen[i].Add(1); return send() }))
		limiter := testkit.NewLimiter(t, rdb.Client, ginlimit.WithPrefix(fmt.Sprint(i)))
		for range 2 {
			testkit.Must(limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000)))
		}
	}
	for i := range limiters {
		require.EqualValues(t, 2*(limiters-i), seen[i].Load())
	}
	require.LessOrEqual(t, rdb.depthOf(t), before+2*limiters*framesOfHook, "each limiter adds one")
}

// TestLimitersOfAClientKeepTheirTimeouts.
func TestLimitersOfAClientKeepTheirTimeouts(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		rdb := newWatched(t, b.Mini.Dial)
		limiters := map[time.Duration]*testkit.Limiter{}
		for _, timeout := range []time.Duration{time.Second, time.Minute, 30 * time.Minute} {
			limiters[timeout] = testkit.NewLimiter(t, rdb.Client, ginlimit.WithTimeout(timeout))
		}
		for range 3 {
			for timeout, limiter := range limiters {
				testkit.Must(limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000)))
				require.Equal(t, timeout, time.Duration(rdb.patience.Load()))
				require.NoError(t, rdb.Ping(t.Context()).Err())
				require.Equal(t, time.Hour, time.Duration(rdb.patience.Load()))
			}
		}
	})
}

// miniredisDialer connects to a Redis of the test's own.
func miniredisDialer(t *testing.T) func() (net.Conn, error) {
	addr := miniredis.RunT(t).Addr()
	return func() (net.Conn, error) { return net.Dial("tcp", addr) }
}

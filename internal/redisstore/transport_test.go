package redisstore

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// TestPingEndsWithItsContext pings a server that accepts and never answers, as a stopped one does.
func TestPingEndsWithItsContext(t *testing.T) {
	t.Parallel()
	here, there := net.Pipe()
	defer there.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = io.ReadFull(there, make([]byte, len("*1\r\n$4\r\nPING\r\n")))
		cancel()
	}()
	ping := transport{dial: func(context.Context, string) (net.Conn, error) { return here, nil }}
	require.ErrorIs(t, ping.Ping(ctx, "k", time.Minute), io.ErrClosedPipe)
}

// TestCauseIsSoughtNoLongerThanItsContext also for a cluster with many addresses, and for a Dialer
// that outlives its context, as go-redis' Dialer does for TLS.
func TestCauseIsSoughtNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int32
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: slices.Repeat([]string{"192.0.2.1:6379"}, 40),
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				dials.Add(1)
				time.Sleep(time.Minute)
				return nil, errors.New("late")
			},
		})
		defer rdb.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		start := time.Now()
		n := &nodes{store: &Store{rdb: rdb}, nodeForKey: rdb.MasterForKey, refresh: rdb.ReloadState}
		text, _ := n.transport(nil).Reason(ctx, "k", dispatch.ErrLate)
		require.Equal(t, "late", text)
		require.Equal(t, 50*time.Millisecond+dispatch.EndGrace, time.Since(start))
		require.EqualValues(t, 1, dials.Load())
		time.Sleep(time.Minute) // until the Dialer returns
	})
}

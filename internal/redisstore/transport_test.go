package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// TestReasonsNameNoKey has a hook of the client, say, put a key around an error.
func TestReasonsNameNoKey(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		err        error
		want, word string
	}{
		{redis.ErrCrossSlot, "CROSSSLOT", "CROSSSLOT"},
		{&net.OpError{Op: "read", Err: errors.New("reset")}, "read: reset", "network"},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, "dial: connection refused", "connection_refused"},
		{&net.DNSError{Err: "no such host", Name: "redis.example"}, "lookup redis.example: no such host", "unknown_host"},
		{io.EOF, "EOF", "network"},
		{io.ErrUnexpectedEOF, "unexpected EOF", "client"},
		{net.ErrClosed, "use of closed network connection", "network"},
		{syscall.ECONNREFUSED, "connection refused", "connection_refused"},
		{context.DeadlineExceeded, "late", "late"},
		{context.Canceled, "context canceled", "client"},
		{redis.ErrClosed, "the client is closed", "client"},
		{redis.ErrPoolTimeout, "no connection of the client was free", "pool"},
		{redis.ErrPoolExhausted, "no connection of the client was free", "pool"},
		{dispatch.ErrPanic, "panic", "client"},
		{dispatch.ErrGoexit, "goexit", "client"},
		{errNoConn, "the Dialer returned no connection", "client"},
		{errHangsUp, "the server closes new connections; it may expect TLS", "network"},
		{errWantsTLS, "the server expects TLS", "tls"},
		{errNoRedis, "the server does not speak Redis' protocol", "client"},
		{&net.DNSError{Err: "no such host", Name: "alice:secret@redis.example"}, "lookup redis.example: no such host", "unknown_host"},
		{&net.OpError{Op: "dial", Err: &net.AddrError{Err: "missing port in address", Addr: "alice:secret@localhost"}},
			"address localhost: missing port in address", "network"},
		{tls.RecordHeaderError{Msg: "no TLS"}, "tls: no TLS", "tls"},
		{tls.AlertError(40), "tls: handshake failure", "tls"},
		{&tls.CertificateVerificationError{Err: errors.New("expired")}, "tls: failed to verify certificate: expired", "tls"},
		{replyError("MOVED 1 127.0.0.1:1"), "MOVED", "MOVED"},
		{replyError("ALICE is too large"), "ALICE", "reply"},
		{replyError("alice@example.org is too large"), "redisstore.replyError", "reply"},
		{replyError("ERR alice@example.org"), "ERR", "ERR"},
		{replyError("ERR DB index is out of range: alice"), "ERR: the database number is out of range", "ERR"},
		{replyError("ERR invalid DB index"), "ERR: the database number is out of range", "ERR"},
		{replyError("ERR SELECT is not allowed in cluster mode"), "ERR: a cluster has no database but number 0", "ERR"},
		{replyError("ERR max number of clients reached"), "ERR: there are as many clients as maxclients allows", "ERR"},
		{redis.Nil, "a nil reply", "reply"},
		{errors.New("alice@example.org"), "an error of the client of type *fmt.wrapError", "client"},
	} {
		err := fmt.Errorf("alice@example.org: %w", row.err)
		require.Equal(t, row.want, reason(err))
		require.Equal(t, row.word, Word(err), row.err)
	}
}

// replyError is an error that says that Redis has replied it.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

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

// TestCauseIsSoughtNoLongerThanItsContext: of a cluster with many addresses too, and a Dialer that
// outlives its context, as that of go-redis for TLS does.
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
		require.Error(t, (&nodes{store: &Store{rdb: rdb}}).connect(ctx))
		require.Equal(t, 50*time.Millisecond+dispatch.EndGrace, time.Since(start))
		require.EqualValues(t, 1, dials.Load())
		time.Sleep(time.Minute) // until the Dialer returns
	})
}

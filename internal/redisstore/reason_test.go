package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// TestReasonsNameNoKey wraps a key around an error, as a hook of the client may.
func TestReasonsNameNoKey(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		err        error
		want, word string
	}{
		{redis.ErrCrossSlot, "CROSSSLOT", "CROSSSLOT"},
		{&net.OpError{Op: "read", Err: errors.New("reset")}, "read: reset", "network"},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, "dial: connection refused", "connection_refused"},
		{&net.DNSError{Err: "no such host", Name: "redis.example"}, "lookup redis.example: no such host",
			"unknown_host"},
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
		{&net.DNSError{Err: "no such host", Name: "alice:secret@redis.example"}, "lookup redis.example: no such host",
			"unknown_host"},
		{&net.OpError{Op: "dial", Err: &net.AddrError{Err: "missing port in address", Addr: "alice:secret@localhost"}},
			"address localhost: missing port in address", "network"},
		{tls.RecordHeaderError{Msg: "no TLS"}, "tls: no TLS", "tls"},
		{tls.AlertError(40), "tls: handshake failure", "tls"},
		{&tls.CertificateVerificationError{Err: errors.New("expired")}, "tls: failed to verify certificate: expired",
			"tls"},
		{replyError("MOVED 1 127.0.0.1:1"), "MOVED", "MOVED"},
		{replyError("ALICE is too large"), "ALICE", "reply"},
		{replyError("alice@example.org is too large"), "redisstore.replyError", "reply"},
		{replyError("ERR alice@example.org"), "ERR", "ERR"},
		{replyError("ERR DB index is out of range: alice"), "ERR: the database number is out of range", "ERR"},
		{replyError("ERR invalid DB index"), "ERR: the database number is out of range", "ERR"},
		{replyError("ERR SELECT is not allowed in cluster mode"), "ERR: a cluster has no database but number 0", "ERR"},
		{replyError("ERR max number of clients reached"), "ERR: there are as many clients as maxclients allows", "ERR"},
		{replyError("ERR Protocol error: unauthenticated bulk length"), "NOAUTH", "NOAUTH"},
		{replyError("ERR Protocol error: unauthenticated multibulk length"), "NOAUTH", "NOAUTH"},
		{replyError("ERR Protocol error: invalid bulk length"), "ERR", "ERR"},
		{redis.Nil, "a nil reply", "reply"},
		{errors.New("alice@example.org"), "an error of the client of type *fmt.wrapError", "client"},
	} {
		err := fmt.Errorf("alice@example.org: %w", row.err)
		require.Equal(t, row.want, reason(err))
		require.Equal(t, row.word, Word(err), row.err)
	}
}

// replyError is an error reply of Redis.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

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

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/goroutine"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// list is a reply of several integers, or an error.
func list(err error, reply ...int64) redis.Cmder {
	cmd := redis.NewIntSliceCmd(context.Background())
	cmd.SetVal(reply)
	cmd.SetErr(err)
	return cmd
}

// single is a reply of one integer.
func single(reply int64) redis.Cmder {
	cmd := redis.NewIntCmd(context.Background())
	cmd.SetVal(reply)
	return cmd
}

// TestReply is an error of all groups of its command. One that Redis replied to several has each sent alone.
func TestReply(t *testing.T) {
	t.Parallel()
	network, oom, crossSlot := errors.New("a network's"), replyError("OOM no memory"), replyError("CROSSSLOT no")
	for name, row := range map[string]struct {
		reply  redis.Cmder
		groups int
		want   string
	}{
		"a level":                      {single(7), 1, ""},
		"a level below 0":              {single(-1), 1, "the script replies 0 integers, not 1"},
		"too many":                     {list(nil, 7, 8), 1, "the script replies 2 integers, not 1"},
		"an error":                     {list(oom), 1, oom.Error()},
		"an error of the way":          {list(network), 1, network.Error()},
		"no reply":                     {redis.NewStringCmd(context.Background()), 1, "the script replies 0 integers, not 1"},
		"levels":                       {list(nil, 7, 8), 2, ""},
		"several, denied as a whole":   {list(crossSlot), 2, wire.ErrRetrySingle.Error()},
		"several, an error of the way": {list(network), 2, network.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := command{Cmder: row.reply, groups: []*dispatch.Group{take("a", 1), take("b", 1)}[:row.groups]}
			c.decode(nil)
			for _, g := range c.groups {
				if row.want == "" {
					require.NoError(t, g.Err)
				} else {
					require.EqualError(t, g.Err, row.want)
				}
			}
		})
	}
}

// TestPipelineThatWasNotSent fails the commands that have neither an error nor a value.
func TestPipelineThatWasNotSent(t *testing.T) {
	t.Parallel()
	err, own := errors.New("of the pipeline"), errors.New("its own")
	for name, row := range map[string]struct {
		cmd  redis.Cmder
		want error
	}{
		"no level": {single(-1), err},
		"a level":  {single(0), nil},
		"no list":  {list(nil), err},
		"a list":   {list(nil, 1), nil},
		"an own":   {list(own), own},
	} {
		c := command{Cmder: row.cmd}
		c.notSent(err)
		require.Equal(t, row.want, c.Err(), name)
	}
}

// newAnswers returns the answers of a Redis, and a client of it.
func newAnswers(t *testing.T) (*Answers, *redis.Client) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	return NewAnswers(rdb), rdb
}

// TestAnswers: a question, its answer, and what a Forget in between does.
func TestAnswers(t *testing.T) {
	t.Parallel()
	answers, rdb := newAnswers(t)
	ctx := t.Context()
	get := func() (string, time.Duration) {
		t.Helper()
		text, left, err := answers.Get(ctx, "k")
		require.NoError(t, err)
		return text, left
	}
	text, _ := get()
	require.Empty(t, text)

	for _, fresh := range []string{"1", "2"} {
		token, err := answers.Token(ctx, "k", fresh, time.Second)
		require.NoError(t, err)
		require.Equal(t, "1", token, "the first one stays")
	}
	require.Equal(t, time.Second, rdb.PTTL(ctx, "k:token").Val())
	stored, err := answers.Store(ctx, "k", "1", "text", time.Minute)
	require.NoError(t, err)
	require.True(t, stored)
	text, left := get()
	require.Equal(t, "text", text)
	require.Equal(t, time.Minute, left)

	token, err := answers.Token(ctx, "k", "3", time.Second)
	require.NoError(t, err)
	require.Equal(t, "3", token)
	require.NoError(t, answers.Forget(ctx, "k", "4", 2*time.Second))
	require.Equal(t, 2*time.Second, rdb.PTTL(ctx, "k:token").Val())
	text, _ = get()
	require.Empty(t, text)
	stored, err = answers.Store(ctx, "k", token, "old", time.Minute)
	require.NoError(t, err)
	require.False(t, stored)

	require.NoError(t, rdb.RPush(ctx, "list", "x").Err())
	_, _, err = answers.Get(ctx, "list")
	require.True(t, IsErrorReply(err))
}

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
		{goroutine.ErrPanic, "panic", "client"},
		{goroutine.ErrGoexit, "goexit", "client"},
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
		{replyError(inScript62 + "-OOM command not allowed when used memory > 'maxmemory'.   "), "OOM", "OOM"},
		{replyError(inScript62 + "-READONLY You can't write against a read only replica.   "), "READONLY", "READONLY"},
		{replyError(inScript62 + "-NOREPLICAS Not enough good replicas to write.   "), "NOREPLICAS", "NOREPLICAS"},
		{replyError(inScript62 + "-MISCONF Redis is configured to save RDB snapshots, but it is currently not able to " +
			"persist on disk."), "MISCONF", "MISCONF"},
		{replyError(inScript62 + "Script attempted to access a non local key in a cluster node"), "ERR", "ERR"},
		{replyError(inScript62 + "-ALICE@example.org is too large"), "ERR", "ERR"},
		{replyError("ERR Error running script (call to f_8f55ae4a): @user_script:1: WRONGTYPE Operation against a key " +
			"holding the wrong kind of value"), "WRONGTYPE", "WRONGTYPE"},
		{replyError("ERR Error running script (call to f_8f55ae4a): @user_script:1: user_script:1: attempt to index nil"),
			"ERR", "ERR"},
		{replyError("Error running script (call to 8f55ae4a): @user_script:2: -ERR This Redis command is not allowed " +
			"from script"), "ERR", "ERR"},
		{replyError("Error running script (call to 8f55ae4a): @user_script:2: -OOM Out of memory"), "OOM", "OOM"},
		{replyError("OOM command not allowed when used memory > 'maxmemory'. script: 8f55ae4a, on @user_script:1."),
			"OOM", "OOM"},
		{replyError("READONLY You can't write against a read only replica. script: 8f55ae4a, on @user_script:1."),
			"READONLY", "READONLY"},
		{redis.Nil, "a nil reply", "reply"},
		{errors.New("alice@example.org"), "an error of the client of type *fmt.wrapError", "client"},
	} {
		err := fmt.Errorf("alice@example.org: %w", row.err)
		require.Equal(t, row.want, reason(err))
		require.Equal(t, row.word, Word(err), row.err)
	}
}

// inScript62 begins the reply of Redis 6.2, and of those before, if a script's command may not run.
const inScript62 = "ERR Error running script (call to f_8f55ae4a3be429c6d38c5d5db3e80edf89197b64): @user_script:41: " +
	"@user_script: 41: "

// TestAnotherMasterMayBeThere by some replies, also by those of a script's command.
func TestAnotherMasterMayBeThere(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"READONLY You can't write against a read only replica.":                            true,
		inScript62 + "-READONLY You can't write against a read only replica.":              true,
		inScript62 + "-NOREPLICAS Not enough good replicas to write.":                      true,
		"NOREPLICAS Not enough good replicas to write.":                                    true,
		"LOADING Redis is loading the dataset in memory":                                   true,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": true,
		inScript62 + "-OOM command not allowed when used memory > 'maxmemory'.":            false,
		"ERR READONLY": false,
	} {
		require.Equal(t, want, isStale(fmt.Errorf("of a hook: %w", replyError(text))), text)
	}
	require.False(t, isStale(nil))
	require.False(t, isStale(io.EOF))
}

// replyError is an error reply of Redis.
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
		require.Equal(t, 50*time.Millisecond+goroutine.EndGrace, time.Since(start))
		require.EqualValues(t, 1, dials.Load())
		time.Sleep(time.Minute) // until the Dialer returns
	})
}

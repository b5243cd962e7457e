package redisstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// transport carries the batches of one dispatcher.
type transport struct {
	nodes *nodes
	// dial connects to the server of a key, as the client does; nil if it is not known how.
	dial func(ctx context.Context, key string) (net.Conn, error)
	// sharing says how calls share commands; nil if they do not, as it is not known where their
	// keys are.
	sharing *sharing
}

// Send implements [dispatch.Transport].
func (t *transport) Send(ctx context.Context, b *dispatch.Batch) error {
	err := t.nodes.store.send(ctx, b, t.sharing)
	if n := t.nodes; n.of != nil && err == nil && !n.reached.Load() {
		n.reached.Store(true)
	}
	return err
}

// Ping implements [dispatch.Transport]. The connection is not one of the client's: those that Redis
// never answers are held for as long as the client's own timeouts are, and after so many failures
// as it has connections the client makes none for a second.
func (t *transport) Ping(ctx context.Context, key string, timeout time.Duration) error {
	if t.dial == nil {
		t.nodes.find(ctx, key)
		return nil
	}
	conn, err := t.dial(ctx, key)
	if err != nil {
		return err
	}
	if conn != nil {
		if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
			_ = conn.Close()
			return err
		}
	}
	_, err = ping(ctx, conn) // a reply that wants a password counts too
	return err
}

// dial connects to a client's server.
func dial(ctx context.Context, rdb *redis.Client) (net.Conn, error) {
	opts := rdb.Options()
	return opts.Dialer(ctx, opts.Network, opts.Addr)
}

// Reason implements [dispatch.Transport]. go-redis dials again and again, so a denied connection
// looks late.
func (t *transport) Reason(ctx context.Context, err error) (text, word string) {
	if !says(err) {
		err = cmp.Or(t.nodes.connect(ctx), err)
	}
	return reason(err), Word(err)
}

// connect returns why none of the servers that the client was given is of use, or nil if any of
// them seems to be, or if they are not known.
func (n *nodes) connect(ctx context.Context) error {
	first, used := n.probe(ctx)
	if used {
		return nil
	}
	return first
}

// probe connects to the servers that the client was given. It returns the first fault, and whether
// a server has none.
func (n *nodes) probe(ctx context.Context) (first error, used bool) {
	addrs, options := n.given()
	for _, options.Addr = range addrs {
		err := probe(ctx, options)
		used = used || err == nil
		if first = cmp.Or(first, err); ctx.Err() != nil {
			break
		}
	}
	return first, used
}

// given returns the addresses that the client was given, and the options for its Dialer; none if
// they are not known.
func (n *nodes) given() (addrs []string, options redis.Options) {
	switch rdb := n.store.rdb.(type) {
	case *redis.Client:
		return []string{rdb.Options().Addr}, *rdb.Options()
	case *redis.ClusterClient:
		o := rdb.Options()
		return slices.Clone(o.Addrs), redis.Options{Dialer: o.Dialer, DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig}
	case *redis.Ring:
		o := rdb.Options()
		addrs = slices.Compact(slices.Sorted(maps.Values(o.Addrs)))
		return addrs, redis.Options{Dialer: o.Dialer, DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig}
	}
	return nil, redis.Options{}
}

// fault is an error whose text is this package's own, so that the log may have it.
type fault string

func (f fault) Error() string { return string(f) }

const (
	errNoConn     = fault("the Dialer returned no connection")
	errHangsUp    = fault("the server closes new connections; it may expect TLS")
	errWantsTLS   = fault("the server expects TLS")
	errNoRedis    = fault("the server does not speak Redis' protocol")
	errShardsDown = fault("all shards of the ring are down")
)

// probe connects to a server as a client with such options does, and returns why that fails, or
// what the server is if not a Redis. An answer that wants a password is one of Redis.
func probe(ctx context.Context, options redis.Options) error {
	if options.Dialer == nil {
		options.Dialer = redis.NewDialer(&options)
	}
	_, err := dispatch.Bounded(ctx, dispatch.EndGrace, func() (any, error) {
		conn, err := options.Dialer(ctx, cmp.Or(options.Network, "tcp"), options.Addr)
		if err != nil {
			return nil, err
		}
		first, err := ping(ctx, conn)
		switch {
		case errors.Is(err, io.EOF):
			err = errHangsUp
		case err != nil:
		case first == 0x15: // an alert, RFC 8446, section 5.1
			err = errWantsTLS
		case !strings.ContainsRune("+-:$*_,#!=(%~|>", rune(first)): // the types of RESP
			err = errNoRedis
		}
		return nil, err
	})
	return err
}

// ping sends PING on a connection, returns the first byte of the answer, and closes the connection,
// at the latest when the context ends.
func ping(ctx context.Context, conn net.Conn) (first byte, err error) {
	if conn == nil {
		return 0, errNoConn
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := conn.Write([]byte("*1\r\n$4\r\nPING\r\n")); err != nil {
		return 0, err
	}
	var answer [1]byte
	_, err = io.ReadFull(conn, answer[:])
	return answer[0], err
}

// says reports whether an error says more than that there was no answer: that of Redis, of the
// network, or of a closed client.
func says(err error) bool {
	var (
		reply   redis.Error
		network net.Error
		own     fault
	)
	return !dispatch.IsLate(err) &&
		(errors.Is(err, redis.ErrClosed) || errors.As(err, &own) || errors.As(err, &reply) || errors.As(err, &network))
}

// knownReplies are words for replies whose code says too little, by how they begin.
var knownReplies = []struct{ prefix, words string }{
	{"ERR DB index is out of range", "ERR: the database number is out of range"},
	{"ERR invalid DB index", "ERR: the database number is out of range"},
	{"ERR SELECT is not allowed in cluster mode", "ERR: a cluster has no database but number 0"},
	{"ERR max number of clients reached", "ERR: there are as many clients as maxclients allows"},
}

// reason is what the log may say of an error of Redis or of the way to it: never a client's key,
// nor what another party put around the error.
func reason(err error) string {
	var (
		own     fault
		host    *net.DNSError
		address *net.AddrError
		reply   redis.Error
		network *net.OpError
		cert    *tls.CertificateVerificationError
		record  tls.RecordHeaderError
		alert   tls.AlertError
		number  syscall.Errno
	)
	switch {
	case errors.As(err, &own):
		return own.Error()
	case errors.As(err, &host):
		lookup := *host
		lookup.Name = withoutPassword(host.Name)
		return lookup.Error()
	case errors.Is(err, redis.ErrClosed):
		return "the client is closed"
	case errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted):
		return "no connection of the client was free"
	case dispatch.IsLate(err):
		return "late"
	case errors.Is(err, redis.Nil):
		return "a nil reply"
	case errors.As(err, &reply):
		for _, known := range knownReplies {
			if strings.HasPrefix(reply.Error(), known.prefix) {
				return known.words
			}
		}
		return replyCode(reply)
	case errors.As(err, &address):
		return (&net.AddrError{Err: address.Err, Addr: withoutPassword(address.Addr)}).Error()
	case errors.As(err, &network):
		return network.Error()
	case errors.As(err, &cert):
		return cert.Error()
	case errors.As(err, &record):
		return record.Error()
	case errors.As(err, &alert):
		return alert.Error()
	case errors.As(err, &number):
		return number.Error()
	}
	for _, known := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, context.Canceled, dispatch.ErrPanic, dispatch.ErrGoexit} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return fmt.Sprintf("an error of the client of type %T", err)
}

// withoutPassword returns an address without the user and the password that a URL has before the
// host. go-redis wants none in an address, but is given some. An address that begins with @ is an
// abstract Unix socket.
func withoutPassword(addr string) string {
	if at := strings.LastIndexByte(addr, '@'); at > 0 {
		return addr[at+1:]
	}
	return addr
}

// replyWords are the codes of replies that [Word] returns as they are.
var replyWords = []string{"ASK", "BUSY", "CLUSTERDOWN", "CROSSSLOT", "ERR", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOAUTH", "NOPERM", "NOREPLICAS",
	"NOSCRIPT", "OOM", "READONLY", "TRYAGAIN", "WRONGPASS", "WRONGTYPE"}

// Word returns the kind of an error of Redis or of the way to it, for metrics: a code of
// replyWords, or one of the words below.
func Word(err error) string {
	var (
		host   *net.DNSError
		reply  redis.Error
		cert   *tls.CertificateVerificationError
		record tls.RecordHeaderError
		alert  tls.AlertError
	)
	switch {
	case errors.As(err, &host):
		return "unknown_host"
	case errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted):
		return "pool"
	case dispatch.IsLate(err):
		return "late"
	case errors.As(err, &reply):
		if code := replyCode(reply); slices.Contains(replyWords, code) {
			return code
		}
		return "reply"
	case errors.As(err, &cert) || errors.As(err, &record) || errors.As(err, &alert) || errors.Is(err, errWantsTLS):
		return "tls"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection_refused"
	case errors.As(err, new(*net.OpError)) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, errHangsUp):
		return "network"
	}
	return "client"
}

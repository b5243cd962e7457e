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
	// sharing says how calls share commands; nil if they do not, as it is not known where their keys are.
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

var errNoConn = errors.New("the Dialer returned no connection")

// Ping implements [dispatch.Transport]. The connection is not one of the client's: those that Redis never answers are
// held for as long as the client's own timeouts are, and after so many failures as it has connections the client makes
// none for a second.
func (t *transport) Ping(ctx context.Context, key string, timeout time.Duration) error {
	if t.dial == nil {
		t.nodes.find(ctx, key)
		return nil
	}
	conn, err := t.dial(ctx, key)
	if err != nil {
		return err
	}
	if conn == nil {
		return errNoConn
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("*1\r\n$4\r\nPING\r\n")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1)) // a reply that wants a password counts too
	return err
}

// dial connects to a client's server.
func dial(ctx context.Context, rdb *redis.Client) (net.Conn, error) {
	opts := rdb.Options()
	return opts.Dialer(ctx, opts.Network, opts.Addr)
}

// Reason implements [dispatch.Transport]. go-redis dials again and again, so a refused connection looks late.
func (t *transport) Reason(ctx context.Context, err error) (text, word string) {
	if !says(err) {
		err = cmp.Or(t.nodes.connect(ctx), err)
	}
	return reason(err), Word(err)
}

// connect returns why there is no connection to the servers that the client was given, or nil if there is one to any of
// them, or if they are not known.
func (n *nodes) connect(ctx context.Context) error {
	var addrs []string
	var options redis.Options // for the client's Dialer
	switch rdb := n.store.rdb.(type) {
	case *redis.Client:
		addrs, options = []string{rdb.Options().Addr}, *rdb.Options()
	case *redis.ClusterClient:
		o := rdb.Options()
		addrs, options = o.Addrs, redis.Options{Dialer: o.Dialer, DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig}
	case *redis.Ring:
		o := rdb.Options()
		addrs = slices.Collect(maps.Values(o.Addrs))
		options = redis.Options{Dialer: o.Dialer, DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig}
	}
	if options.Dialer == nil {
		options.Dialer = redis.NewDialer(&options)
	}
	if options.Network == "" {
		options.Network = "tcp"
	}
	var first error
	for _, addr := range addrs {
		_, err := dispatch.Bounded(ctx, dispatch.EndGrace, func() (any, error) {
			conn, err := options.Dialer(ctx, options.Network, addr)
			if err == nil && conn != nil {
				_ = conn.Close() // it was only for this
			}
			return nil, err
		})
		if err == nil {
			return nil
		}
		if first = cmp.Or(first, err); ctx.Err() != nil {
			break
		}
	}
	return first
}

// says reports whether an error says more than that there was no answer: that of Redis or of the network.
func says(err error) bool {
	var (
		reply   redis.Error
		network net.Error
	)
	return !dispatch.IsLate(err) && (errors.As(err, &reply) || errors.As(err, &network))
}

// reason is what the log may say of an error of Redis or of the way to it: never a client's key, nor what another party
// put around the error.
func reason(err error) string {
	var (
		host    *net.DNSError
		reply   redis.Error
		network *net.OpError
		cert    *tls.CertificateVerificationError
	)
	switch {
	case errors.As(err, &host):
		return host.Error()
	case dispatch.IsLate(err):
		return "late"
	case errors.As(err, &reply):
		return replyCode(reply)
	case errors.As(err, &network):
		return network.Error()
	case errors.As(err, &cert):
		return cert.Error()
	case errors.Is(err, io.EOF):
		return io.EOF.Error()
	}
	return fmt.Sprintf("%T", err)
}

// replyWords are the codes of replies that [Word] returns as they are.
var replyWords = []string{"ASK", "BUSY", "CLUSTERDOWN", "CROSSSLOT", "ERR", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOAUTH", "NOPERM", "NOREPLICAS",
	"NOSCRIPT", "OOM", "READONLY", "TRYAGAIN", "WRONGPASS", "WRONGTYPE"}

// Word returns the kind of an error of Redis or of the way to it, for metrics: a code of replyWords, or one of the words below.
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
	case errors.As(err, &cert) || errors.As(err, &record) || errors.As(err, &alert):
		return "tls"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection_refused"
	case errors.As(err, new(*net.OpError)) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed):
		return "network"
	}
	return "client"
}

package redisstore

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// transport sends the batches of one dispatcher.
type transport struct {
	nodes *nodes
	node  *redis.Client // the server; nil if unknown
	// dial connects to a key's server as the client would; nil if the servers are unknown.
	dial func(ctx context.Context, key string) (net.Conn, error)
	// coalescing says how groups share commands; nil if they do not, because the keys' servers are
	// unknown.
	coalescing *coalescing
}

// Send implements [dispatch.Transport].
func (t *transport) Send(ctx context.Context, b *dispatch.Batch) error {
	err := t.nodes.store.send(ctx, b, t.coalescing)
	for _, g := range b.Groups {
		t.nodes.stale.note(t.node, g.Err)
	}
	if n := t.nodes; n.nodeForKey != nil && err == nil && !n.reached.Load() {
		n.reached.Store(true)
	}
	return err
}

// Ping implements [dispatch.Transport]. It does not use the client's connections. Redis may never
// answer on those, and they stay busy until the client's own timeout. The client also stops dialing
// for a second after as many failures as it has connections.
func (t *transport) Ping(ctx context.Context, key string, timeout time.Duration) error {
	if t.dial == nil {
		t.nodes.discover(ctx, key)
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
	_, err = ping(ctx, conn) // an answer that requires a password counts too
	return err
}

// dial connects to a client's server.
func dial(ctx context.Context, rdb *redis.Client) (net.Conn, error) {
	opts := rdb.Options()
	return opts.Dialer(ctx, opts.Network, opts.Addr)
}

// Reason implements [dispatch.Transport]. go-redis redials repeatedly, so a refused connection
// looks like a timeout; diagnose finds the cause.
func (t *transport) Reason(ctx context.Context, err error) (text, word string) {
	if !isSpecific(err) {
		err = cmp.Or(t.nodes.diagnose(ctx), err)
	}
	return reason(err), Word(err)
}

// diagnose returns why none of the client's configured servers is usable. It returns nil if one
// seems usable, or if the servers are unknown.
func (n *nodes) diagnose(ctx context.Context) error {
	first, used := n.probe(ctx)
	if used {
		return nil
	}
	return first
}

// probe connects to the configured servers. It returns the first failure, and whether a server is
// usable.
func (n *nodes) probe(ctx context.Context) (first error, used bool) {
	addrs, options := n.configured()
	for _, options.Addr = range addrs {
		err := probe(ctx, options)
		used = used || err == nil
		if first = cmp.Or(first, err); ctx.Err() != nil {
			break
		}
	}
	return first, used
}

// configured returns the client's configured addresses and the options for its Dialer. There are
// none for a client of another type.
func (n *nodes) configured() (addrs []string, options redis.Options) {
	switch rdb := n.store.rdb.(type) {
	case *redis.Client:
		return []string{rdb.Options().Addr}, *rdb.Options()
	case *redis.ClusterClient:
		o := rdb.Options()
		return slices.Clone(o.Addrs), redis.Options{Dialer: o.Dialer, DialTimeout: o.DialTimeout,
			TLSConfig: o.TLSConfig}
	case *redis.Ring:
		o := rdb.Options()
		addrs = slices.Compact(slices.Sorted(maps.Values(o.Addrs)))
		return addrs, redis.Options{Dialer: o.Dialer, DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig}
	}
	return nil, redis.Options{}
}

// probe connects to a server as a client with these options does. It returns why that fails, or
// what the server is if it is not Redis. An answer that requires a password is from Redis.
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
		case first == 0x15: // a TLS alert, RFC 8446, section 5.1
			err = errWantsTLS
		case !strings.ContainsRune("+-:$*_,#!=(%~|>", rune(first)): // the types of RESP
			err = errNoRedis
		}
		return nil, err
	})
	return err
}

// ping sends PING on a connection, returns the first byte of the answer and closes the connection.
// It ends with the context.
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

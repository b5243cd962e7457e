package redisstore

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/goroutine"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// transport sends the batches of one dispatcher: each is a pipeline of commands.
type transport struct {
	nodes *nodes
	node  *redis.Client // the server; nil if unknown
	// dial connects to a key's server as the client would; nil if the servers are unknown.
	dial func(ctx context.Context, key string) (net.Conn, error)
	// coalescing says how groups share commands; nil if they do not, because the keys' servers are
	// unknown.
	coalescing *coalescing
	last       int32 // the redirection that ends a command on a cluster
}

// Send implements [dispatch.Transport]. Groups share commands where coalescing allows that.
func (t *transport) Send(ctx context.Context, b *dispatch.Batch) (err error) {
	s := t.nodes.store
	p := s.pipelines.Get().(*pipeline)
	defer func() {
		p.reset()
		s.pipelines.Put(p)
	}()
	if len(b.Groups) > 1 && t.coalescing != nil && s.mayCoalesce() {
		p.share(b.Groups, t.coalescing)
	} else {
		p.add(b.Groups...)
	}
	for _, c := range p.commands { // several servers each load the scripts by EVAL
		if t.nodes.single && err == nil && !s.loaded[c.script].Load() {
			err = s.load(ctx, c.script)
		}
	}
	if err == nil {
		s.exec(ctx, p.commands, true, t.last)
	}
	for _, c := range p.commands {
		c.decode(err)
	}
	for _, g := range b.Groups {
		if g.Err != nil {
			return t.failed(ctx, b, p)
		}
	}
	if t.node == nil {
		t.nodes.reached.Store(true)
	}
	return nil
}

// failed has the groups of a batch decided alone that the server refuses together, and notes the errors. It returns
// the first group's error unless that is a reply to its command alone: then the server serves nobody.
func (t *transport) failed(ctx context.Context, b *dispatch.Batch, p *pipeline) error {
	s := t.nodes.store
	if refused, alone := p.refused(), retried(b.Groups); alone != nil {
		p.reset()
		p.add(alone...)
		s.exec(ctx, p.commands, true, t.last)
		for _, c := range p.commands {
			if c.decode(nil); refused && c.groups[0].Err == nil {
				s.Separate() // refused together, accepted alone
			}
		}
	}
	for _, g := range b.Groups {
		if g.Err != nil && IsCommandError(g.Err) && (t.last != followNone || !isRedirection(g.Err)) {
			s.logErrorReply(g.Err)
		}
		t.nodes.stale.note(t.node, g.Err)
	}
	if err := b.Groups[0].Err; err != nil && !IsCommandError(err) {
		return err
	}
	t.nodes.reached.Store(true)
	return nil
}

// retried returns the groups on which a script for several did not decide.
func retried(groups []*dispatch.Group) (alone []*dispatch.Group) {
	for _, g := range groups {
		if g.Err == wire.ErrRetrySingle {
			alone = append(alone, g)
		}
	}
	return alone
}

// Ping implements [dispatch.Transport]. It does not use the client's connections. Redis may never
// answer on those, and they stay busy until the client's own timeout. The client also stops dialing
// for a second after as many failures as it has connections.
func (t *transport) Ping(ctx context.Context, key string, timeout time.Duration) error {
	if t.dial == nil {
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
	return ping(ctx, conn)
}

// dial connects to a client's server.
func dial(ctx context.Context, rdb *redis.Client) (net.Conn, error) {
	opts := rdb.Options()
	return opts.Dialer(ctx, opts.Network, opts.Addr)
}

// Reason implements [dispatch.Transport]. go-redis redials repeatedly, so a refused connection
// looks like a timeout; a ping finds the cause.
func (t *transport) Reason(ctx context.Context, key string, err error) (text, word string) {
	if !isSpecific(err) {
		_, cause := goroutine.Bounded(ctx, goroutine.EndGrace, func() (struct{}, error) {
			return struct{}{}, t.Ping(ctx, key, t.nodes.store.Timeout)
		})
		if cause != nil && !dispatch.IsLate(cause) {
			err = cause
		}
	}
	return reason(err), Word(err)
}

// pingSeeds returns why none of a cluster's configured servers answers, or nil.
func (n *nodes) pingSeeds(ctx context.Context) (first error) {
	o := n.store.rdb.(*redis.ClusterClient).Options()
	options := &redis.Options{Dialer: o.Dialer, DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig}
	if options.Dialer == nil {
		options.Dialer = redis.NewDialer(options)
	}
	for _, addr := range o.Addrs {
		conn, err := options.Dialer(ctx, "tcp", addr)
		if err == nil {
			err = ping(ctx, conn)
		}
		if err == nil {
			return nil
		}
		if first = cmp.Or(first, err); ctx.Err() != nil {
			break
		}
	}
	return first
}

// ping sends PING on a connection and closes it. It returns nil if Redis answers, even that it requires
// a password. It ends with the context.
func ping(ctx context.Context, conn net.Conn) error {
	if conn == nil {
		return errNoConn
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := conn.Write([]byte("*1\r\n$4\r\nPING\r\n")); err != nil {
		return err
	}
	var first [1]byte
	_, err := io.ReadFull(conn, first[:])
	switch {
	case errors.Is(err, io.EOF):
		return errHangsUp
	case err != nil:
		return err
	case first[0] == 0x15: // a TLS alert, RFC 8446, section 5.1
		return errWantsTLS
	case !strings.ContainsRune("+-:$*_,#!=(%~|>", rune(first[0])): // the types of RESP
		return errNoRedis
	}
	return nil
}

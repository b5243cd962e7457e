package ginlimit

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// mostNodes is how many servers have a dispatcher of their own. Those that are no more are forgotten when
// there are so many.
const mostNodes = 256

// nodes are the servers behind a client. Each has a dispatcher, so that one that hangs holds up the
// decisions on its own keys alone.
type nodes struct {
	timeout time.Duration
	log     *slog.Logger
	send    func(context.Context, *batch)
	one     bool // rdb is the client of one server
	direct  bool // rdb ends a call with its context

	of      func(ctx context.Context, key string) (*redis.Client, error) // a key's server, if there are several
	refresh func(context.Context)                                        // has the client look for its servers again
	// reached says that the client knows its servers: before, it would ask for them in the caller's time.
	reached atomic.Bool
	unknown *dispatcher // for keys whose server is not known

	mu     sync.RWMutex
	known  map[*redis.Client]*dispatcher
	closed bool

	goneBatches, goneDecisions uint64 // of dispatchers that are no more
}

func newNodes(rdb redis.UniversalClient, timeout time.Duration, log *slog.Logger, send func(context.Context, *batch)) *nodes {
	n := &nodes{timeout: timeout, log: log, send: send, known: map[*redis.Client]*dispatcher{}}
	if isNil(rdb) {
		return n // for nobody
	}
	all := &server{log: log, addr: fmt.Sprintf("%T", rdb)}
	switch rdb := rdb.(type) {
	case *redis.Client:
		all.addr, all.pool = rdb.Options().Addr, poolSize(rdb)
		all.dial = func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, rdb) }
		n.one, n.direct = true, rdb.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		n.direct = rdb.Options().ContextTimeoutEnabled
		n.of, n.refresh = rdb.MasterForKey, rdb.ReloadState
	case *redis.Ring:
		n.direct = rdb.Options().ContextTimeoutEnabled
		n.of = func(_ context.Context, key string) (*redis.Client, error) { return rdb.GetShardClientForKey(key) }
	}
	n.unknown = n.newDispatcher(all)
	return n
}

// dial connects to a key's server in a cluster, which may be another one by now.
func (n *nodes) dial(ctx context.Context, key string) (net.Conn, error) {
	n.refresh(ctx)
	node, err := n.of(ctx, key)
	if err != nil {
		return nil, err
	}
	return dial(ctx, node)
}

// poolSize returns how many connections a client may have.
func poolSize(rdb *redis.Client) int {
	opts := rdb.Options()
	if opts.MaxActiveConns > 0 {
		return min(opts.PoolSize, opts.MaxActiveConns)
	}
	return opts.PoolSize
}

func (n *nodes) newDispatcher(s *server) *dispatcher {
	return newDispatcher(n.timeout, n.direct, s, func(ctx context.Context, b *batch) {
		n.send(ctx, b)
		if n.of != nil && !n.reached.Load() && b.failure() == nil {
			n.reached.Store(true)
		}
	})
}

// dispatcher returns that of a key's server.
func (n *nodes) dispatcher(key *keyName) *dispatcher {
	if n.of == nil || !n.reached.Load() {
		return n.unknown
	}
	node, err := n.of(context.Background(), key.String())
	if err != nil {
		return n.unknown
	}
	n.mu.RLock()
	d := n.known[node]
	n.mu.RUnlock()
	if d != nil {
		return d
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if d = n.known[node]; d != nil {
		return d
	}
	if len(n.known) >= mostNodes {
		maps.DeleteFunc(n.known, func(_ *redis.Client, d *dispatcher) bool {
			idle := d.idle()
			if idle {
				var gone Stats
				d.count(&gone)
				n.goneBatches += gone.Batches
				n.goneDecisions += gone.Decisions
			}
			return idle
		})
	}
	if n.closed || len(n.known) >= mostNodes {
		return n.unknown
	}
	s := &server{log: n.log, addr: node.Options().Addr, pool: poolSize(node), dial: n.dial}
	if n.refresh == nil { // a ring's shard is nobody else
		s.dial = func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, node) }
	}
	d = n.newDispatcher(s)
	n.known[node] = d
	return d
}

// close closes all dispatchers.
func (n *nodes) close() {
	n.mu.Lock()
	n.closed = true
	known := slices.Collect(maps.Values(n.known))
	n.mu.Unlock()
	n.unknown.close()
	for _, d := range known {
		d.close()
	}
}

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// maxNodes is how many servers may have their own dispatcher. At this number, idle dispatchers are
// retired.
const maxNodes = 256

// nodes are the servers behind a client. Each has its own dispatcher, so a server that hangs delays
// only its own keys.
type nodes struct {
	store  *Store
	single bool // the client has one server

	// nodeForKey finds a key's server; nil for a single server.
	nodeForKey func(ctx context.Context, key string) (*redis.Client, error)
	refresh    func(context.Context) // makes a cluster client reload its slots
	// reached is set once the client knows its servers. Before that, looking up a key's server
	// would query a server on the caller's time.
	reached  atomic.Bool
	unrouted *dispatch.Dispatcher // for keys whose server is unknown
	stale    staleConns

	mu          sync.RWMutex // guards the fields below
	dispatchers map[*redis.Client]*dispatch.Dispatcher
	closed      bool
	retired     dispatch.Stats // of retired dispatchers
}

func newNodes(s *Store) *nodes {
	n := &nodes{
		store: s, stale: staleConns{timeout: s.Timeout},
		dispatchers: map[*redis.Client]*dispatch.Dispatcher{},
	}
	server := dispatch.Server{Addr: fmt.Sprintf("%T", s.rdb)}
	var one *redis.Client // nil for several servers
	switch rdb := s.rdb.(type) {
	case *redis.Client:
		if rdb == nil {
			break
		}
		n.single, one, server = true, rdb, describeServer(newBounded(rdb, s.Timeout).Options())
	case *redis.ClusterClient:
		n.nodeForKey, n.refresh = rdb.MasterForKey, rdb.ReloadState
	case *redis.Ring:
		n.nodeForKey = func(_ context.Context, key string) (*redis.Client, error) {
			return rdb.GetShardClientForKey(key)
		}
	}
	n.unrouted = n.newDispatcher(server, n.transport(one))
	return n
}

func (n *nodes) newDispatcher(server dispatch.Server, t *transport) *dispatch.Dispatcher {
	s := n.store
	server.Transport, server.Log, server.Outage, server.Dropped = t, s.Log, s.Outage, s.Dropped
	return dispatch.New(s.Timeout, server)
}

// identify names the servers of a client. Two clients with the same name lead to the same keys. The
// name is the address, or the client's pointer for a ring and for a client that finds its servers
// by sentinels or by functions of the application.
func identify(rdb redis.UniversalClient) string {
	if !IsNil(rdb) {
		switch rdb := rdb.(type) {
		case *redis.Client:
			if o := rdb.Options(); dialsItself(o) {
				return fmt.Sprintf("%s %s %d", o.Network, o.Addr, o.DB)
			}
		case *redis.ClusterClient:
			if o := rdb.Options(); o.Dialer == nil && o.ClusterSlots == nil {
				return fmt.Sprintf("cluster %q", slices.Sorted(slices.Values(o.Addrs)))
			}
		}
	}
	return fmt.Sprintf("%p", rdb)
}

// describeServer returns the properties of a server that a client's options give.
func describeServer(opts *redis.Options) dispatch.Server {
	server := dispatch.Server{Addr: withoutPassword(opts.Addr), Conns: opts.PoolSize, Inline: endsWithContext(opts)}
	if opts.MaxActiveConns > 0 {
		server.Conns = min(opts.PoolSize, opts.MaxActiveConns)
	}
	return server
}

// dispatcher returns the dispatcher of a key's server. It may be retired before it is used; the
// caller then asks again.
func (n *nodes) dispatcher(key *dispatch.Name) *dispatch.Dispatcher {
	if n.nodeForKey == nil || !n.reached.Load() {
		return n.unrouted
	}
	node, err := n.nodeForKey(context.Background(), key.String())
	if err != nil {
		return n.unrouted
	}
	n.mu.RLock()
	d := n.dispatchers[node]
	n.mu.RUnlock()
	if d != nil {
		return d
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if d = n.dispatchers[node]; d != nil {
		return d
	}
	if len(n.dispatchers) >= maxNodes {
		n.retireLocked(false)
	}
	if n.closed || len(n.dispatchers) >= maxNodes {
		return n.unrouted
	}
	server := describeServer(node.Options())
	server.OneOfMany = true
	d = n.newDispatcher(server, n.transport(node))
	n.dispatchers[node] = d
	return d
}

// retireLocked retires the dispatchers that are idle, of all servers or of those that are gone.
func (n *nodes) retireLocked(gone bool) {
	maps.DeleteFunc(n.dispatchers, func(node *redis.Client, d *dispatch.Dispatcher) bool {
		if gone && !isClosed(node) {
			return false
		}
		stats, retired := d.Retire(gone)
		if retired {
			n.retired.Batches += stats.Batches
			n.retired.Calls += stats.Calls
			n.retired.Transitions = sum(n.retired.Transitions, stats.Transitions)
		}
		return retired
	})
}

// isClosed reports whether a client is closed, as a cluster client or a ring closes that of a server
// which is gone. It sends nothing, as the context has ended.
func isClosed(rdb *redis.Client) bool {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return errors.Is(withoutHooks(rdb, time.Second).Process(ctx, newUnsendable(ctx)), redis.ErrClosed)
}

// transport returns the transport to a server. Without a server, it serves keys whose server is
// unknown.
func (n *nodes) transport(node *redis.Client) *transport {
	t := &transport{nodes: n, node: node, last: followOne}
	switch {
	case node == nil && n.nodeForKey == nil:
		return t
	case node == nil:
		t.dial = n.dial
		return t
	case n.refresh != nil:
		t.dial, t.coalescing, t.last = n.dial, &coalescing{crossSlot: true}, followNone
		return t
	}
	// a ring's shard stays the same server
	t.dial = func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, node) }
	t.coalescing = &coalescing{}
	if n.nodeForKey != nil {
		t.coalescing.has = func(key *dispatch.Name) bool {
			now, err := n.nodeForKey(context.Background(), key.String())
			return err == nil && now == node
		}
	}
	return t
}

// dial makes the client look up its servers, and connects to the one that serves a key now. It sets
// reached if the client knows it.
func (n *nodes) dial(ctx context.Context, key string) (net.Conn, error) {
	if n.refresh != nil {
		if !n.reached.Load() {
			if err := n.pingSeeds(ctx); err != nil {
				return nil, err
			}
		}
		n.refresh(ctx)
	}
	node, err := n.nodeForKey(ctx, key)
	if err != nil {
		return nil, err
	}
	n.reached.Store(true)
	return dial(ctx, node)
}

// close closes all dispatchers.
func (n *nodes) close() {
	n.mu.Lock()
	n.closed = true
	all := append(slices.Collect(maps.Values(n.dispatchers)), n.unrouted)
	n.mu.Unlock()
	var closed sync.WaitGroup
	for _, d := range all {
		closed.Go(d.Close)
	}
	closed.Wait()
	n.stale.background.Close(n.store.Timeout + 2*staleGap)
}

// Stats sums the statistics of all servers.
type Stats struct {
	dispatch.Stats
	Servers, Open int // Open counts the servers whose breaker is open
}

// Stats returns the current statistics. It retires the dispatchers of servers that are gone.
func (s *Store) Stats() Stats {
	n := s.nodes
	n.mu.Lock()
	defer n.mu.Unlock()
	n.retireLocked(true)
	all := Stats{Servers: max(1, len(n.dispatchers))}
	all.add(n.retired)
	all.add(n.unrouted.Stats())
	if len(n.dispatchers) > 0 {
		all.Open = 0 // unrouted stood for all servers
	}
	for _, d := range n.dispatchers {
		all.add(d.Stats())
	}
	return all
}

func (s *Stats) add(d dispatch.Stats) {
	s.Batches += d.Batches
	s.Calls += d.Calls
	s.InFlight += d.InFlight
	s.Queued += d.Queued
	s.Transitions = sum(s.Transitions, d.Transitions)
	if d.Open {
		s.Open++
	}
}

// sum adds more to counts and returns them.
func sum(counts, more map[dispatch.Transition]uint64) map[dispatch.Transition]uint64 {
	if counts == nil {
		return maps.Clone(more)
	}
	for transition, n := range more {
		counts[transition] += n
	}
	return counts
}

// IsNil reports whether a client is nil or a nil pointer in the interface.
func IsNil(rdb redis.UniversalClient) bool {
	v := reflect.ValueOf(rdb)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

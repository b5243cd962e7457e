package redisstore

import (
	"context"
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

// maxNodes is how many servers have a dispatcher of their own. Those that are no more are forgotten
// when there are so many.
const maxNodes = 256

// nodes are the servers behind a client. Each has a dispatcher, so that one that hangs holds up the
// decisions on its own keys alone.
type nodes struct {
	store   *Store
	timeout time.Duration
	one     bool // the client is that of one server

	of      func(ctx context.Context, key string) (*redis.Client, error) // a key's server, if there are several
	refresh func(context.Context)                                        // has the client look for its servers again
	// reached says that the client knows its servers: before, it would ask for them in the caller's
	// time.
	reached atomic.Bool
	unknown *dispatch.Dispatcher // for keys whose server is not known

	mu     sync.RWMutex // guards everything below
	known  map[*redis.Client]*dispatch.Dispatcher
	closed bool
	gone   dispatch.Stats // of dispatchers that are no more
}

func newNodes(s *Store, timeout time.Duration) *nodes {
	n := &nodes{store: s, timeout: timeout, known: map[*redis.Client]*dispatch.Dispatcher{}}
	server, t := dispatch.Server{Addr: fmt.Sprintf("%T", s.rdb)}, n.transport(nil)
	switch rdb := s.rdb.(type) {
	case *redis.Client:
		if rdb == nil {
			break
		}
		n.one, t, server = true, n.transport(rdb), serverOf(newBounded(rdb, timeout).Options())
	case *redis.ClusterClient:
		n.of, n.refresh = rdb.MasterForKey, rdb.ReloadState
	case *redis.Ring:
		n.of = func(_ context.Context, key string) (*redis.Client, error) { return rdb.GetShardClientForKey(key) }
	}
	n.unknown = n.newDispatcher(server, t)
	return n
}

func (n *nodes) newDispatcher(server dispatch.Server, t *transport) *dispatch.Dispatcher {
	server.Transport, server.Log = t, n.store.log
	return dispatch.New(n.timeout, server)
}

// serversOf names the servers of a client by their addresses. If functions of the application, or
// sentinels, say where the servers are, or for a ring, only the client itself has its name: nothing
// else says that two clients lead to the same keys.
func serversOf(rdb redis.UniversalClient) string {
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

// serverOf returns what is known of the server of a client with such options.
func serverOf(opts *redis.Options) dispatch.Server {
	server := dispatch.Server{Addr: withoutPassword(opts.Addr), Conns: opts.PoolSize, Inline: endsWithContext(opts)}
	if opts.MaxActiveConns > 0 {
		server.Conns = min(opts.PoolSize, opts.MaxActiveConns)
	}
	return server
}

// dispatcher returns that of a key's server. It may be retired before it is used; then there is
// another one.
func (n *nodes) dispatcher(key *dispatch.Name) *dispatch.Dispatcher {
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
	if len(n.known) >= maxNodes {
		maps.DeleteFunc(n.known, func(_ *redis.Client, d *dispatch.Dispatcher) bool {
			gone, retired := d.Retire()
			if retired {
				n.gone.Batches += gone.Batches
				n.gone.Calls += gone.Calls
				n.gone.Transitions = added(n.gone.Transitions, gone.Transitions)
			}
			return retired
		})
	}
	if n.closed || len(n.known) >= maxNodes {
		return n.unknown
	}
	server := serverOf(node.Options())
	server.OneOfMany = true
	d = n.newDispatcher(server, n.transport(node))
	n.known[node] = d
	return d
}

// transport returns the way to a server, or if that is nil, to those that are not known.
func (n *nodes) transport(node *redis.Client) *transport {
	t := &transport{nodes: n}
	if node == nil {
		return t
	}
	if n.refresh != nil {
		t.dial, t.sharing = n.dial, &sharing{crossSlot: true}
		return t
	}
	t.dial = func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, node) } // a ring's shard is nobody else
	t.sharing = &sharing{}
	if n.of != nil {
		t.sharing.has = func(key *dispatch.Name) bool {
			now, err := n.of(context.Background(), key.String())
			return err == nil && now == node
		}
	}
	return t
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

// find has the client look for the servers, and notes if it knows that of a key: then no decision
// waits for those of other servers.
func (n *nodes) find(ctx context.Context, key string) {
	if n.of == nil {
		return
	}
	if n.refresh != nil {
		n.refresh(ctx)
	}
	if _, err := n.of(ctx, key); err == nil {
		n.reached.Store(true)
	}
}

// close closes all dispatchers.
func (n *nodes) close() {
	n.mu.Lock()
	n.closed = true
	all := append(slices.Collect(maps.Values(n.known)), n.unknown)
	n.mu.Unlock()
	var closed sync.WaitGroup
	for _, d := range all {
		closed.Go(d.Close)
	}
	closed.Wait()
}

// Stats are the figures of all servers.
type Stats struct {
	dispatch.Stats
	Servers, Open int // servers, and of these those whose breaker is open
}

// Stats returns the figures of now.
func (s *Store) Stats() Stats {
	n := s.nodes
	n.mu.RLock()
	defer n.mu.RUnlock()
	all := Stats{Servers: max(1, len(n.known))}
	all.add(n.gone)
	all.add(n.unknown.Stats())
	if len(n.known) > 0 {
		all.Open = 0 // it was for them all
	}
	for _, d := range n.known {
		all.add(d.Stats())
	}
	return all
}

func (s *Stats) add(d dispatch.Stats) {
	s.Batches += d.Batches
	s.Calls += d.Calls
	s.InFlight += d.InFlight
	s.Queued += d.Queued
	s.Transitions = added(s.Transitions, d.Transitions)
	if d.Open {
		s.Open++
	}
}

// added returns counts with more of them.
func added(counts, more map[dispatch.Transition]uint64) map[dispatch.Transition]uint64 {
	if counts == nil {
		return maps.Clone(more)
	}
	for transition, n := range more {
		counts[transition] += n
	}
	return counts
}

// IsNil reports whether a client is nil, be it a nil pointer inside the interface.
func IsNil(rdb redis.UniversalClient) bool {
	v := reflect.ValueOf(rdb)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

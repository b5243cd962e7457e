package redisstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// Ping sends PING to each server. The error describes the failure of one server, and contains no
// text from another party.
func (s *Store) Ping(ctx context.Context) error {
	p := pinger{store: s, causes: make(chan error, 1)}
	_, err := dispatch.Bounded(ctx, 0, func() (struct{}, error) {
		switch rdb := s.rdb.(type) {
		case *redis.ClusterClient:
			return struct{}{}, p.cluster(ctx, rdb)
		case *redis.Ring:
			return struct{}{}, p.ring(ctx, rdb)
		}
		ping := command{Cmder: redis.NewStatusCmd(ctx, "ping"), hook: s.hook}
		diagnose := func() error { return s.nodes.diagnose(ctx) }
		return struct{}{}, p.withCause(ctx, diagnose, func() error { return s.rdb.Process(ctx, &ping) })
	})
	if err == nil {
		return nil
	}
	if !isSpecific(err) {
		select {
		case err = <-p.causes:
		default:
		}
	}
	return errors.New(reason(err))
}

// pinger is the state of one call of Ping.
type pinger struct {
	store  *Store
	causes chan error // the first cause that a separate connection saw
}

// withCause pings a server. It diagnoses the server if there is no answer within a quarter of the
// timeout, or an unspecific error: go-redis redials silently until the end.
func (p *pinger) withCause(ctx context.Context, diagnose, ping func() error) error {
	timer := time.AfterFunc(p.store.nodes.timeout/4, func() { p.keep(diagnose()) })
	defer timer.Stop()
	// a hook of the client may panic
	err := (<-dispatch.Isolate(func() (struct{}, error) { return struct{}{}, ping() })).Err
	if err != nil && !isSpecific(err) && ctx.Err() == nil {
		err = cmp.Or(diagnose(), err)
	}
	p.keep(err)
	return err
}

// keep keeps the first specific error.
func (p *pinger) keep(err error) {
	if err == nil || dispatch.IsLate(err) {
		return
	}
	select {
	case p.causes <- err:
	default:
	}
}

// server pings one of several servers.
func (p *pinger) server(ctx context.Context, rdb *redis.Client) error {
	diagnose := func() error { return probe(ctx, *rdb.Options()) }
	return p.withCause(ctx, diagnose, func() error { return rdb.Ping(ctx).Err() })
}

// cluster pings every master.
func (p *pinger) cluster(ctx context.Context, rdb *redis.ClusterClient) error {
	diagnose := func() error { // the client first asks a server for the masters, perhaps a dead one
		fault, _ := p.store.nodes.probe(ctx)
		return fault
	}
	return p.withCause(ctx, diagnose, func() error { return rdb.ForEachMaster(ctx, p.server) })
}

// ring pings every shard, including the shards that the ring skips because they are down.
func (p *pinger) ring(ctx context.Context, rdb *redis.Ring) error {
	if _, err := rdb.GetShardClientForKey(""); errors.Is(err, redis.ErrClosed) {
		return err
	}
	known := &p.store.shards
	shards := known.observe(rdb)
	errs := make(chan error)
	for _, shard := range shards {
		go func() {
			err := p.server(ctx, shard)
			if errors.Is(err, redis.ErrClosed) { // the application has removed it with SetAddrs
				known.remove(shard)
				err = nil
			}
			errs <- err
		}()
	}
	var first error
	for range shards {
		first = cmp.Or(first, <-errs)
	}
	if first == nil {
		first = known.probeUnseen(ctx, p.store.nodes)
	}
	if first == nil && rdb.Len() == 0 {
		first = errShardsDown
	}
	return first
}

// ringShards remembers the shards of a ring that were up once. A ring does not list the shards that
// are down.
type ringShards struct {
	mu    sync.Mutex
	known map[*redis.Client]bool // false once the application has removed it
}

// observe adds the shards that are up, and returns all shards in the ring.
func (r *ringShards) observe(rdb *redis.Ring) (inRing []*redis.Client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		r.known = map[*redis.Client]bool{}
	}
	for _, shard := range rdb.GetShardClients() {
		r.known[shard] = true
	}
	for shard, is := range r.known {
		if is {
			inRing = append(inRing, shard)
		}
	}
	return inRing
}

func (r *ringShards) remove(shard *redis.Client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[shard] = false
}

// probeUnseen returns the failure of a shard that was already down when the limiter was made, or
// nil.
func (r *ringShards) probeUnseen(ctx context.Context, n *nodes) (first error) {
	addrs, options := n.configured()
	r.mu.Lock()
	unseen := len(r.known) < len(addrs)
	for shard := range r.known {
		addrs = slices.DeleteFunc(addrs, func(addr string) bool { return addr == shard.Options().Addr })
	}
	r.mu.Unlock()
	if !unseen {
		return nil
	}
	for _, options.Addr = range addrs {
		first = cmp.Or(first, probe(ctx, options))
	}
	return first
}

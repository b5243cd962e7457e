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

// Ping sends PING to each server. The error says what one of them does, and holds no text of
// another party.
func (s *Store) Ping(ctx context.Context) error {
	p := pings{store: s, faults: make(chan error, 1)}
	_, err := dispatch.Bounded(ctx, 0, func() (struct{}, error) {
		switch rdb := s.rdb.(type) {
		case *redis.ClusterClient:
			return struct{}{}, p.cluster(ctx, rdb)
		case *redis.Ring:
			return struct{}{}, p.ring(ctx, rdb)
		}
		ping := command{Cmder: redis.NewStatusCmd(ctx, "ping"), bounded: s.carriers.bounded()}
		look := func() error { return s.nodes.connect(ctx) }
		return struct{}{}, p.explained(ctx, look, func() error { return s.rdb.Process(ctx, &ping) })
	})
	if err == nil {
		return nil
	}
	if !says(err) {
		select {
		case err = <-p.faults:
		default:
		}
	}
	return errors.New(reason(err))
}

// pings are those of one call of Ping.
type pings struct {
	store  *Store
	faults chan error // the first that was seen by a connection of its own
}

// explained pings a server. If there is no answer in a quarter of the timeout, or an error that
// does not say why, it looks for the cause: go-redis dials again and again, and says nothing until
// the end.
func (p *pings) explained(ctx context.Context, look, ping func() error) error {
	timer := time.AfterFunc(p.store.nodes.timeout/4, func() { p.note(look()) })
	defer timer.Stop()
	err := (<-dispatch.Isolate(func() (struct{}, error) { return struct{}{}, ping() })).Err // a hook of the client may panic
	if err != nil && !says(err) && ctx.Err() == nil {
		err = cmp.Or(look(), err)
	}
	p.note(err)
	return err
}

// note keeps the first error that says what is the matter.
func (p *pings) note(err error) {
	if err == nil || dispatch.IsLate(err) {
		return
	}
	select {
	case p.faults <- err:
	default:
	}
}

// server pings a server of several.
func (p *pings) server(ctx context.Context, rdb *redis.Client) error {
	look := func() error { return probe(ctx, *rdb.Options()) }
	return p.explained(ctx, look, func() error { return rdb.Ping(ctx).Err() })
}

// cluster pings every master.
func (p *pings) cluster(ctx context.Context, rdb *redis.ClusterClient) error {
	look := func() error { // the client asks a server for the masters first, perhaps a dead one
		fault, _ := p.store.nodes.probe(ctx)
		return fault
	}
	return p.explained(ctx, look, func() error { return rdb.ForEachMaster(ctx, p.server) })
}

// ring pings every shard, also those that the ring leaves out because they are dead.
func (p *pings) ring(ctx context.Context, rdb *redis.Ring) error {
	if _, err := rdb.GetShardClientForKey(""); errors.Is(err, redis.ErrClosed) {
		return err
	}
	known := &p.store.shards
	shards := known.see(rdb)
	errs := make(chan error)
	for _, shard := range shards {
		go func() {
			err := p.server(ctx, shard)
			if errors.Is(err, redis.ErrClosed) { // the application has taken it out of the ring, by SetAddrs
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

// ringShards are the shards of a ring that were up once. A ring does not name those that are down.
type ringShards struct {
	mu    sync.Mutex
	known map[*redis.Client]bool // false once the application has taken it out of the ring
}

// see adds the shards that are up, and returns all that are in the ring.
func (r *ringShards) see(rdb *redis.Ring) (inRing []*redis.Client) {
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

// probeUnseen returns what is the matter with a shard that was down already when the limiter was
// made, or nil.
func (r *ringShards) probeUnseen(ctx context.Context, n *nodes) (first error) {
	addrs, options := n.given()
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

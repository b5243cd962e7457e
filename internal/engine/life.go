package engine

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/denycache"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/lease"
	"github.com/ginlimit/ginlimit/internal/memory"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// NewRedis returns an engine whose store is Redis. It remembers at most as many denials as given.
func NewRedis(c Config, rdb redis.UniversalClient, denials int, s redisstore.Config) *Engine {
	e := newEngine(c)
	s.Timeout, s.Outage, s.Dropped = c.Timeout, e.describeOutage, &e.dropped
	e.redis = redisstore.New(rdb, s)
	e.store = e.redis
	e.denied = denycache.New(denials)
	e.slots = inflight.New(e.report)
	if c.Replicas > 0 {
		e.local = memory.New(memory.MaxBuckets)
	} else {
		e.replica = e.joinReplica()
		e.local = e.replica.Local()
	}
	return e
}

// NewLocal returns an engine whose store is this process.
func NewLocal(c Config) *Engine {
	e := newEngine(c)
	e.slots = inflight.New(nil)
	e.local = memory.New(memory.MaxBuckets)
	e.store = localStore{e.local}
	return e
}

func newEngine(c Config) *Engine {
	e := &Engine{Config: c, ending: ending{closed: make(chan struct{})}}
	e.leases = lease.New(e.returnLater)
	e.calls.New = func() any { return dispatch.NewCall() }
	e.decisions.New = func() any { return new(several) }
	return e
}

// Close ends the engine. It waits for decisions in flight, gives back leased tokens, and reports
// the slots that are free.
func (e *Engine) Close() {
	e.closing.Do(func() {
		close(e.closed)
		e.leases.Close()
		e.background.Close(max(closeTimeout, closeTimeouts*e.Timeout))
		e.returnLeases() // also what a decision in flight took ahead
		e.releaseAbandoned()
		ctx, cancel := context.WithTimeout(context.Background(), e.Timeout)
		defer cancel()
		e.slots.Close(ctx)
		e.replica.Leave()
		e.store.Close()
	})
}

// Drop says that nobody will call the engine again, without Close. Its goroutines and timers end, also if
// Redis or the client is gone. It does not wait, and may be called from anywhere.
func (e *Engine) Drop() { e.dropped.Store(true) }

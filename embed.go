package ginlimit

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

//go:embed script.lua
var scriptSource string

// script is called by its SHA, which go-redis works out here, not Redis.
var script = redis.NewScript(scriptSource)

// redisStore keeps buckets in Redis, one key each: prefix:{key}:period.
type redisStore struct {
	rdb        redis.UniversalClient
	prefix     string      // up to and with the brace
	loaded     atomic.Bool // Redis was asked to load the script
	dispatcher dispatcher
	alone      bool // decisions do not travel together
}

func newRedisStore(rdb redis.UniversalClient, prefix string) *redisStore {
	if prefix != "" {
		prefix += ":"
	}
	s := &redisStore{rdb: rdb, prefix: prefix + "{"}
	s.dispatcher.send = s.send
	switch rdb.(type) {
	case *redis.ClusterClient, *redis.Ring:
		// A batch waits for its slowest node, and a node that hangs would hold up the decisions of all.
		s.alone = true
	}
	return s
}

// String names the client and the prefix. Two clients of one server are taken for two stores.
func (s *redisStore) String() string { return fmt.Sprintf("%p %s", s.rdb, s.prefix) }

func (s *redisStore) close() { s.dispatcher.close() }

func (s *redisStore) do(ctx context.Context, a *ask) error {
	for i := range a.buckets {
		a.names[i] = s.prefix + string(a.key) + "}:" + a.buckets[i].period
	}
	a.text = a.names[0][len(s.prefix) : len(s.prefix)+len(a.key)]
	if s.alone {
		e := errand{ask: a, last: a, charges: a.charges, levels: make([]int64, len(a.levels))}
		s.send(ctx, []*errand{&e})
		copy(a.levels, e.levels)
		return e.err
	}
	return s.dispatcher.decide(ctx, a)
}

// send has a batch of errands done: by the script's SHA, and with its source where Redis has lost it.
func (s *redisStore) send(ctx context.Context, errands []*errand) {
	if err := s.load(ctx); err != nil {
		for _, e := range errands {
			e.err = err
		}
		return
	}
	for _, e := range errands {
		e.command.prepare(ctx, e, bySHA)
	}
	s.exec(ctx, errands)
	var lost []*errand
	for _, e := range errands {
		if err := e.command.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			e.command.prepare(ctx, e, bySource)
			lost = append(lost, e)
		}
	}
	if lost != nil {
		s.exec(ctx, lost)
	}
	for _, e := range errands {
		e.err = e.command.levels(e)
	}
}

// load has Redis keep the script, once. Where Redis is reached and refuses that, EVAL will do.
func (s *redisStore) load(ctx context.Context) error {
	if !s.loaded.CompareAndSwap(false, true) {
		return nil
	}
	load := command{Cmder: redis.NewStringCmd(ctx, "script", "load", scriptSource)}
	load.SetStepCount(1)
	err := s.rdb.Process(ctx, &load)
	if refusal := redis.Error(nil); err == nil || errors.As(err, &refusal) {
		return nil
	}
	s.loaded.Store(false)
	return err
}

// exec sends commands and reads their replies. What goes wrong is the commands' error.
func (s *redisStore) exec(ctx context.Context, errands []*errand) {
	if len(errands) == 1 {
		_ = s.rdb.Process(ctx, &errands[0].command)
		return
	}
	pipe := s.rdb.Pipeline()
	for _, e := range errands {
		_ = pipe.Process(ctx, &e.command)
	}
	_, _ = pipe.Exec(ctx)
}

// isNil reports whether a client is nil, be it a nil pointer inside the interface.
func isNil(rdb redis.UniversalClient) bool {
	v := reflect.ValueOf(rdb)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

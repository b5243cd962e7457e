package redisstore

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/goroutine"
)

const (
	// staleGap is how long after the idle connections the next ones are closed. Until then, those that
	// were in use have become idle.
	staleGap = 100 * time.Millisecond
	// stalePause is how often a client's connections are closed at most: the server may be the master
	// still, and answer so for long.
	stalePause = 500 * time.Millisecond
)

// staleConns closes the idle connections of a client to a server that is no longer the master, because
// another server may be at its address now. go-redis closes a connection only if READONLY answers
// the first command of a pipeline. It keeps the others, which lead to the old server.
type staleConns struct {
	timeout    time.Duration
	background goroutine.Background
	closed     sync.Map // has a *redis.Client whose connections were closed less than a stalePause ago
}

// staleReplies are the codes of replies by which another server may be the master at this address.
var staleReplies = []string{"READONLY", "MASTERDOWN", "LOADING", "NOREPLICAS"}

// isStale reports whether a reply means that another server may be the master at this address.
func isStale(err error) bool {
	var reply redis.Error
	return err != nil && errors.As(err, &reply) && slices.Contains(staleReplies, replyCode(reply))
}

// note notes the error of a client's command.
func (s *staleConns) note(rdb *redis.Client, err error) {
	if rdb == nil || !isStale(err) {
		return
	}
	if _, closed := s.closed.LoadOrStore(rdb, true); closed || !s.background.Begin() {
		return
	}
	time.AfterFunc(stalePause, func() { s.closed.Delete(rdb) })
	go func() {
		defer s.background.Done()
		s.closeIdle(rdb)
		<-time.After(staleGap)
		s.closeIdle(rdb)
	}()
}

// noteStale notes the error of a command to a key's server.
func (n *nodes) noteStale(ctx context.Context, key *dispatch.Name, err error) {
	rdb, _ := n.store.rdb.(*redis.Client)
	if n.nodeForKey != nil && isStale(err) {
		rdb, _ = n.nodeForKey(ctx, key.String())
	}
	n.stale.note(rdb, err)
}

// closeIdle closes the connections that are idle now.
func (s *staleConns) closeIdle(rdb *redis.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	rdb = withoutHooks(rdb, s.timeout)
	stats := rdb.PoolStats()
	for range stats.IdleConns {
		if err := rdb.Process(ctx, newUnsendable(ctx)); !errors.Is(err, errUnsendable) {
			return
		}
	}
	for range idlePipelines(stats) {
		pipe := rdb.Pipeline()
		_ = pipe.Process(ctx, newUnsendable(ctx))
		if _, err := pipe.Exec(ctx); !errors.Is(err, errUnsendable) {
			return
		}
	}
}

// idlePipelines returns how many connections of a pool of pipelines are idle. go-redis has such pools since 9.22.
func idlePipelines(stats *redis.PoolStats) uint64 {
	pool := reflect.ValueOf(stats).Elem().FieldByName("PipelineStats")
	if !pool.IsValid() || pool.IsNil() {
		return 0
	}
	return pool.Elem().FieldByName("IdleConns").Uint()
}

// withoutHooks returns a copy of a client that uses the same connections, without what the application
// has added.
func withoutHooks(rdb *redis.Client, timeout time.Duration) *redis.Client {
	rdb = rdb.WithTimeout(timeout)
	rdb.Options().Limiter = nil
	return rdb
}

const errUnsendable = fault("the connection is to be closed")

// unsendable is an argument that go-redis cannot write. It then closes the connection, to which it
// has written nothing.
type unsendable struct{}

// MarshalBinary implements [encoding.BinaryMarshaler].
func (unsendable) MarshalBinary() ([]byte, error) { return nil, errUnsendable }

func newUnsendable(ctx context.Context) redis.Cmder {
	c := &command{Cmder: redis.NewStatusCmd(ctx, "ping", unsendable{})}
	c.SetStepCount(1)
	return c
}

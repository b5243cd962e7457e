package redisstore

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/goroutine"
)

// Ping sends PING to each server. The error describes the failure of one server, and contains no
// text from another party.
func (s *Store) Ping(ctx context.Context) error {
	_, err := goroutine.Bounded(ctx, 0, func() (struct{}, error) { return struct{}{}, s.ping(ctx) })
	if err == nil {
		return nil
	}
	text := reason(err)
	if text != (late{}).Error() {
		return errors.New(text)
	}
	return late{}
}

// late is [dispatch.ErrLate] in the word of [reason].
type late struct{}

func (late) Error() string { return "late" }

func (late) Unwrap() error { return dispatch.ErrLate }

func (s *Store) ping(ctx context.Context) error {
	switch rdb := s.rdb.(type) {
	case *redis.Client:
		return pingServer(ctx, rdb, s.sender)
	case *redis.ClusterClient:
		if err := s.nodes.pingSeeds(ctx); err != nil { // the client asks one for the masters
			return err
		}
		return rdb.ForEachMaster(ctx, pingNode)
	case *redis.Ring:
		if rdb.Len() > 0 {
			return rdb.ForEachShard(ctx, pingNode)
		}
		if _, err := rdb.GetShardClientForKey(""); errors.Is(err, redis.ErrClosed) {
			return err
		}
		return errShardsDown
	}
	return s.rdb.Ping(ctx).Err()
}

func pingNode(ctx context.Context, rdb *redis.Client) error { return pingServer(ctx, rdb, rdb) }

// pingServer pings a server on a connection of its own, as go-redis dials silently until the end, and
// then through what sends the client's commands.
func pingServer(ctx context.Context, rdb *redis.Client, through processor) error {
	conn, err := dial(ctx, rdb)
	if err == nil {
		err = ping(ctx, conn)
	}
	if err != nil {
		return err
	}
	cmd := command{Cmder: redis.NewStatusCmd(ctx, "ping")}
	// a hook of the client may panic
	return (<-goroutine.Isolate(func() (struct{}, error) { return struct{}{}, through.Process(ctx, &cmd) })).Err
}

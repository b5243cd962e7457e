package redisstore

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// Ping sends PING to each server. The error says what one of them does, and holds no text of another party.
func (s *Store) Ping(ctx context.Context) error {
	_, err := dispatch.Bounded(ctx, 0, func() (struct{}, error) {
		one := func(ctx context.Context, rdb *redis.Client) error { return rdb.Ping(ctx).Err() }
		switch rdb := s.rdb.(type) {
		case *redis.ClusterClient:
			return struct{}{}, rdb.ForEachMaster(ctx, one)
		case *redis.Ring:
			return struct{}{}, rdb.ForEachShard(ctx, one)
		}
		ping := command{Cmder: redis.NewStatusCmd(ctx, "ping"), bounded: s.carriers.bounded()}
		return struct{}{}, s.rdb.Process(ctx, &ping)
	})
	if err == nil {
		return nil
	}
	return errors.New(reason(err))
}

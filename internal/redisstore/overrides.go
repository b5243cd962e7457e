package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/wire"
)

// Overrides keeps the overrides of a prefix in Redis.
type Overrides struct {
	rdb    redis.UniversalClient
	keys   []string
	change script
}

// NewOverrides returns what a client's Redis has of the overrides of a prefix.
func NewOverrides(rdb redis.UniversalClient, prefix string) *Overrides {
	return &Overrides{newUnhooked(rdb), wire.OverrideKeys(prefix), newScript(wire.OverrideScript())}
}

// replyTimeout is how long a command about overrides or policies waits for its reply, which may be long.
const replyTimeout = time.Second

// newUnhooked returns a client for commands that no request waits for: hooks of a client of one server do not see them.
func newUnhooked(rdb redis.UniversalClient) redis.UniversalClient {
	if one, ok := rdb.(*redis.Client); ok && one != nil {
		return newBounded(one, replyTimeout)
	}
	return rdb
}

// Stamp returns the stamp of the last change of overrides, or "" if there are none.
func (o *Overrides) Stamp(ctx context.Context) (string, error) {
	stamp, err := send(ctx, o.rdb, redis.NewStringCmd(ctx, "hget", o.keys[0], wire.OverrideStamp)).Result()
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	return stamp, err
}

// Overrides returns the texts of all overrides by their names, and the stamp of their last change.
func (o *Overrides) Overrides(ctx context.Context) (texts map[string]string, stamp string, err error) {
	texts, err = send(ctx, o.rdb, redis.NewMapStringStringCmd(ctx, "hgetall", o.keys[0])).Result()
	stamp = texts[wire.OverrideStamp]
	delete(texts, wire.OverrideStamp)
	return texts, stamp, err
}

// Change makes changes of overrides, or none and returns false if there would be more overrides than the limit.
func (o *Overrides) Change(ctx context.Context, stamp string, limit int, changes []wire.OverrideChange) (bool, error) {
	return o.change.run(ctx, o.rdb, o.keys, wire.EncodeOverrides(stamp, limit, changes)).Bool()
}

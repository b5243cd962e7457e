package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/wire"
)

// Operation keeps what processes and operators of a prefix tell each other in Redis: overrides of limits, and
// the policies that processes publish.
type Operation struct {
	rdb                 redis.UniversalClient
	overrides, policies []string // keys
	change, publish     script
}

// operationTimeout is how long a command of an operation waits for its reply, which may be long.
const operationTimeout = time.Second

// NewOperation returns what is kept in a client's Redis under a prefix. Hooks of a client of one server do not
// see its commands, which no request waits for.
func NewOperation(rdb redis.UniversalClient, prefix string) *Operation {
	if one, ok := rdb.(*redis.Client); ok && one != nil {
		rdb = newBounded(one, operationTimeout)
	}
	return &Operation{
		rdb: rdb, overrides: wire.OverrideKeys(prefix), policies: wire.PolicyKeys(prefix),
		change: newScript(wire.OverrideScript()), publish: newScript(wire.PublishScript()),
	}
}

// Stamp returns the stamp of the last change of overrides, or "" if there are none.
func (o *Operation) Stamp(ctx context.Context) (string, error) {
	stamp, err := send(ctx, o.rdb, redis.NewStringCmd(ctx, "hget", o.overrides[0], wire.OverrideStamp)).Result()
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	return stamp, err
}

// Overrides returns the texts of all overrides by their names, and the stamp of their last change.
func (o *Operation) Overrides(ctx context.Context) (texts map[string]string, stamp string, err error) {
	texts, err = send(ctx, o.rdb, redis.NewMapStringStringCmd(ctx, "hgetall", o.overrides[0])).Result()
	stamp = texts[wire.OverrideStamp]
	delete(texts, wire.OverrideStamp)
	return texts, stamp, err
}

// Change makes changes of overrides, and reports whether there would not be more than a number.
func (o *Operation) Change(ctx context.Context, stamp string, most int, changes []wire.OverrideChange) (bool, error) {
	return o.change.run(ctx, o.rdb, o.overrides, wire.EncodeOverrides(stamp, most, changes)).Bool()
}

// Publish publishes policies, and returns how many had a place.
func (o *Operation) Publish(ctx context.Context, p *wire.Publication) (int, error) {
	return o.publish.run(ctx, o.rdb, o.policies, p.Encode()).Int()
}

// Published returns the texts of all published policies by their names, and when each process has last
// published each.
func (o *Operation) Published(ctx context.Context) (
	texts map[string]string, seen map[string]map[string]time.Time, err error) {
	pipe := o.rdb.Pipeline()
	all := send(ctx, pipe, redis.NewMapStringStringCmd(ctx, "hgetall", o.policies[0]))
	members := send(ctx, pipe, redis.NewZSliceCmd(ctx, "zrange", o.policies[2], 0, -1, "withscores"))
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, nil, err
	}
	seen = map[string]map[string]time.Time{}
	for _, z := range members.Val() {
		member, _ := z.Member.(string)
		name, process := wire.PublishedBy(member)
		if seen[name] == nil {
			seen[name] = map[string]time.Time{}
		}
		seen[name][process] = time.UnixMilli(int64(z.Score))
	}
	return all.Val(), seen, nil
}

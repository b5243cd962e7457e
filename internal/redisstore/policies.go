package redisstore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/wire"
)

// Policies keeps the policies that are published under a prefix in Redis.
type Policies struct {
	rdb     redis.UniversalClient
	keys    []string
	publish script
}

// NewPolicies returns what a client's Redis has of the policies of a prefix.
func NewPolicies(rdb redis.UniversalClient, prefix string) *Policies {
	return &Policies{newUnhooked(rdb), wire.PolicyKeys(prefix), newScript(wire.PublishScript())}
}

// Publish publishes policies, and returns how many had a place.
func (p *Policies) Publish(ctx context.Context, one *wire.Publication) (int, error) {
	return p.publish.run(ctx, p.rdb, p.keys, one.Encode()).Int()
}

// Published returns the texts of all published policies by their names, and when each process has last published each,
// by this process' clock: Redis has its own.
func (p *Policies) Published(ctx context.Context) (
	texts map[string]string, seen map[string]map[string]time.Time, err error) {
	pipe := p.rdb.Pipeline()
	all := send(ctx, pipe, redis.NewMapStringStringCmd(ctx, "hgetall", p.keys[0]))
	members := send(ctx, pipe, redis.NewZSliceCmd(ctx, "zrange", p.keys[2], 0, -1, "withscores"))
	clock := send(ctx, pipe, redis.NewTimeCmd(ctx, "time"))
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, nil, err
	}
	ahead := time.Since(clock.Val())
	seen = map[string]map[string]time.Time{}
	for _, z := range members.Val() {
		member, _ := z.Member.(string)
		name, process := wire.PublishedBy(member)
		if seen[name] == nil {
			seen[name] = map[string]time.Time{}
		}
		seen[name][process] = time.UnixMilli(int64(z.Score)).Add(ahead)
	}
	return all.Val(), seen, nil
}

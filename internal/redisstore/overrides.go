package redisstore

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/goroutine"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// Overrides keeps the overrides of a prefix in Redis.
type Overrides struct {
	rdb       redis.UniversalClient
	keys      []string
	processes string // the key of what each process has published
	change    script
}

// NewOverrides returns what a client's Redis has of the overrides of a prefix.
func NewOverrides(rdb redis.UniversalClient, prefix string) *Overrides {
	return &Overrides{newUnhooked(rdb), wire.OverrideKeys(prefix), wire.PolicyKeys(prefix)[2],
		newScript(wire.OverrideScript())}
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

// Look returns the stamp of the last change of overrides, or "" if there are none, and whether a publication is there.
// It asks for one by a command and at the same time for the other by a pipeline, as clients may have connections of
// their own for pipelines, such as go-redis' from 9.23 on: a decision may be too short for a slow handshake, and uses
// what Look has made.
func (o *Overrides) Look(ctx context.Context, publication string) (stamp string, isThere bool, err error) {
	found := redis.NewStringCmd(ctx, "hget", o.keys[0], wire.OverrideStamp)
	var other redis.Cmder = redis.NewFloatCmd(ctx, "zscore", o.processes, publication)
	if publication == "" { // the process has published nothing yet, or may not
		other = redis.NewStringCmd(ctx, "hget", o.keys[0], wire.OverrideStamp)
	}
	seen := goroutine.Isolate(func() (struct{}, error) { // a function of the client may panic
		pipe := o.rdb.Pipeline()
		_ = send(ctx, pipe, other)
		_, _ = pipe.Exec(ctx) // the command has its error
		return struct{}{}, other.Err()
	})
	stamp, err = send(ctx, o.rdb, found).Result()
	score := (<-seen).Err
	return stamp, publication != "" && score == nil, errors.Join(orNil(err), orNil(score))
}

// orNil returns an error, or nil if it says that there is nothing.
func orNil(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// Overrides returns the texts of all overrides by their names, and the stamp of their last change.
func (o *Overrides) Overrides(ctx context.Context) (texts map[string]string, stamp string, err error) {
	texts, err = send(ctx, o.rdb, redis.NewMapStringStringCmd(ctx, "hgetall", o.keys[0])).Result()
	stamp = texts[wire.OverrideStamp]
	delete(texts, wire.OverrideStamp)
	return texts, stamp, err
}

// maxTexts is how many texts one command reads.
const maxTexts = 1000

// Since returns the texts of the overrides that were changed after the change with a stamp, "" of those that have
// ended, and the stamp of the last change. It is false if Redis does not know that change, or the one with the stamp
// to, which is not earlier.
func (o *Overrides) Since(ctx context.Context, stamp, to string) (
	texts map[string]string, last string, ok bool, err error) {
	turn := wire.OverrideTurn(stamp)
	if turn == 0 {
		return nil, "", false, nil
	}
	changes, err := send(ctx, o.rdb, redis.NewStringSliceCmd(ctx, "zrangebyscore", o.keys[2], turn, "+inf")).Result()
	if err != nil || len(changes) == 0 || changes[0] != stamp || !slices.Contains(changes, to) {
		return nil, "", false, err
	}
	last, pipe, texts := changes[len(changes)-1], o.rdb.Pipeline(), map[string]string{}
	names := slices.DeleteFunc(changes, wire.IsOverrideStamp)
	var replies []*redis.SliceCmd
	for some := range slices.Chunk(names, maxTexts) {
		args := []any{"hmget", o.keys[0]}
		for _, name := range some {
			args = append(args, name)
		}
		replies = append(replies, send(ctx, pipe, redis.NewSliceCmd(ctx, args...)))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, "", false, err
	}
	for i, name := range names {
		texts[name], _ = replies[i/maxTexts].Val()[i%maxTexts].(string)
	}
	return texts, last, true, nil
}

const (
	maxChanged = 100                  // overrides that one script changes, in a millisecond or so
	longest    = 367 * 24 * time.Hour // that overrides last
)

// errEndsMissing says that the key of the ends is evicted again and again.
var errEndsMissing = errors.New("redisstore: Redis does not keep when overrides end")

// Change makes changes of overrides, and returns their stamp; or none and "" if there would be more overrides than
// their limit.
func (o *Overrides) Change(ctx context.Context, c *wire.OverrideChanges) (stamp string, err error) {
	for _, args := range c.Encode(maxChanged) {
		stamp, err = o.change.run(ctx, o.rdb, o.keys, args).Text()
		for tries := 0; stamp == wire.EndsMissing && err == nil; tries++ {
			if tries == 3 {
				return "", errEndsMissing
			}
			if err = o.addEnds(ctx); err == nil {
				stamp, err = o.change.run(ctx, o.rdb, o.keys, args).Text()
			}
		}
		if err != nil || stamp == "" {
			return "", err
		}
	}
	return stamp, nil
}

// addEnds adds to the key of the ends what Redis has evicted. Who changes an override meanwhile sets its end.
func (o *Overrides) addEnds(ctx context.Context) error {
	texts, _, err := o.Overrides(ctx)
	if err != nil {
		return err
	}
	last := time.Now().Add(longest).UnixMilli()
	pipe := o.rdb.Pipeline()
	for some := range slices.Chunk(slices.Collect(maps.Keys(texts)), maxTexts) {
		args := []any{"zadd", o.keys[1], "nx"}
		for _, name := range some {
			end, ok := wire.OverrideEnd(texts[name])
			if !ok { // nobody can read it
				end = last
			}
			args = append(args, end, name)
		}
		send(ctx, pipe, redis.NewIntCmd(ctx, args...))
		send(ctx, pipe, redis.NewBoolCmd(ctx, "pexpireat", o.keys[1], last))
	}
	_, err = pipe.Exec(ctx)
	return err
}

package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/wire"
)

// Answers keeps a slow source's answers in Redis, each as a text that expires.
//
// While the source is queried, a token marks the query. The answer is stored only if its token is
// still there, so an answer older than a Forget is dropped.
type Answers struct {
	rdb    redis.UniversalClient
	script script
}

// errNoClient is the error of reads and writes without a Redis.
var errNoClient = errors.New("no Redis")

// NewAnswers returns the answers kept in a client's Redis. Without a client it keeps none.
func NewAnswers(rdb redis.UniversalClient) *Answers {
	return &Answers{rdb, newScript(wire.Plan())}
}

// Get returns an answer's text and its remaining lifetime. The text is empty if there is no answer.
func (a *Answers) Get(ctx context.Context, key string) (text string, left time.Duration, err error) {
	if a.rdb == nil {
		return "", 0, errNoClient
	}
	pipe := a.rdb.Pipeline()
	kept := send(ctx, pipe, redis.NewStringCmd(ctx, "get", key))
	ttl := send(ctx, pipe, redis.NewDurationCmd(ctx, time.Millisecond, "pttl", key))
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return "", 0, err
	}
	return kept.Val(), ttl.Val(), nil
}

// Token returns the token of an answer: the one in Redis, or fresh if there was none. Both a token
// and an error are returned if Redis refuses writes but still serves reads.
func (a *Answers) Token(ctx context.Context, key, fresh string, life time.Duration) (string, error) {
	if a.rdb == nil {
		return "", errNoClient
	}
	pipe := a.rdb.Pipeline()
	send(ctx, pipe, redis.NewBoolCmd(ctx, "set", wire.PlanToken(key), fresh, "px", max(1, life.Milliseconds()), "nx"))
	token := send(ctx, pipe, redis.NewStringCmd(ctx, "get", wire.PlanToken(key)))
	_, err := pipe.Exec(ctx)
	return token.Val(), err
}

// Store stores an answer if its token is still in Redis, and reports whether it did.
func (a *Answers) Store(ctx context.Context, key, token, text string, life time.Duration) (bool, error) {
	if a.rdb == nil {
		return false, errNoClient
	}
	keys, args := wire.EncodePlan(key, token, text, life)
	return a.script.run(ctx, a.rdb, keys, args).Bool()
}

// Forget removes an answer, and keeps the answers to earlier queries from being stored.
func (a *Answers) Forget(ctx context.Context, key, fresh string, life time.Duration) error {
	if a.rdb == nil {
		return nil
	}
	_, err := a.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		// Replace the token instead of deleting it, so that a Redis that refuses writes returns an
		// error. Replace it first, so that an answer stored in between is deleted.
		send(ctx, pipe, redis.NewStatusCmd(ctx, "set", wire.PlanToken(key), fresh, "px", max(1, life.Milliseconds())))
		send(ctx, pipe, redis.NewIntCmd(ctx, "del", key))
		return nil
	})
	return err
}

package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// tokenSuffix follows the key of an answer in the key of its token.
const tokenSuffix = ":token"

// Answers keeps the answers of a slow source in Redis, each as a text that expires.
//
// An answer has a token while the source is asked for it, and is stored only if the token is still
// the same. So an answer that is older than a Forget is not stored.
type Answers struct {
	rdb    redis.UniversalClient
	script *redis.Script
}

// NewAnswers returns the answers that a client's Redis keeps. The script is plan.lua.
func NewAnswers(rdb redis.UniversalClient, script string) *Answers {
	return &Answers{rdb, redis.NewScript(script)}
}

// Get returns the text of an answer and how long it is still kept. Without an answer the text is
// empty.
func (a *Answers) Get(ctx context.Context, key string) (text string, left time.Duration, err error) {
	pipe := a.rdb.Pipeline()
	kept, ttl := pipe.Get(ctx, key), pipe.PTTL(ctx, key)
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return "", 0, err
	}
	return kept.Val(), ttl.Val(), nil
}

// Token returns the token of an answer, which is fresh if there was none. With an error it may
// return a token that is already there, as a Redis that denies writes still answers reads.
func (a *Answers) Token(ctx context.Context, key, fresh string, life time.Duration) (string, error) {
	pipe := a.rdb.Pipeline()
	pipe.SetNX(ctx, key+tokenSuffix, fresh, life)
	token := pipe.Get(ctx, key+tokenSuffix)
	_, err := pipe.Exec(ctx)
	return token.Val(), err
}

// Store stores an answer for some time, and reports whether the token was still the same.
func (a *Answers) Store(ctx context.Context, key, token, text string, life time.Duration) (bool, error) {
	keys := []string{key, key + tokenSuffix}
	return a.script.Run(ctx, a.rdb, keys, token, text, life.Milliseconds()).Bool()
}

// Forget removes an answer. No answer to an earlier question is stored afterwards.
func (a *Answers) Forget(ctx context.Context, key, fresh string, life time.Duration) error {
	_, err := a.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		// The token is replaced, not deleted: a Redis that denies writes says so. It is replaced
		// first: an answer that is stored in between is deleted.
		pipe.Set(ctx, key+tokenSuffix, fresh, life)
		pipe.Del(ctx, key)
		return nil
	})
	return err
}

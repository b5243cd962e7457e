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
	rdb    redis.UniversalClient
	prefix string      // up to and with the brace
	loaded atomic.Bool // SCRIPT LOAD has been tried
}

func newRedisStore(rdb redis.UniversalClient, prefix string) *redisStore {
	if prefix != "" {
		prefix += ":"
	}
	return &redisStore{rdb: rdb, prefix: prefix + "{"}
}

// String names the client and the prefix. Two clients of one server are taken for two stores.
func (s *redisStore) String() string { return fmt.Sprintf("%p %s", s.rdb, s.prefix) }

func (s *redisStore) decide(ctx context.Context, a *ask) error {
	args := s.args(a)
	args[2+len(a.buckets)+1] = a.charges
	for i := range a.buckets {
		b := &a.buckets[i]
		charge := b.cost
		if a.charges > 0 {
			charge = b.charge(a.n)
		}
		args = append(args, b.drain, charge, b.capacity)
	}
	return s.run(ctx, args, a.levels)
}

func (s *redisStore) block(ctx context.Context, a *ask) error {
	args := s.args(a)
	args[2+len(a.buckets)+1] = 0
	for i := range a.buckets {
		args = append(args, a.buckets[i].drain, a.levels[i], a.buckets[i].capacity)
	}
	return s.run(ctx, append(args, "block"), make([]int64, len(a.buckets)))
}

func (s *redisStore) reset(ctx context.Context, a *ask) error {
	args := []any{"del"}
	for i := range a.buckets {
		args = append(args, s.key(a.key, &a.buckets[i]))
	}
	_, err := s.send(ctx, args)
	return err
}

func (s *redisStore) key(key string, b *bucket) string {
	return s.prefix + key + "}:" + b.period
}

// args returns the command up to ARGV[1], which is left for the caller, with room for the rest.
func (s *redisStore) args(a *ask) []any {
	args := make([]any, 0, 5+4*len(a.buckets))
	args = append(args, "evalsha", script.Hash(), len(a.buckets))
	for i := range a.buckets {
		args = append(args, s.key(a.key, &a.buckets[i]))
	}
	return append(args, nil)
}

// run calls the script by its SHA, and with its source where Redis has lost it.
func (s *redisStore) run(ctx context.Context, args []any, levels []int64) error {
	if s.loaded.CompareAndSwap(false, true) {
		_, err := s.send(ctx, []any{"script", "load", scriptSource})
		if refusal := redis.Error(nil); err != nil && !errors.As(err, &refusal) {
			s.loaded.Store(false) // Redis was not reached, and would not be now
			return err
		} // refused: EVAL answers below
	}
	reply, err := s.send(ctx, args)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		args[0], args[1] = "eval", scriptSource
		reply, err = s.send(ctx, args)
	}
	if err != nil {
		return err
	}
	return decodeLevels(reply, levels)
}

func (s *redisStore) send(ctx context.Context, args []any) (any, error) {
	cmd := once{redis.NewCmd(ctx, args...)}
	cmd.SetStepCount(1)         // known, or a cluster client asks for it with COMMAND
	_ = s.rdb.Process(ctx, cmd) // the same error as the command's
	return cmd.Result()
}

// once is a command that go-redis does not send again, so that no charge is made twice: a reply that
// does not come in time may be late, not lost. It follows a redirection all the same.
type once struct{ *redis.Cmd }

// NoRetry implements [redis.Cmder].
func (once) NoRetry() bool { return true }

// decodeLevels reads the reply of script.lua: one integer per bucket, without a list around a single one.
func decodeLevels(reply any, levels []int64) error {
	switch reply := reply.(type) {
	case int64:
		if len(levels) == 1 && reply >= 0 && reply <= maxUnits {
			levels[0] = reply
			return nil
		}
	case []any:
		if len(levels) != len(reply) || len(reply) < 2 {
			break
		}
		for i := range reply {
			level, ok := reply[i].(int64)
			if !ok || level < 0 || level > maxUnits {
				return fmt.Errorf("ginlimit: the script's reply for bucket %d is a %T, not a level", i+1, reply[i])
			}
			levels[i] = level
		}
		return nil
	}
	return fmt.Errorf("ginlimit: the script's reply is a %T, not the levels of %d buckets", reply, len(levels))
}

// isNil reports whether a client is nil, be it a nil pointer inside the interface.
func isNil(rdb redis.UniversalClient) bool {
	v := reflect.ValueOf(rdb)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

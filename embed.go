package ginlimit

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed script.lua
var tokenBucketSource string

// scripts are those of the algorithms.
var scripts = [...]script{
	TokenBucket:   newScript(tokenBucketSource),
	FixedWindow:   newScript(fixedWindowSource + windowSource),
	SlidingWindow: newScript(slidingWindowSource + windowSource),
}

// script is how a script is called.
type script struct {
	source   string
	bySHA    [2]any
	bySource [2]any
}

func newScript(source string) script {
	sha := redis.NewScript(source).Hash() // worked out here, not in Redis
	return script{source, [2]any{"evalsha", sha}, [2]any{"eval", source}}
}

// apartTime is for how long keys go apart after Redis has refused a call for several of them and done it for one.
const apartTime = time.Minute

// refusalsApart is how often the log is told that Redis refuses.
const refusalsApart = time.Minute

// redisStore keeps buckets in Redis, one key each: prefix:{key}:period, and of a window prefix:{key}:period:kind.
type redisStore struct {
	rdb    redis.UniversalClient
	prefix string                    // up to and with the brace
	loaded [len(scripts)]atomic.Bool // Redis was asked to load the script
	apart  atomic.Int64              // until when no two keys go into one call of the script, in Unix seconds
	nodes  *nodes
	log    *slog.Logger
	told   atomic.Int64 // when the log was last told that Redis refuses, in Unix seconds
}

func newRedisStore(rdb redis.UniversalClient, c config) *redisStore {
	prefix := c.prefix
	if prefix != "" {
		prefix += ":"
	}
	s := &redisStore{rdb: rdb, prefix: prefix + "{", log: c.logger}
	s.nodes = newNodes(rdb, c.timeout, c.logger, s.send)
	if !s.nodes.one {
		s.apart.Store(math.MaxInt64) // keys may be on different servers
	}
	return s
}

// String names the client and the prefix. Two clients of one server are taken for two stores.
func (s *redisStore) String() string { return fmt.Sprintf("%p %s", s.rdb, s.prefix) }

func (s *redisStore) close() { s.nodes.close() }

func (s *redisStore) do(ctx context.Context, a *ask) error {
	for i := range a.names {
		name := append(append(a.names[i][:0], s.prefix...), a.keyOf(i)...)
		a.names[i] = append(append(name, "}:"...), a.buckets[i].id...)
	}
	return s.nodes.dispatcher(&a.names[0]).decide(ctx, a)
}

// send has a batch done.
func (s *redisStore) send(ctx context.Context, b *batch) {
	for _, e := range b.errands {
		if err := s.load(ctx, e.buckets[0].algorithm); err != nil {
			for _, e := range b.errands {
				e.err = err
			}
			return
		}
	}
	b.plan(b.errands, len(b.errands) > 1 && s.together())
	refused := b.run(ctx, s.rdb)
	var alone []*errand
	for _, e := range b.errands {
		if e.err == errAskAlone {
			alone = append(alone, e)
		}
	}
	if alone != nil {
		b.plan(alone, false)
		b.run(ctx, s.rdb)
		for _, e := range alone {
			if refused && e.err == nil {
				s.goApart() // what is refused together and done alone
			}
		}
	}
	for _, e := range b.errands {
		if e.err != nil && isReply(e.err) {
			s.tell(e.err)
		}
	}
}

// tell has the log say, once in a while, that Redis refuses what it is asked.
func (s *redisStore) tell(err error) {
	now, told := time.Now().Unix(), s.told.Load()
	if now-told >= int64(refusalsApart/time.Second) && s.told.CompareAndSwap(told, now) {
		s.log.Warn("ginlimit: Redis refuses decisions", "code", reason(err))
	}
}

// run has the commands of a batch done: by the script's SHA, and with its source where Redis has lost it. It
// reports whether Redis refused a command of several errands, as it does if their keys are in different slots
// or the user may not use MGET.
func (b *batch) run(ctx context.Context, rdb redis.UniversalClient) (refused bool) {
	for _, c := range b.commands {
		c.prepare(ctx, true)
	}
	exec(ctx, rdb, b.commands)
	var lost []*command
	for _, c := range b.commands {
		if err := c.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			c.prepare(ctx, false)
			lost = append(lost, c)
		}
	}
	if lost != nil {
		exec(ctx, rdb, lost)
	}
	for _, c := range b.commands {
		c.answer()
		refused = refused || c.errands[0].err == errAskAlone && c.Err() != nil
	}
	return refused
}

// exec sends commands and reads their replies. What goes wrong is the commands' error.
func exec(ctx context.Context, rdb redis.UniversalClient, commands []*command) {
	if len(commands) == 1 {
		_ = rdb.Process(ctx, commands[0])
		return
	}
	pipe := rdb.Pipeline()
	for _, c := range commands {
		_ = pipe.Process(ctx, c)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		for _, c := range commands {
			c.notSent(err)
		}
	}
}

// load has Redis keep a script, once. Where Redis is reached and refuses that, EVAL will do.
func (s *redisStore) load(ctx context.Context, a Algorithm) error {
	loaded := &s.loaded[a]
	if !s.nodes.one || loaded.Load() || !loaded.CompareAndSwap(false, true) {
		return nil // of several servers each learns it by EVAL
	}
	load := command{Cmder: redis.NewStringCmd(ctx, "script", "load", scripts[a].source)}
	load.SetStepCount(1)
	err := s.rdb.Process(ctx, &load)
	if err == nil || isRefusal(err) {
		return nil
	}
	loaded.Store(false)
	return err
}

// isRefusal reports whether an error is what Redis replied.
func isRefusal(err error) bool {
	var refusal redis.Error
	return errors.As(err, &refusal)
}

// lostReplies begin the errors by which a server says that it decides for nobody now.
var lostReplies = []string{"LOADING", "BUSY", "NOAUTH", "WRONGPASS", "MASTERDOWN", "CLUSTERDOWN", "ERR max number of clients"}

// isReply reports whether an error is what Redis replies to this command, where another one may be done.
func isReply(err error) bool {
	if !isRefusal(err) {
		return false
	}
	for _, lost := range lostReplies {
		if redis.HasErrorPrefix(err, lost) {
			return false
		}
	}
	return true
}

// isNil reports whether a client is nil, be it a nil pointer inside the interface.
func isNil(rdb redis.UniversalClient) bool {
	v := reflect.ValueOf(rdb)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

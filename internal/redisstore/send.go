package redisstore

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// script is a script by its SHA-1 and its source.
type script struct{ sha, source string }

func newScript(source string) script { return script{redis.NewScript(source).Hash(), source} }

// run calls a script, by its source where Redis lacks it.
func (s script) run(ctx context.Context, rdb processor, keys []string, args []any) *redis.Cmd {
	call := func(name, script string) *redis.Cmd {
		all := []any{name, script, len(keys)}
		for _, key := range keys {
			all = append(all, key)
		}
		return send(ctx, rdb, redis.NewCmd(ctx, append(all, args...)...))
	}
	cmd := call("evalsha", s.sha)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		return call("eval", s.source)
	}
	return cmd
}

// processor sends a command, or adds it to a pipeline.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// send sends a command, or adds it to a pipeline. A cluster client does not ask for its keys by COMMAND: that needs a
// right of its own.
func send[C redis.Cmder](ctx context.Context, rdb processor, cmd C) C {
	cmd.SetStepCount(1)
	_ = rdb.Process(ctx, cmd) // the command keeps the error
	return cmd
}

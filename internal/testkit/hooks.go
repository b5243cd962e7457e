package testkit

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// LateHook keeps the first decision from Redis, as if it were late.
type LateHook struct{ Args []any }

// DialHook implements [redis.Hook].
func (*LateHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (*LateHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook implements [redis.Hook].
func (h *LateHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" || h.Args != nil {
			return next(ctx, cmd)
		}
		for _, arg := range cmd.Args() {
			h.Args = append(h.Args, fmt.Sprint(arg))
		}
		cmd.SetErr(context.DeadlineExceeded)
		return context.DeadlineExceeded
	}
}

// EveryScript calls a function for each call of the client, alone or a pipeline, that calls the script.
type EveryScript func(send func() error) error

// DialHook implements [redis.Hook].
func (h EveryScript) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (h EveryScript) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !strings.HasPrefix(cmd.Name(), "eval") {
			return next(ctx, cmd)
		}
		return h(func() error { return next(ctx, cmd) })
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (h EveryScript) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !strings.HasPrefix(cmds[0].Name(), "eval") {
			return next(ctx, cmds)
		}
		return h(func() error { return next(ctx, cmds) })
	}
}

// EveryCall is a hook around each call of a client, alone or a pipeline.
type EveryCall func(send func() error) error

// DialHook implements [redis.Hook].
func (h EveryCall) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (h EveryCall) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return h(func() error { return next(ctx, cmd) }) }
}

// ProcessPipelineHook implements [redis.Hook].
func (h EveryCall) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return h(func() error { return next(ctx, cmds) }) }
}

package testkit

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Hook is a hook of a client around each call, with one command or a pipeline's.
type Hook func(cmds []redis.Cmder, send func() error) error

// DialHook implements [redis.Hook].
func (h Hook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (h Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (h Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h(cmds, func() error { return next(ctx, cmds) })
	}
}

// EveryCall calls a function for each call of the client.
func EveryCall(call func(send func() error) error) Hook {
	return func(_ []redis.Cmder, send func() error) error { return call(send) }
}

// EveryScript calls a function for each call of the client that calls a script.
func EveryScript(call func(send func() error) error) Hook {
	return func(cmds []redis.Cmder, send func() error) error {
		if strings.HasPrefix(cmds[0].Name(), "eval") {
			return call(send)
		}
		return send()
	}
}

// FirstIsLate keeps the first decision from Redis, as if it were late, and notes its arguments.
func FirstIsLate(args *[]any) Hook {
	return func(cmds []redis.Cmder, send func() error) error {
		if cmds[0].Name() != "evalsha" || *args != nil {
			return send()
		}
		for _, arg := range cmds[0].Args() {
			*args = append(*args, fmt.Sprint(arg))
		}
		cmds[0].SetErr(context.DeadlineExceeded)
		return context.DeadlineExceeded
	}
}

package scripts_test

import (
	"context"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// scripts are the scripts that were called, by their sources, so that each is hashed once.
var scripts sync.Map

// eval calls a script, whose source is sent only to a Redis that does not know it.
func eval(ctx context.Context, rdb *redis.Client, source string, keys []string, args ...any) *redis.Cmd {
	if *lua54 != "" {
		return startLua54().eval(ctx, rdb, source, keys, args)
	}
	script, ok := scripts.Load(source)
	if !ok {
		script, _ = scripts.LoadOrStore(source, redis.NewScript(source))
	}
	return script.(*redis.Script).Run(ctx, rdb, keys, args...)
}

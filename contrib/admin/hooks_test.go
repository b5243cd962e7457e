package admin_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// probe measures the way of a command through a client's hooks.
type probe struct{ depth int }

func (*probe) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*probe) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (p *probe) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "echo" {
			p.depth = runtime.Callers(0, make([]uintptr, 4096))
		}
		return next(ctx, cmd)
	}
}

// TestAVisitLeavesNoHookOnTheClient of the application, whose every command it would delay.
func TestAVisitLeavesNoHookOnTheClient(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	depth := func() int {
		p := &probe{}
		rdb.AddHook(p)
		require.NoError(t, rdb.Echo(t.Context(), "a").Err())
		return p.depth
	}
	first := depth()
	for range 100 {
		s.get("")
	}
	require.LessOrEqual(t, depth(), first+2)
}

package redisstore

import (
	"context"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// watched is a command that notes from which functions it is written.
type watched struct {
	redis.Cmder
	stack *string
}

func (w watched) Args() []any {
	*w.stack = string(debug.Stack())
	return w.Cmder.Args()
}

// TestAClientIsEnteredOnce for a command of the store, though a bounded copy of the client sends it, and a pipeline is
// no transaction.
func TestAClientIsEnteredOnce(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	var sent []string
	m.Server().SetPreHook(func(_ *server.Peer, cmd string, _ ...string) bool {
		sent = append(sent, cmd)
		return false
	})
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr(), DisableIdentity: true, Protocol: 2})
	defer rdb.Close()
	hook := addBoundedHook(rdb, time.Second)
	ctx, stack := context.Background(), ""
	ping := func() *command {
		c := &command{Cmder: watched{redis.NewStatusCmd(ctx, "ping"), &stack}, hook: hook}
		c.SetStepCount(1)
		return c
	}
	require.NoError(t, rdb.Process(ctx, ping()))
	require.Equal(t, 1, strings.Count(stack, "(*Client).Process("))

	sent = nil
	pipe := rdb.Pipeline()
	for range 2 {
		_ = pipe.Process(ctx, ping())
	}
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(stack, "(*Pipeline).Exec("))
	require.Equal(t, []string{"PING", "PING"}, sent)
}

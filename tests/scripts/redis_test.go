//go:build integration

package scripts_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// How the script comes to a server.

func TestScriptIsLoadedOnceAndCalledBySHA(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	limiter := testkit.NewLimiter(t, rdb)
	for range 10 {
		testkit.Must(limiter.Allow(t.Context(), "k", ginlimit.PerHour(50)))
	}
	calls := testkit.CommandCalls(t, rdb)
	assert.Equal(t, "1", calls["script|load"])
	assert.Equal(t, "10", calls["evalsha"])
	assert.NotContains(t, calls, "eval")
}

// TestScriptFlushLosesNoDecision answers the fault of system A: after SCRIPT FLUSH every request was denied.
func TestScriptFlushLosesNoDecision(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	limiter := testkit.NewLimiter(t, rdb)
	const callers, each = 8, 200
	limit := ginlimit.Limit{Rate: 1, Period: 24 * time.Hour, Burst: callers * each / 2}

	ctx, stop := context.WithCancel(t.Context())
	var flusher, all sync.WaitGroup
	flusher.Go(func() {
		for ctx.Err() == nil {
			_ = rdb.ScriptFlush(ctx).Err()
		}
	})
	var mu sync.Mutex
	admitted := 0
	for range callers {
		all.Go(func() {
			for range each {
				r, err := limiter.Allow(t.Context(), "k", limit)
				if !assert.NoError(t, err) {
					return
				}
				if r.Allowed {
					mu.Lock()
					admitted++
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	stop()
	flusher.Wait()
	assert.Equal(t, limit.Burst, admitted)
}

func TestScriptIsLoadedWhenRedisIsFirstReached(t *testing.T) {
	t.Parallel()
	addr := "127.0.0.1:" + testkit.FreePort(t)
	rdb := redis.NewClient(&redis.Options{Addr: addr, DialerRetries: 1, MaxRetries: -1})
	defer rdb.Close()
	limiter := testkit.NewLimiter(t, rdb)
	_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(1))
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.NotNil(t, testkit.LaunchRedis(t, addr))
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		_, err = limiter.Allow(t.Context(), "k", ginlimit.PerHour(1))
		return err == nil
	}))
	calls := testkit.CommandCalls(t, rdb)
	assert.Equal(t, "1", calls["script|load"])
	assert.NotContains(t, calls, "eval")
}

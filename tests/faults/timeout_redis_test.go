//go:build integration

package faults_test

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// How long a decision takes, whatever Redis does.

// TestTimeoutBoundsEveryDecision has all callers back while Redis is still frozen, whatever the client's own
// timeouts are.
func TestTimeoutBoundsEveryDecision(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (redis.UniversalClient, func(syscall.Signal)){
		"server": func(t *testing.T) (redis.UniversalClient, func(syscall.Signal)) {
			addr, process := testkit.StartRedisProcess(t)
			return redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: testkit.Patience}),
				func(s syscall.Signal) { require.NoError(t, process.Signal(s)) }
		},
		"server, direct": func(t *testing.T) (redis.UniversalClient, func(syscall.Signal)) {
			addr, process := testkit.StartRedisProcess(t)
			return redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: testkit.Patience,
				ContextTimeoutEnabled: true}), func(s syscall.Signal) { require.NoError(t, process.Signal(s)) }
		},
		"server, direct, without a deadline": func(t *testing.T) (redis.UniversalClient, func(syscall.Signal)) {
			addr, process := testkit.StartRedisProcess(t)
			return redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: -2, ContextTimeoutEnabled: true}),
				func(s syscall.Signal) { require.NoError(t, process.Signal(s)) }
		},
		"cluster": func(t *testing.T) (redis.UniversalClient, func(syscall.Signal)) {
			addr, process := testkit.StartRedisProcess(t, "--cluster-enabled", "yes")
			require.NoError(t, testkit.Connect(t, addr).Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr},
				ReadTimeout: testkit.Patience}), func(s syscall.Signal) { require.NoError(t, process.Signal(s)) }
		},
	} {
		for _, callers := range []int{1, 64} {
			t.Run(fmt.Sprint(name, " ", callers), func(t *testing.T) {
				t.Parallel()
				rdb, signal := start(t)
				defer rdb.Close()
				limiter, limit := testkit.NewLimiter(t, rdb, ginlimit.WithTimeout(100*time.Millisecond)), ginlimit.PerHour(10)
				works := func() bool {
					_, err := limiter.Allow(t.Context(), "k", limit)
					return err == nil
				}
				require.True(t, testkit.BecomesTrue(t.Context().Done(), works))
				signal(syscall.SIGSTOP)
				resume := sync.OnceFunc(func() { signal(syscall.SIGCONT) })
				defer resume()
				for range 3 {
					var all sync.WaitGroup
					for i := range callers {
						all.Go(func() {
							start := time.Now()
							_, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), limit)
							assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
							assert.Less(t, time.Since(start), time.Minute, "also on a busy machine")
						})
					}
					all.Wait()
				}
				resume()
				require.True(t, testkit.BecomesTrue(t.Context().Done(), works))
			})
		}
	}
}

// TestFrozenNodeHoldsUpItsOwnKeys asks a cluster of which a node is frozen.
func TestFrozenNodeHoldsUpItsOwnKeys(t *testing.T) {
	t.Parallel()
	addrs, processes := testkit.StartClusterProcesses(t, 3)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ReadTimeout: testkit.Patience})
	defer rdb.Close()
	limiter, limit := testkit.NewLimiter(t, rdb, ginlimit.WithTimeout(time.Hour)), ginlimit.PerHour(10)
	frozen := map[string]bool{}
	for i := range 60 {
		key := fmt.Sprint("client ", i)
		testkit.Must(limiter.Allow(t.Context(), key, limit))
		node := testkit.Must(rdb.MasterForKey(t.Context(), testkit.RedisKey(key, limit)))
		frozen[key] = node.Options().Addr == addrs[1]
	}
	require.NoError(t, processes[1].Signal(syscall.SIGSTOP))
	resume := sync.OnceFunc(func() { require.NoError(t, processes[1].Signal(syscall.SIGCONT)) })
	defer resume()
	ctx, cancel := context.WithCancel(t.Context())
	var waiting, others sync.WaitGroup
	for key, is := range frozen {
		if is {
			waiting.Go(func() { _, _ = limiter.Allow(ctx, key, limit) })
		}
	}
	for key, is := range frozen {
		if !is {
			others.Go(func() {
				_, err := limiter.Allow(t.Context(), key, limit)
				assert.NoError(t, err)
			})
		}
	}
	others.Wait()
	cancel()
	waiting.Wait()
	resume()
}

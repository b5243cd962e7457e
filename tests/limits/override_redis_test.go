//go:build integration

package limits_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestAnOverrideReachesBusyProcesses with exact counts before and after it, on a Redis and on a cluster.
func TestAnOverrideReachesBusyProcesses(t *testing.T) {
	t.Parallel()
	addr, cluster := testkit.StartRedis(t), testkit.StartCluster(t, 3)
	for name, connect := range map[string]func(t *testing.T) redis.UniversalClient{
		"server": func(t *testing.T) redis.UniversalClient { return testkit.Connect(t, addr) },
		"cluster": func(t *testing.T) redis.UniversalClient {
			rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster})
			t.Cleanup(func() { _ = rdb.Close() })
			return rdb
		},
	} {
		t.Run(name, func(t *testing.T) {
			own := ginlimit.Limit{Rate: 3000, Period: time.Hour, Algorithm: ginlimit.FixedWindow}
			raised := ginlimit.Limit{Rate: 5000, Period: 2 * time.Hour, Algorithm: ginlimit.FixedWindow}
			var admitted, stopped sync.Map // by limit: *atomic.Int64
			count := func(m *sync.Map, l ginlimit.Limit) *atomic.Int64 {
				n, _ := m.LoadOrStore(l.String(), new(atomic.Int64))
				return n.(*atomic.Int64)
			}
			done := make(chan struct{})
			var all sync.WaitGroup
			var operator *testkit.Limiter
			for range 8 {
				operator = testkit.NewOperated(t, connect(t), testkit.RemembersDenials())
				p := testkit.NewPolicy(t, operator, "api", own)
				for range 4 {
					all.Add(1)
					go func() {
						defer all.Done()
						denied := map[string]bool{}
						for {
							select {
							case <-done:
								return
							default:
							}
							r, err := p.Allow(t.Context(), "ann")
							if err != nil {
								t.Error(err)
								return
							}
							if r.Allowed {
								count(&admitted, r.Limit).Add(1)
							} else if !denied[r.Limit.String()] {
								denied[r.Limit.String()] = true
								count(&stopped, r.Limit).Add(1)
							}
						}
					}()
				}
			}
			until := func(limit ginlimit.Limit) {
				t.Helper()
				require.True(t, testkit.BecomesTrue(nil, func() bool { return count(&stopped, limit).Load() == 32 }),
					"every caller is denied under %s", limit)
				require.EqualValues(t, limit.Rate, count(&admitted, limit).Load())
			}
			until(own)
			require.NoError(t, operator.Override(t.Context(), override("ann", raised)))
			until(raised)
			require.NoError(t, operator.Override(t.Context(), override("ann", ginlimit.Prohibited())))
			require.True(t, testkit.BecomesTrue(nil, func() bool { return count(&stopped, ginlimit.Prohibited()).Load() == 32 }))
			close(done)
			all.Wait()
			require.EqualValues(t, own.Rate, count(&admitted, own).Load())
			require.EqualValues(t, raised.Rate, count(&admitted, raised).Load())
		})
	}
}

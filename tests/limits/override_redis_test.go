//go:build integration

package limits_test

import (
	"fmt"
	"runtime"
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
		"server":  func(t *testing.T) redis.UniversalClient { return testkit.Connect(t, addr) },
		"cluster": func(t *testing.T) redis.UniversalClient { return testkit.ConnectCluster(t, cluster...) },
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
								continue
							}
							if !denied[r.Limit.String()] {
								denied[r.Limit.String()] = true
								count(&stopped, r.Limit).Add(1)
							}
							time.Sleep(time.Millisecond) // the deny cache answers, and others need the processor
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

// TestManyOverridesNeedLittleMemory in a process that knows them.
func TestManyOverridesNeedLittleMemory(t *testing.T) {
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	operator, l := testkit.NewOperated(t, rdb), testkit.NewOperated(t, rdb)
	testkit.NewPolicy(t, operator, "api", ginlimit.PerMinute(3))
	p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	require.Equal(t, ginlimit.PerMinute(3), limitOf(t, p, "customer-000000"))
	before := heap()
	for i := range 10 {
		var all []ginlimit.Override
		for j := range 1000 {
			o := override(fmt.Sprintf("customer-%d%03d", i, j), ginlimit.PerMinute(100+j%5), ginlimit.PerDay(5000))
			o.Note = "asked for by the sales department"
			all = append(all, o)
		}
		require.NoError(t, operator.OverrideAll(t.Context(), all...))
	}
	require.NoError(t, operator.Close())
	require.True(t, testkit.BecomesTrue(nil, func() bool { return l.Stats().Overrides == 10_000 }))
	require.Less(t, heap()-before, int64(2*4<<20), "of two processes")
	runtime.KeepAlive(operator)
}

// TestAnOverrideReachesProcessesWithinASecond, eight of them with 10,000 requests a second in all.
func TestAnOverrideReachesProcessesWithinASecond(t *testing.T) {
	testkit.Nightly(t, "a busy machine looks late")
	addr := testkit.StartRedis(t)
	raised, done := ginlimit.PerHour(2_000_000), make(chan struct{})
	var all sync.WaitGroup
	var decided atomic.Int64
	seen := make(chan time.Time, 8)
	var operator *testkit.Limiter
	for range 8 {
		operator = testkit.NewOperated(t, testkit.Connect(t, addr))
		p := testkit.NewPolicy(t, operator, "api", ginlimit.PerHour(1_000_000))
		all.Add(1)
		go func() {
			defer all.Done()
			tick, found := time.NewTicker(time.Second/125), false
			defer tick.Stop()
			for {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				for range 10 {
					r, err := p.Allow(t.Context(), "ann")
					if err != nil {
						t.Error(err)
						return
					}
					if decided.Add(1); r.Limit == raised && !found {
						found = true
						seen <- time.Now()
					}
				}
			}
		}()
	}
	time.Sleep(3 * time.Second)
	t.Logf("%d decisions a second", decided.Load()/3)
	require.NoError(t, operator.Override(t.Context(), override("ann", raised)))
	set, last := time.Now(), time.Duration(0)
	for range 8 {
		last = max(last, (<-seen).Sub(set))
	}
	close(done)
	all.Wait()
	t.Logf("the last process went by it after %v", last)
	require.Less(t, last, inForce)
}

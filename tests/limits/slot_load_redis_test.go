//go:build integration

package limits_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// lateRedis connects to a server of which about a third of the answers come up to 90 ms late.
func lateRedis(t *testing.T, addr string) string {
	proxy, address := testkit.StartProxy(t, addr)
	go func() {
		for t.Context().Err() == nil {
			if proxy.Delay.Store(0); rand.IntN(3) == 0 {
				proxy.Delay.Store(rand.Int64N(int64(90 * time.Millisecond)))
			}
			time.Sleep(time.Millisecond)
		}
	}()
	return address
}

// impatient are the defaults of a limiter, unlike those of tests.
var impatient = []ginlimit.LimiterOption{ginlimit.WithTimeout(ginlimit.DefaultTimeout),
	ginlimit.WithFailureMode(ginlimit.FailLocal)}

// crowd has callers of each policy hold slots, one after another, and returns how many were held at once at most of one
// policy.
func crowd(t *testing.T, lasts time.Duration, callers int, policies ...*ginlimit.Policy) int64 {
	var total, mostOfAll, mostOfOne, locally, allowed, denied atomic.Int64
	held := make([]atomic.Int64, len(policies))
	raise := func(most *atomic.Int64, n int64) {
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
	}
	var callersDone sync.WaitGroup
	for i, p := range policies {
		for range callers {
			callersDone.Go(func() {
				for start := time.Now(); time.Since(start) < lasts; {
					slot, err := p.Reserve(t.Context(), "alice", 1)
					if !assert.NoError(t, err) {
						return
					}
					if slot.Result().Source == ginlimit.FromLocal {
						locally.Add(1)
					}
					if !slot.Result().Allowed {
						denied.Add(1)
						time.Sleep(time.Duration(rand.Int64N(int64(20 * time.Millisecond))))
						continue
					}
					allowed.Add(1)
					raise(&mostOfOne, held[i].Add(1))
					raise(&mostOfAll, total.Add(1))
					time.Sleep(time.Duration(rand.Int64N(int64(50 * time.Millisecond))))
					held[i].Add(-1)
					total.Add(-1)
					slot.Release()
				}
			})
		}
	}
	callersDone.Wait()
	t.Logf("%d in flight at once, %d of one process; %d allowed, %d denied, %d of them locally", mostOfAll.Load(),
		mostOfOne.Load(), allowed.Load(), denied.Load(), locally.Load())
	return mostOfOne.Load()
}

// TestAProcessPassesNoSlotsWhileRedisIsLate now and then, with the default timeout.
func TestAProcessPassesNoSlotsWhileRedisIsLate(t *testing.T) {
	t.Parallel()
	const n = 20
	limiter := testkit.NewLimiter(t, testkit.Connect(t, lateRedis(t, testkit.StartRedis(t))), impatient...)
	most := crowd(t, 5*time.Second, 100, testkit.Must(limiter.Policy("api", ginlimit.InFlight(n))))
	require.LessOrEqual(t, most, int64(n))
}

// TestEachProcessPassesNoSlotsWhileRedisIsLate, and all together few. How many depends on the machine, and on whether
// a circuit breaker opens: the log says it. docs/guide.md has what this finds.
func TestEachProcessPassesNoSlotsWhileRedisIsLate(t *testing.T) {
	t.Parallel()
	const n = 50
	addr := testkit.StartRedis(t)
	var policies []*ginlimit.Policy
	for range 2 {
		limiter := testkit.NewLimiter(t, testkit.Connect(t, lateRedis(t, addr)),
			append(impatient[:2:2], ginlimit.WithReplicas(2))...)
		policies = append(policies, testkit.Must(limiter.Policy("api", ginlimit.InFlight(n))))
	}
	most := crowd(t, 5*time.Second, 100, policies...)
	require.LessOrEqual(t, most, int64(n))
}

// infoOf returns the sum of a number in INFO over servers.
func infoOf(t *testing.T, servers []*redis.Client, section, pattern string) (sum float64) {
	t.Helper()
	for _, rdb := range servers {
		if found := regexp.MustCompile(pattern).FindStringSubmatch(rdb.Info(t.Context(), section).Val()); found != nil {
			sum += testkit.Must(strconv.ParseFloat(found[1], 64))
		}
	}
	return sum
}

// TestRenewalsOnAClusterShareCommands, though their keys are in different hash slots; and each key is renewed.
func TestRenewalsOnAClusterShareCommands(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 3)
	var servers []*redis.Client
	for _, addr := range addrs {
		servers = append(servers, testkit.Connect(t, addr))
	}
	rdb := testkit.ConnectCluster(t, addrs...)
	limiter := testkit.NewLimiter(t, rdb)
	p := testkit.Must(limiter.Policy("api", ginlimit.InFlight(1)))
	const keys = 3000
	for i := range keys {
		slot := testkit.Keep(t, testkit.Must(p.Reserve(t.Context(), fmt.Sprint("client ", i), 1)))
		require.True(t, slot.OK())
	}
	count := func() (calls, reads, cpu float64) {
		return infoOf(t, servers, "commandstats", `cmdstat_evalsha:calls=(\d+)`),
			infoOf(t, servers, "stats", `total_reads_processed:(\d+)`), infoOf(t, servers, "cpu", `used_cpu_user:([\d.]+)`)
	}
	calls, reads, cpu := count()
	start := time.Now()
	<-time.After(12 * time.Second) // longer than Redis goes by a report
	calls2, reads2, cpu2 := count()
	seconds := time.Since(start).Seconds()
	calls = (calls2 - calls) / seconds
	t.Logf("%.0f calls a second, in %.0f reads, %.1f %% of a CPU", calls, (reads2-reads)/seconds, 100*(cpu2-cpu)/seconds)
	require.Less(t, calls, keys/10.)
	for i := range keys {
		res, err := p.Peek(t.Context(), fmt.Sprint("client ", i))
		require.NoError(t, err)
		require.False(t, res.Allowed, "client %d", i)
	}
}

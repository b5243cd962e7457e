//go:build integration

package faults_test

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// The dispatcher, on real redis-servers.

// TestMergedDecisionsAreDistributedInOrder wants of many callers at once what one after another
// would get: each whole token is somebody's last but so many.
func TestMergedDecisionsAreDistributedInOrder(t *testing.T) {
	t.Parallel()
	bucket, window := ginlimit.PerDay(1).WithBurst(3000), ginlimit.PerDay(3000)
	for name, row := range map[string]struct {
		algorithm ginlimit.Algorithm
		limits    []ginlimit.Limit
	}{
		"one limit":       {ginlimit.TokenBucket, []ginlimit.Limit{bucket}},
		"several limits":  {ginlimit.TokenBucket, []ginlimit.Limit{bucket, {Rate: 1, Period: 96 * time.Hour, Burst: 5000}}},
		"fixed window":    {ginlimit.FixedWindow, []ginlimit.Limit{window}},
		"fixed windows":   {ginlimit.FixedWindow, []ginlimit.Limit{window, {Rate: 5000, Period: 96 * time.Hour}}},
		"sliding window":  {ginlimit.SlidingWindow, []ginlimit.Limit{window}},
		"sliding windows": {ginlimit.SlidingWindow, []ginlimit.Limit{window, {Rate: 5000, Period: 96 * time.Hour}}},
	} {
		testkit.Run(t, name, func(t *testing.T) {
			rdb, limits := testkit.Connect(t, testkit.StartRedis(t)), row.limits
			limiter := testkit.NewLimiter(t, rdb, testkit.RemembersDenials(), testkit.WithAlgorithm(row.algorithm))
			const callers, each = 512, 8 // 4,096 decisions on 3,000 tokens
			remaining := make([]atomic.Int32, 3000)
			var denied atomic.Int64
			var all sync.WaitGroup
			for range callers {
				all.Go(func() {
					for range each {
						r, err := limiter.Allow(t.Context(), "hot", limits...)
						switch {
						case !assert.NoError(t, err):
							return
						case r.Allowed:
							remaining[r.Remaining].Add(1)
							assert.Zero(t, r.RetryAfter)
						default:
							denied.Add(1)
							assert.Zero(t, r.Remaining)
							assert.Positive(t, r.RetryAfter)
						}
					}
				})
			}
			all.Wait()
			for i := range remaining {
				require.EqualValues(t, 1, remaining[i].Load(), "remaining %d", i)
			}
			require.EqualValues(t, callers*each-3000, denied.Load())
			calls := testkit.ScriptCalls(t, rdb)
			t.Logf("%d decisions in %d calls of the script", callers*each, calls)
			require.Less(t, calls, callers*each/8)
		})
	}
}

// TestManyKeysShareACall where the server allows it. Where Redis refuses a call for several keys, no decision is an
// error, nor a token too many or too few.
func TestManyKeysShareACall(t *testing.T) {
	t.Parallel()
	source, _ := testkit.ScriptOfLimit(t, ginlimit.TokenBucket, ginlimit.PerDay(1))
	const user, password = "app", "secret"
	// refusing has a server whose user may not call a command.
	refusing := func(addr, command string) string {
		admin := testkit.Connect(t, addr)
		require.NoError(t, admin.ScriptLoad(t.Context(), source).Err())
		require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", user, "on", ">"+password, "~*", "+@all", command).Err())
		return addr
	}
	one, other, plain := testkit.StartRedis(t), testkit.StartRedis(t), testkit.StartRedis(t)
	third := refusing(testkit.StartRedis(t), "-mget")
	node := testkit.StartRedis(t, "--cluster-enabled", "yes")
	require.NoError(t, testkit.Connect(t, node).Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		return testkit.Connect(t, node).Set(t.Context(), "k", 1, 0).Err() == nil
	}))
	cluster, without := testkit.StartCluster(t, 3), testkit.StartCluster(t, 3)
	for _, addr := range without {
		refusing(addr, "-eval") // it has the script of one key alone
	}
	for name, row := range map[string]struct {
		rdb   redis.UniversalClient
		addrs []string
		calls int // at most, of 1,200 decisions on 200 keys
		fails int // at most: they learn from the first ones
	}{
		"a server":  {testkit.Connect(t, one), []string{one}, 400, 10},
		"a cluster": {redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster}), cluster, 700, 60},
		"a ring": {redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": other, "b": testkit.StartRedis(t)}}),
			[]string{other}, 400, 10},
		"a client of another type":     {struct{ redis.UniversalClient }{testkit.Connect(t, plain)}, nil, 0, 0},
		"a client of a cluster's node": {testkit.Connect(t, node), nil, 0, 0},
		"a user without MGET": {redis.NewClient(&redis.Options{Addr: third, Username: user, Password: password}),
			[]string{third}, 1300, 10},
		"a cluster without scripts of several slots": {redis.NewClusterClient(&redis.ClusterOptions{Addrs: without,
			Username: user, Password: password}), without, 1300, 60},
	} {
		t.Run(name, func(t *testing.T) {
			defer row.rdb.Close()
			limiter := testkit.NewLimiter(t, row.rdb)
			testkit.Must(limiter.Peek(t.Context(), "the servers are known", ginlimit.PerDay(1)))
			testkit.AskMany(t, limiter)
			calls, fails := 0, 0
			for _, addr := range row.addrs {
				admin := testkit.Connect(t, addr)
				calls += testkit.ScriptCalls(t, admin)
				stats := admin.Info(t.Context(), "commandstats").Val()
				for _, of := range refusedCalls.FindAllStringSubmatch(stats, -1) {
					fails += testkit.Must(strconv.Atoi(of[1])) + testkit.Must(strconv.Atoi(of[2]))
				}
			}
			t.Logf("%d calls of the script, %d refused", calls, fails)
			assert.LessOrEqual(t, calls, row.calls)
			assert.LessOrEqual(t, fails, row.fails)
		})
	}
}

// refusedCalls finds how many calls of scripts were not permitted, and how many have failed.
var refusedCalls = regexp.MustCompile(`cmdstat_eval(?:sha)?:.*rejected_calls=(\d+),failed_calls=(\d+)`)

func TestCloseLeavesNoGoroutine(t *testing.T) { // not parallel: other limiters have goroutines too
	addr, process := testkit.StartRedisProcess(t)
	limiter := testkit.NewLimiter(t, testkit.Connect(t, addr))
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			_, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), ginlimit.PerHour(1))
			assert.NoError(t, err)
		})
	}
	all.Wait()
	require.NoError(t, process.Signal(syscall.SIGSTOP))
	ctx, cancel := context.WithCancel(t.Context())
	for i := range 100 {
		all.Go(func() {
			assert.Error(t, testkit.Err(limiter.Allow(ctx, fmt.Sprint("client ", i), ginlimit.PerHour(1))))
		})
	}
	resumed := time.AfterFunc(100*time.Millisecond, func() { _ = process.Signal(syscall.SIGCONT) })
	defer resumed.Stop()
	cancel()
	require.NoError(t, limiter.Close())
	all.Wait()
	stacks := make([]byte, 1<<20)
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { // what has said that it is done is about to end
		left := strings.ReplaceAll(string(stacks[:runtime.Stack(stacks, true)]), "ginlimit/internal/testkit", "")
		return !strings.Contains(left, "ginlimit/internal/") && !strings.Contains(left, "ginlimit.(*")
	}))
}

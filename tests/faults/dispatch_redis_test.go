//go:build integration

package faults_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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

// TestMixedDecisionsOnFewKeys mixes all that may not merge with what may, while the script is flushed
// and callers give up at random. What is missing from each bucket in the end is what its callers were
// granted, at most as much more as those took who did not stay to hear of it.
func TestMixedDecisionsOnFewKeys(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	limiter := testkit.NewLimiter(t, rdb, testkit.RemembersDenials())
	limit := ginlimit.Limit{Rate: 1, Period: 24 * time.Hour, Burst: 10_000} // fewer than are asked for
	const callers, each, keys = 256, 100, 3
	var granted, unheard [keys]atomic.Int64
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(caller), 1))
			for range each {
				k, n := r.IntN(keys), 1+r.IntN(3)
				key := fmt.Sprint("key ", k)
				ctx, cancel := t.Context(), func() {}
				if r.IntN(4) == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(2000))*time.Microsecond)
				}
				var res ginlimit.Result
				var err error
				switch r.IntN(8) {
				case 0:
					_, err = limiter.Peek(ctx, key, limit)
					n = 0
				case 1:
					res, err = limiter.AllowUpTo(ctx, key, n, limit)
				case 2:
					if caller == 0 {
						assert.NoError(t, rdb.ScriptFlush(t.Context()).Err())
					}
					fallthrough
				default:
					res, err = limiter.AllowN(ctx, key, n, limit)
				}
				switch {
				case err == nil:
					granted[k].Add(int64(res.Granted))
				case errors.Is(err, context.DeadlineExceeded):
					unheard[k].Add(int64(n))
				default:
					assert.NoError(t, err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	for k := range keys {
		p := testkit.Must(limiter.Peek(t.Context(), fmt.Sprint("key ", k), limit))
		taken := int64(limit.Burst - p.Remaining)
		t.Logf("key %d: %d granted, %d taken, %d unheard", k, granted[k].Load(), taken, unheard[k].Load())
		require.GreaterOrEqual(t, taken, granted[k].Load())
		require.LessOrEqual(t, taken, granted[k].Load()+unheard[k].Load())
	}
}

func TestErrorsOfABatchTouchOnlyTheirCallers(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	limiter, limit := testkit.NewLimiter(t, rdb), ginlimit.PerHour(1_000_000)
	require.NoError(t, rdb.RPush(t.Context(), testkit.RedisKey("foreign 0", limit), "x").Err())
	require.NoError(t, rdb.Set(t.Context(), testkit.RedisKey("foreign 1", limit), "text", time.Hour).Err())
	require.NoError(t, rdb.Set(t.Context(), testkit.RedisKey("foreign 2", limit), "0", 0).Err())
	require.NoError(t, rdb.SAdd(t.Context(), testkit.RedisKey("foreign 3", limit), "x").Err())
	require.NoError(t, rdb.Expire(t.Context(), testkit.RedisKey("foreign 3", limit), time.Hour).Err())
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			for range 50 {
				if i%2 == 0 {
					_, err := limiter.Allow(t.Context(), fmt.Sprint("foreign ", i/2%4), limit)
					assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
				} else {
					_, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), limit.WithBurst(1000+i%3))
					assert.NoError(t, err)
				}
			}
		})
	}
	all.Wait()
	kept := testkit.Must(rdb.LRange(t.Context(), testkit.RedisKey("foreign 0", limit), 0, -1).Result())
	require.Equal(t, []string{"x"}, kept)
	require.EqualValues(t, 1, rdb.SCard(t.Context(), testkit.RedisKey("foreign 3", limit)).Val())
}

func TestManyKeysShareACall(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	testkit.AskMany(t, testkit.NewLimiter(t, rdb))
	calls := testkit.ScriptCalls(t, rdb)
	t.Logf("1,200 decisions on 200 keys in %d calls of the script", calls)
	require.Less(t, calls, 400)
}

// TestKeysGoApartWhereTheyMust wants no error, nor a token too many or too few, where Redis refuses a call
// for several keys.
func TestKeysGoApartWhereTheyMust(t *testing.T) {
	t.Parallel()
	t.Run("a client of a cluster's node", func(t *testing.T) {
		t.Parallel()
		rdb := testkit.Connect(t, testkit.StartRedis(t, "--cluster-enabled", "yes"))
		require.NoError(t, rdb.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
			return rdb.Set(t.Context(), "k", 1, 0).Err() == nil
		}))
		testkit.AskMany(t, testkit.NewLimiter(t, rdb))
	})
	t.Run("a user without MGET", func(t *testing.T) {
		t.Parallel()
		addr := testkit.StartRedis(t)
		require.NoError(t, testkit.Connect(t, addr).Do(t.Context(), "ACL", "SETUSER", "app",
			"on", ">secret", "~*", "+@all", "-mget").Err())
		rdb := redis.NewClient(&redis.Options{Addr: addr, Username: "app", Password: "secret"})
		defer rdb.Close()
		testkit.AskMany(t, testkit.NewLimiter(t, rdb))
		stats := testkit.Connect(t, addr).Info(t.Context(), "commandstats").Val()
		failed := regexp.MustCompile(`cmdstat_evalsha:.*failed_calls=(\d+)`).FindStringSubmatch(stats)
		require.NotNil(t, failed)
		require.LessOrEqual(t, testkit.Must(strconv.Atoi(failed[1])), 10, "they learn from the first ones")
	})
	t.Run("a client of another type", func(t *testing.T) {
		t.Parallel()
		testkit.AskMany(t, testkit.NewLimiter(t, struct{ redis.UniversalClient }{testkit.Connect(t, testkit.StartRedis(t))}))
	})
	t.Run("a ring", func(t *testing.T) {
		t.Parallel()
		rdb := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": testkit.StartRedis(t),
			"b": testkit.StartRedis(t)}})
		defer rdb.Close()
		testkit.AskMany(t, testkit.NewLimiter(t, rdb))
	})
}

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

// Batches that hooks of the client hold up.

// heldCalls are the next calls of a client, which wait until they are let go.
type heldCalls struct {
	calls, came atomic.Int64
	gate        chan struct{}
	once        sync.Once
}

func hold(rdb *redis.Client) *heldCalls {
	h := &heldCalls{gate: make(chan struct{})}
	rdb.AddHook(testkit.EveryScript(func(send func() error) error {
		if calls := h.calls.Load(); calls > 0 && h.came.Add(1) <= calls {
			<-h.gate
		}
		return send()
	}))
	return h
}

// next holds the next calls.
func (h *heldCalls) next(calls int64) { h.calls.Store(calls) }

// await returns when so many wait.
func (h *heldCalls) await(t *testing.T, calls int64) {
	t.Helper()
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return h.came.Load() >= calls }))
}

func (h *heldCalls) release() { h.once.Do(func() { close(h.gate) }) }

// TestBatchDecidesInOrder has a batch of known asks, of different costs on the same keys, decided
// as in single file.
func TestBatchDecidesInOrder(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	held := hold(rdb)
	limiter, limit := testkit.NewLimiter(t, rdb), ginlimit.PerDay(1).WithBurst(10)
	other := limit.WithBurst(20)
	testkit.Must(limiter.Allow(t.Context(), "known to answer", limit))
	held.next(2)
	defer held.release()
	var all sync.WaitGroup
	all.Go(func() { _, _ = limiter.Allow(t.Context(), "first", limit) })
	held.await(t, 1)
	all.Go(func() { _, _ = limiter.Allow(t.Context(), "second", limit) })
	held.await(t, 2)
	asks := []struct {
		key       string
		n         int
		limit     ginlimit.Limit
		remaining int
	}{
		{"a", 1, limit, 9}, {"a", 1, limit, 8}, {"a", 2, limit, 6}, {"a", 1, limit, 5}, // the last one may not join the first
		{"b", 1, limit, 9}, {"b", 1, limit, 8}, {"b", 1, limit, 7}, // merged, and in a call with others that are not
		{"c", 1, limit, 9}, {"d", 3, limit, 7}, {"e", 3, limit, 7}, {"f", 1, other, 19}, {"g", 1, other, 18 + 1},
		{"b", 3, limit, 4}, {"c", 1, other, 18}, {"a", 0, limit, 5}, {"a", 5, limit, 0},
	}
	for i, ask := range asks {
		all.Go(func() {
			var r ginlimit.Result
			var err error
			if ask.n == 0 {
				r, err = limiter.Peek(t.Context(), ask.key, ask.limit)
			} else {
				r, err = limiter.AllowN(t.Context(), ask.key, ask.n, ask.limit)
			}
			assert.NoError(t, err)
			assert.Equal(t, ask.remaining, r.Remaining, "ask %d: %+v", i, ask)
		})
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return limiter.Stats().Queued == i+1 }))
	}
	held.release()
	all.Wait()
	for key, remaining := range map[string]int{"a": 0, "b": 4, "c": 8, "d": 7, "e": 7} {
		require.Equal(t, remaining, testkit.Must(limiter.Peek(t.Context(), key, limit)).Remaining, key)
	}
}

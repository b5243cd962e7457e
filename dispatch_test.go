package ginlimit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
)

// The dispatcher, on real redis-servers.

// TestMergedDecisionsAreSharedOutInSingleFile wants of many callers at once what one after another
// would get: each whole token is somebody's last but so many.
func TestMergedDecisionsAreSharedOutInSingleFile(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string][]ginlimit.Limit{
		"one limit":      {ginlimit.PerDay(1).WithBurst(3000)},
		"several limits": {ginlimit.PerDay(1).WithBurst(3000), {Rate: 1, Period: 96 * time.Hour, Burst: 5000}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := connect(t, startRedis(t))
			limiter := newLimiter(t, rdb)
			const callers, each = 256, 16 // 4,096 decisions on 3,000 tokens
			remaining := make([]atomic.Int32, 3000)
			var refused atomic.Int64
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
							refused.Add(1)
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
			require.EqualValues(t, callers*each-3000, refused.Load())
			calls, err := strconv.Atoi(commandCalls(t, rdb)["evalsha"])
			require.NoError(t, err)
			t.Logf("%d decisions in %d calls of the script", callers*each, calls)
			require.Less(t, calls, callers*each/2)
		})
	}
}

// TestMixedDecisionsOnFewKeys mixes all that may not merge with what may, while the script is flushed
// and callers give up at random. What is missing from each bucket in the end is what its callers were
// granted, at most as much more as those took who did not stay to hear of it.
func TestMixedDecisionsOnFewKeys(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limiter := newLimiter(t, rdb)
	limit := ginlimit.Limit{Rate: 1, Period: 24 * time.Hour, Burst: 1 << 20}
	const callers, each, keys = 256, 40, 4
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
		p, err := limiter.Peek(t.Context(), fmt.Sprint("key ", k), limit)
		require.NoError(t, err)
		taken := int64(limit.Burst - p.Remaining)
		t.Logf("key %d: %d granted, %d taken, %d unheard", k, granted[k].Load(), taken, unheard[k].Load())
		require.GreaterOrEqual(t, taken, granted[k].Load())
		require.LessOrEqual(t, taken, granted[k].Load()+unheard[k].Load())
	}
}

// TestCallersLeaveAFrozenRedis has every caller back while Redis is still frozen.
func TestCallersLeaveAFrozenRedis(t *testing.T) {
	t.Parallel()
	addr, process := startRedisProcess(t)
	limiter, limit := newLimiter(t, connect(t, addr)), ginlimit.PerHour(10)
	_, err := limiter.Allow(t.Context(), "k", limit)
	require.NoError(t, err)
	require.NoError(t, process.Signal(syscall.SIGSTOP))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			_, err := limiter.Allow(ctx, fmt.Sprint("client ", i), limit)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		})
	}
	all.Wait()
	require.NoError(t, process.Signal(syscall.SIGCONT))
	for i := range 100 { // at most two of them were on their way
		r, err := limiter.Peek(t.Context(), fmt.Sprint("client ", i), limit)
		require.NoError(t, err)
		require.GreaterOrEqual(t, r.Remaining, 9)
	}
}

func TestFullQueueIsUnavailable(t *testing.T) {
	t.Parallel()
	addr, process := startRedisProcess(t)
	limiter, limit := newLimiter(t, connect(t, addr)), ginlimit.PerHour(10)
	_, err := limiter.Allow(t.Context(), "k", limit)
	require.NoError(t, err)
	require.NoError(t, process.Signal(syscall.SIGSTOP))
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var full atomic.Int64
	for range ginlimit.QueueAsks + 1000 {
		all.Go(func() {
			if _, err := limiter.Allow(ctx, "k", limit); errors.Is(err, ginlimit.ErrUnavailable) {
				full.Add(1)
			}
		})
	}
	require.True(t, becomesTrue(ctx.Done(), func() bool { return full.Load() > 0 }))
	cancel()
	all.Wait()
	require.NoError(t, process.Signal(syscall.SIGCONT))
}

// TestThoseWhoLeftDoNotFillTheQueue has more callers give up than the queue holds.
func TestThoseWhoLeftDoNotFillTheQueue(t *testing.T) {
	t.Parallel()
	addr, process := startRedisProcess(t)
	limiter, limit := newLimiter(t, connect(t, addr)), ginlimit.PerHour(10)
	_, err := limiter.Allow(t.Context(), "k", limit)
	require.NoError(t, err)
	require.NoError(t, process.Signal(syscall.SIGSTOP))
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range ginlimit.QueueAsks / 4 {
			all.Go(func() {
				_, err := limiter.Allow(ctx, "k", limit)
				assert.ErrorIs(t, err, context.Canceled)
			})
		}
		time.AfterFunc(20*time.Millisecond, cancel)
		all.Wait()
	}
	require.NoError(t, process.Signal(syscall.SIGCONT))
}

func TestErrorsOfABatchTouchOnlyTheirCallers(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limiter, limit := newLimiter(t, rdb), ginlimit.PerHour(1_000_000)
	require.NoError(t, rdb.RPush(t.Context(), redisKey("foreign", limit), "x").Err())
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			for range 50 {
				if i%2 == 0 {
					_, err := limiter.Allow(t.Context(), "foreign", limit)
					assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
				} else {
					_, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), limit)
					assert.NoError(t, err)
				}
			}
		})
	}
	all.Wait()
}

// panicHook is a client's hook with a fault.
type panicHook struct{}

func (panicHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (panicHook) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { panic("fault") }
}
func (panicHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// refusingHook is a client's hook that keeps pipelines from Redis, like a circuit breaker.
type refusingHook struct{ panicHook }

func (refusingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (refusingHook) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { return errors.New("the circuit is open") }
}

func TestPipelineThatIsNotSentAllowsNothing(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	rdb.AddHook(refusingHook{})
	limiter, limit := newLimiter(t, rdb), ginlimit.PerDay(1)
	var allowed atomic.Int64
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range 50 {
				r, err := limiter.Allow(t.Context(), "k", limit)
				if err == nil && r.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	all.Wait()
	require.LessOrEqual(t, allowed.Load(), int64(1))
}

func TestPanicOfTheClientIsUnavailable(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	rdb.AddHook(panicHook{})
	_, err := newLimiter(t, rdb).Allow(t.Context(), "k", ginlimit.PerHour(1))
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
}

func TestCloseLeavesNoGoroutine(t *testing.T) { // not parallel: other limiters have goroutines too
	addr, process := startRedisProcess(t)
	limiter, err := ginlimit.NewLimiter(connect(t, addr))
	require.NoError(t, err)
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
			_, err := limiter.Allow(ctx, fmt.Sprint("client ", i), ginlimit.PerHour(1))
			assert.Error(t, err)
		})
	}
	resumed := time.AfterFunc(100*time.Millisecond, func() { _ = process.Signal(syscall.SIGCONT) })
	defer resumed.Stop()
	cancel()
	require.NoError(t, limiter.Close())
	all.Wait()
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	require.NotContains(t, string(stacks), "dispatcher")
	require.Zero(t, strings.Count(string(stacks), "ginlimit.(*"))
}

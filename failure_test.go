package ginlimit_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
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

// What becomes of decisions that Redis does not make. Its faults under load are in faults_test.go.

// nowhere is a client of a server that is not there.
func nowhere(t testing.TB) *redis.Client { return connect(t, "127.0.0.1:1") }

// lost returns a limiter without its Redis.
func lost(t testing.TB, opts ...ginlimit.Option) *ginlimit.Limiter {
	return newLimiter(t, nowhere(t), append([]ginlimit.Option{ginlimit.WithFailure(ginlimit.FailLocal)}, opts...)...)
}

func TestReplicasShareTheLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit    ginlimit.Limit
		replicas int
		admitted int // at once
		next     time.Duration
	}{
		{ginlimit.PerDay(100), 1, 100, 864 * time.Second},
		{ginlimit.PerDay(100), 4, 25, 3456 * time.Second},
		{ginlimit.PerDay(100), 3, 33, 2618182 * time.Millisecond}, // 33 a day
		{ginlimit.PerDay(100).WithBurst(8), 4, 2, 3456 * time.Second},
		{ginlimit.PerDay(100).WithBurst(3), 4, 1, 3456 * time.Second}, // at least one
		{ginlimit.PerHour(5), 100, 1, time.Hour},                      // at least one an hour
		{ginlimit.PerHour(5), math.MaxInt, 1, time.Hour},
	} {
		t.Run(fmt.Sprintf("%s among %d", c.limit, c.replicas), func(t *testing.T) {
			t.Parallel()
			limiter := lost(t, ginlimit.WithReplicas(c.replicas))
			for want := c.admitted - 1; want >= 0; want-- {
				r, err := limiter.Allow(t.Context(), "k", c.limit)
				require.NoError(t, err)
				require.True(t, r.Allowed)
				require.Equal(t, 1, r.Granted)
				require.Equal(t, want, r.Remaining)
				require.Equal(t, c.limit, r.Limit, "told as it was given")
				require.Equal(t, ginlimit.FromLocal, r.Source)
			}
			r, err := limiter.Allow(t.Context(), "k", c.limit)
			require.NoError(t, err)
			require.False(t, r.Allowed)
			require.LessOrEqual(t, r.RetryAfter, c.next)
			require.Greater(t, r.RetryAfter, c.next-10*time.Second)
		})
	}
}

// TestAnyLimitHasAShare divides limits near all bounds: there is always a bucket, and it never holds more than
// the whole.
func TestAnyLimitHasAShare(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	some := func(most int) int { return 1 + r.IntN(1<<r.IntN(63))%most }
	valid := 0
	for range 20_000 {
		limit := ginlimit.Limit{Rate: some(math.MaxInt), Burst: some(1 << 53), Period: time.Duration(some(1<<40)) * time.Millisecond}
		replicas := some(math.MaxInt)
		rate, burst, ok := ginlimit.ShareOf(limit, replicas)
		if !ok {
			continue // too large to be counted at all
		}
		valid++
		require.LessOrEqual(t, rate, max(1, float64(limit.Rate)/float64(replicas))*(1+1e-9), "%+v among %d", limit, replicas)
		require.Positive(t, rate)
		require.LessOrEqual(t, burst, max(1, limit.Burst/replicas))
		require.Positive(t, burst)
	}
	require.Greater(t, valid, 1000)
}

func TestEveryMethodWorksWithoutRedis(t *testing.T) {
	t.Parallel()
	limiter, limit := lost(t, ginlimit.WithReplicas(2)), ginlimit.PerDay(1).WithBurst(20) // a share of 10
	allowN := func(key string, n int) ginlimit.Result {
		t.Helper()
		r, err := limiter.AllowN(t.Context(), key, n, limit)
		require.NoError(t, err)
		require.Equal(t, ginlimit.FromLocal, r.Source)
		return r
	}
	assert.Equal(t, 7, allowN("a", 3).Remaining)
	r, err := limiter.AllowUpTo(t.Context(), "a", 30, limit)
	require.NoError(t, err)
	assert.Equal(t, 7, r.Granted)
	r, err = limiter.Peek(t.Context(), "a", limit)
	require.NoError(t, err)
	assert.False(t, r.Allowed)
	assert.Zero(t, r.Granted)

	assert.Equal(t, 9, allowN("b", 1).Remaining)
	some := allowN("b", 15) // more than the share holds, less than the limit allows: when it is full
	assert.False(t, some.Allowed)
	assert.Equal(t, 9, some.Remaining)
	assert.InDelta(t, 24*time.Hour, some.RetryAfter, float64(time.Minute))
	all := allowN("e", 15)
	assert.True(t, all.Allowed)
	assert.Equal(t, 15, all.Granted)
	assert.Zero(t, all.Remaining)
	assert.InDelta(t, 15*24*time.Hour, all.ResetAfter, float64(time.Minute), "it owes what it did not have")
	assert.InDelta(t, 6*24*time.Hour, allowN("e", 1).RetryAfter, float64(time.Minute))
	assert.InDelta(t, 15*24*time.Hour, allowN("e", 15).RetryAfter, float64(time.Minute))
	two := []ginlimit.Limit{ginlimit.PerHour(20), ginlimit.PerDay(1000)} // shares of 10 and 500
	r, err = limiter.AllowN(t.Context(), "f", 20, two...)
	require.NoError(t, err)
	assert.True(t, r.Allowed)
	r, err = limiter.Peek(t.Context(), "f", two[1])
	require.NoError(t, err)
	assert.Equal(t, 480, r.Remaining, "each gave all of it")
	assert.EqualValues(t, -1, allowN("c", 21).RetryAfter, "never")
	assert.Equal(t, 9, allowN("c", 1).Remaining)

	// What changes a bucket changes that of this process, and says that Redis was not told.
	require.ErrorIs(t, limiter.Refund(t.Context(), "a", 4, limit), ginlimit.ErrUnavailable)
	assert.Equal(t, 3, allowN("a", 1).Remaining)
	require.ErrorIs(t, limiter.Reset(t.Context(), "a", limit), ginlimit.ErrUnavailable)
	assert.Equal(t, 9, allowN("a", 1).Remaining)
	require.ErrorIs(t, limiter.Block(t.Context(), "a", time.Hour, limit), ginlimit.ErrUnavailable)
	assert.InDelta(t, time.Hour, allowN("a", 1).RetryAfter, float64(time.Minute))

	require.NoError(t, limiter.Wait(t.Context(), "d", limit))
	assert.Equal(t, 8, allowN("d", 1).Remaining)
	r, err = limiter.Allow(t.Context(), "d", ginlimit.PerDay(-1))
	require.NoError(t, err)
	assert.Equal(t, ginlimit.FromPolicy, r.Source)
}

func TestCancelledAndClosedAreNotDecidedLocally(t *testing.T) {
	t.Parallel()
	limiter, limit := lost(t), ginlimit.PerHour(10)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := limiter.Allow(ctx, "k", limit)
	require.ErrorIs(t, err, context.Canceled)
	r, err := limiter.Allow(t.Context(), "k", limit)
	require.NoError(t, err)
	require.Equal(t, 9, r.Remaining, "the cancelled one counts for nothing")
	require.NoError(t, limiter.Close())
	_, err = limiter.Allow(t.Context(), "k", limit)
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
}

func TestAnswersWithoutRedis(t *testing.T) {
	t.Parallel()
	degraded := http.Header{
		"Content-Type":          {"text/plain; charset=utf-8"},
		"X-Ratelimit-Limit":     {"8"},
		"X-Ratelimit-Remaining": {"1"},
		"X-Ratelimit-Reset":     {"10800"},
		"X-Ratelimit-Status":    {"degraded"},
	}
	for _, c := range []struct {
		failure ginlimit.Failure
		codes   []int
		first   map[string]string
	}{
		{ginlimit.FailLocal, []int{200, 200, 429}, map[string]string{"X-Ratelimit-Remaining": "1", "X-Ratelimit-Reset": "1800"}},
		{ginlimit.FailOpen, []int{200, 200, 200}, map[string]string{"X-Ratelimit-Remaining": "7", "X-Ratelimit-Reset": "450"}},
		{ginlimit.FailClosed, []int{503, 503, 503}, nil},
	} {
		t.Run(c.failure.String(), func(t *testing.T) {
			t.Parallel()
			limiter := lost(t, ginlimit.WithReplicas(4))
			r := serve(limiter.Handler(ginlimit.PerHour(8), ginlimit.WithFailure(c.failure)))
			for i, code := range c.codes {
				rec := get(r, "/")
				require.Equal(t, code, rec.Code)
				if i == 0 && c.first != nil {
					want := degraded.Clone()
					for name, value := range c.first {
						want.Set(name, value)
					}
					assert.Equal(t, want, rec.Header())
				}
				if code == http.StatusTooManyRequests {
					assert.Equal(t, "degraded", rec.Header().Get("X-RateLimit-Status"))
					wait, err := strconv.Atoi(rec.Header().Get("Retry-After"))
					require.NoError(t, err)
					assert.LessOrEqual(t, wait, 1800)
					assert.Greater(t, wait, 1700, "half an hour since the first request")
				}
			}
		})
	}
	t.Run("a local limiter has lost nothing", func(t *testing.T) {
		t.Parallel()
		limiter, err := ginlimit.NewLocal(ginlimit.WithReplicas(4), ginlimit.WithFailure(ginlimit.FailClosed))
		require.NoError(t, err)
		rec := get(serve(limiter.Handler(ginlimit.PerHour(8))), "/")
		assert.Equal(t, http.StatusOK, rec.Code)
		assert.Equal(t, "7", rec.Header().Get("X-RateLimit-Remaining"))
		assert.NotContains(t, rec.Header(), "X-Ratelimit-Status")
	})
}

// TestApplicationStartsWithoutRedis serves and limits at once, and goes over to Redis when that is there.
func TestApplicationStartsWithoutRedis(t *testing.T) {
	t.Parallel()
	addr := "127.0.0.1:" + freePort(t)
	var log lockedBuffer
	r := serve(ginlimit.New(connect(t, addr), ginlimit.PerDay(2), ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))
	for _, code := range []int{200, 200, 429, 429} {
		rec := get(r, "/")
		require.Equal(t, code, rec.Code)
		require.Equal(t, "degraded", rec.Header().Get("X-RateLimit-Status"))
	}
	ask := func(address string) http.Header { return get(r, "/", from(address)).Header() }
	for range 200 { // Redis is given up for lost
		ask("192.0.2.2:1")
	}
	require.True(t, becomesTrue(t.Context().Done(), func() bool { ask("192.0.2.2:1"); return strings.Contains(log.String(), "Redis is lost") }))
	require.NotNil(t, launchRedis(t, addr))
	require.True(t, becomesTrue(t.Context().Done(), func() bool { return ask("192.0.2.3:1").Get("X-RateLimit-Status") == "" }))
	require.True(t, becomesTrue(t.Context().Done(), func() bool { return strings.Contains(log.String(), "Redis is back") }))
	require.Equal(t, 2, strings.Count(log.String(), "\n"), log.String())
	require.NotContains(t, log.String(), "192.0.2")
}

// TestLocalBucketsOutliveTheOutage loses Redis twice: nobody has a second burst.
func TestLocalBucketsOutliveTheOutage(t *testing.T) {
	t.Parallel()
	addr, process := startRedisProcess(t)
	limiter := newLimiter(t, connect(t, addr), ginlimit.WithFailure(ginlimit.FailLocal), ginlimit.WithReplicas(2), ginlimit.WithDenyMemory(0))
	limit := ginlimit.PerDay(1).WithBurst(20)
	ask := func(key string, source ginlimit.Source) ginlimit.Result {
		var r ginlimit.Result
		require.True(t, becomesTrue(t.Context().Done(), func() bool {
			p, err := limiter.Peek(t.Context(), key, limit)
			require.NoError(t, err)
			if p.Source != source {
				return false
			}
			r, err = limiter.Allow(t.Context(), key, limit)
			require.NoError(t, err)
			return r.Source == source
		}))
		return r
	}
	require.Equal(t, 19, ask("k", ginlimit.FromRedis).Remaining)
	require.NoError(t, limiter.Block(t.Context(), "blocked", time.Hour, limit))
	require.NoError(t, limiter.Block(t.Context(), "reset", time.Hour, limit))
	require.NoError(t, limiter.Reset(t.Context(), "reset", limit))
	local := 10
	for range 2 {
		require.NoError(t, process.Kill())
		for range 4 {
			local--
			require.Equal(t, local, ask("k", ginlimit.FromLocal).Remaining)
		}
		require.False(t, ask("blocked", ginlimit.FromLocal).Allowed)
		require.True(t, ask("reset", ginlimit.FromLocal).Allowed)
		process = launchRedis(t, addr)
		require.NotNil(t, process)
		require.True(t, ask("k", ginlimit.FromRedis).Allowed)
	}
}

// TestMemoryIsBounded asks for far more keys than are remembered, of which Redis refuses some, and without Redis.
func TestMemoryIsBounded(t *testing.T) { // not parallel: it counts all memory
	addr, process := startRedisProcess(t)
	limiter := newLimiter(t, connect(t, addr), believing(), ginlimit.WithFailure(ginlimit.FailLocal), ginlimit.WithTimeout(time.Second))
	limit := ginlimit.PerDay(1)
	keys := int64(300_000)
	if *faultsTable != "" {
		keys = 1_000_000
	}
	ask := func(keys int64, source ginlimit.Source) (refused int64) {
		var next, no atomic.Int64
		var all sync.WaitGroup
		for range 256 {
			all.Go(func() {
				for i := next.Add(1); i <= 2*keys; i = next.Add(1) {
					r, err := limiter.Allow(context.Background(), fmt.Sprintf("%s client %d", source, i/2), limit)
					assert.NoError(t, err)
					if !r.Allowed {
						no.Add(1)
					}
				}
			})
		}
		all.Wait()
		return no.Load()
	}
	before := heapInUse()
	require.Greater(t, ask(keys/3, ginlimit.FromRedis), keys/4, "remembered refusals")
	withRedis := heapInUse() - before
	require.NoError(t, process.Signal(syscall.SIGKILL))
	require.True(t, becomesTrue(t.Context().Done(), func() bool {
		r, err := limiter.Allow(t.Context(), "k", limit)
		require.NoError(t, err)
		return r.Source == ginlimit.FromLocal
	}))
	ask(keys, ginlimit.FromLocal)
	without := heapInUse() - before
	t.Logf("%d MiB after %d keys in Redis, %d MiB after %d without", withRedis>>20, keys/3, without>>20, keys)
	require.Less(t, without, int64(96<<20))
}

func TestFailureIsNamed(t *testing.T) {
	t.Parallel()
	for failure, name := range map[ginlimit.Failure]string{
		ginlimit.FailLocal: "local", ginlimit.FailOpen: "open", ginlimit.FailClosed: "closed", 9: "unknown",
	} {
		assert.Equal(t, name, failure.String())
	}
	var zero ginlimit.Failure
	assert.Equal(t, ginlimit.FailLocal, zero)
}

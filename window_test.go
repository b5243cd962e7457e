package ginlimit_test

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// What windows do that a token bucket does not. What all algorithms do is in conformance_test.go.

// systems.md B: a fixed window, whose count and expiry come back to the caller.
func TestFixedWindowBeginsWithTheFirstRequestAndEndsWithAll(t *testing.T) {
	onEveryEngineOf(t, ginlimit.FixedWindow, func(t *testing.T, e engine) {
		limit := ginlimit.PerMinute(3)
		e.advance(37 * time.Second) // no matter what the clock says
		e.allowed(t, 1, 2, limit)
		e.advance(50 * time.Second)
		r := e.allowN(t, 2, limit)
		e.requireDuration(t, 10*time.Second, r.ResetAfter)
		e.denied(t, 1, 10*time.Second, limit)
		e.denied(t, 3, 10*time.Second, limit)
		e.advance(10 * time.Second)
		e.allowed(t, 3, 0, limit)
	})
}

// systems.md B: a rolling window.
func TestSlidingWindowCountsTheLastPeriod(t *testing.T) {
	onEveryEngineOf(t, ginlimit.SlidingWindow, func(t *testing.T, e engine) {
		limit := ginlimit.PerMinute(4)
		e.allowed(t, 1, 3, limit)
		e.advance(20 * time.Second)
		r := e.allowN(t, 2, limit)
		e.requireDuration(t, time.Minute, r.ResetAfter)
		e.advance(20 * time.Second)
		e.allowed(t, 1, 0, limit)
		e.denied(t, 1, 20*time.Second, limit) // the first one leaves
		e.denied(t, 2, 40*time.Second, limit) // the second entry, of two tokens
		e.denied(t, 4, time.Minute, limit)
		e.advance(20 * time.Second)
		e.allowed(t, 1, 0, limit)
		e.advance(20 * time.Second)
		e.allowed(t, 2, 0, limit)
	})
}

// systems.md B: a refused request does not grow the counter.
func TestRefusedRequestGrowsNoWindow(t *testing.T) {
	onEveryWindow(t, func(t *testing.T, e engine) {
		if e.rdb == nil {
			return // nothing to look at
		}
		limit, ctx := ginlimit.PerMinute(3), t.Context()
		e.allowed(t, 3, 0, limit)
		before := e.found(t, "k", limit)
		for range 20 {
			require.False(t, e.allowN(t, 1, limit).Allowed)
			require.False(t, e.allowN(t, 1, limit, ginlimit.PerHour(9)).Allowed)
		}
		require.Equal(t, len(before.taken), len(e.found(t, "k", limit).taken))
		others, err := e.rdb.Exists(ctx, e.redisKey("k", ginlimit.PerHour(9))).Result()
		require.NoError(t, err)
		require.Zero(t, others)
	})
}

// systems.md B: the expiry of a client of one request was lost.
func TestEveryWindowExpires(t *testing.T) {
	onEveryWindow(t, func(t *testing.T, e engine) {
		if e.rdb == nil {
			return // nothing to look at
		}
		limit, ctx := ginlimit.PerMinute(3), t.Context()
		expires := func(within time.Duration) {
			t.Helper()
			ttl, err := e.rdb.PTTL(ctx, e.redisKey("k", limit)).Result()
			require.NoError(t, err)
			e.requireDuration(t, within, ttl)
		}
		e.allowed(t, 1, 2, limit)
		expires(time.Minute)
		e.advance(20 * time.Second)
		e.allowed(t, 1, 1, limit, ginlimit.PerHour(5)) // by the way of several limits
		last := map[ginlimit.Algorithm]time.Duration{ginlimit.FixedWindow: 40 * time.Second, ginlimit.SlidingWindow: time.Minute}
		expires(last[e.algorithm])
		require.NoError(t, e.limiter.Refund(ctx, "k", 1, limit))
		expires(40 * time.Second)
		require.NoError(t, e.limiter.Block(ctx, "k", time.Hour, limit))
		expires(time.Hour)
		e.advance(time.Hour)
		keys, err := e.rdb.Keys(ctx, "*:m:*").Result()
		require.NoError(t, err)
		require.Empty(t, keys)
	})
}

// systems.md B: an atomic log, bounded by the limit.
func TestLogHasNoMoreEntriesThanTheLimit(t *testing.T) {
	onEveryEngineOf(t, ginlimit.SlidingWindow, func(t *testing.T, e engine) {
		if e.rdb == nil {
			return // see TestMemoryOfWindowsIsBounded
		}
		limit := ginlimit.PerMinute(20)
		for range 100 {
			e.allowN(t, 1, limit)
			e.advance(time.Second)
		}
		entries, err := e.rdb.LLen(t.Context(), e.redisKey("k", limit)).Result()
		require.NoError(t, err)
		require.LessOrEqual(t, entries, int64(2*20+1), "with the header")
		require.NoError(t, e.limiter.Reset(t.Context(), "k", limit))
		e.allowed(t, 20, 0, limit)
		entries, err = e.rdb.LLen(t.Context(), e.redisKey("k", limit)).Result()
		require.NoError(t, err)
		require.EqualValues(t, 3, entries, "many tokens at once are one entry")
	})
}

func TestRefundGivesBackWhatWasTakenLast(t *testing.T) {
	onEveryEngineOf(t, ginlimit.SlidingWindow, func(t *testing.T, e engine) {
		limit, ctx := ginlimit.PerMinute(5), t.Context()
		e.allowed(t, 1, 4, limit)
		e.advance(10 * time.Second)
		e.allowed(t, 2, 2, limit)
		e.advance(10 * time.Second)
		e.allowed(t, 1, 1, limit)
		require.NoError(t, e.limiter.Refund(ctx, "k", 2, limit)) // that one, and one of the two
		r, err := e.limiter.Peek(ctx, "k", limit)
		require.NoError(t, err)
		require.Equal(t, 3, r.Remaining)
		e.requireDuration(t, 50*time.Second, r.ResetAfter)
		e.allowed(t, 3, 0, limit)
		e.denied(t, 1, 40*time.Second, limit)
		e.denied(t, 2, 50*time.Second, limit)
	})
}

// TestTakenAndGivenBackIsAsBefore: a request that is refunded leaves no trace.
func TestTakenAndGivenBackIsAsBefore(t *testing.T) {
	onEveryWindow(t, func(t *testing.T, e engine) {
		limit, ctx := ginlimit.PerMinute(5), t.Context()
		peek := func() ginlimit.Result {
			r, err := e.limiter.Peek(ctx, "k", limit)
			require.NoError(t, err)
			return r
		}
		fresh := peek()
		e.allowed(t, 2, 3, limit)
		require.NoError(t, e.limiter.Refund(ctx, "k", 2, limit))
		require.Equal(t, fresh, peek(), "no window has begun")
		e.allowed(t, 1, 4, limit)
		e.advance(10 * time.Second)
		before := peek()
		e.allowed(t, 2, 2, limit)
		require.NoError(t, e.limiter.Refund(ctx, "k", 2, limit))
		after := peek()
		require.Equal(t, before.Remaining, after.Remaining)
		e.requireDuration(t, before.ResetAfter, after.ResetAfter)
	})
}

func TestBlockKeepsWhatWasCounted(t *testing.T) {
	onEveryWindow(t, func(t *testing.T, e engine) {
		limit, ctx := ginlimit.PerMinute(5), t.Context()
		e.allowed(t, 3, 2, limit)
		require.NoError(t, e.limiter.Block(ctx, "k", 20*time.Second, limit))
		e.denied(t, 1, 20*time.Second, limit)
		e.denied(t, 3, time.Minute, limit) // which is later than the block
		e.denied(t, 1, 20*time.Second, limit, ginlimit.PerHour(9))
		r, err := e.limiter.Peek(ctx, "k", limit)
		require.NoError(t, err)
		require.Zero(t, r.Remaining)
		e.requireDuration(t, time.Minute, r.ResetAfter)
		require.NoError(t, e.limiter.Refund(ctx, "k", 1, limit)) // shortens no block
		e.denied(t, 1, 20*time.Second, limit)
		e.advance(20 * time.Second)
		e.allowed(t, 1, 2, limit) // two were taken before
		e.advance(30 * time.Second)
		e.allowed(t, 1, 1, limit)
		require.NoError(t, e.limiter.Block(ctx, "k", time.Hour, limit)) // beyond the window
		e.advance(time.Hour)
		e.allowed(t, 5, 0, limit)
	})
}

func TestChangedLimitKeepsWhatWasCounted(t *testing.T) {
	onEveryWindow(t, func(t *testing.T, e engine) {
		free, paid := ginlimit.PerHour(10), ginlimit.PerHour(1000)
		for range 10 {
			e.allowN(t, 1, free)
			e.advance(time.Minute)
		}
		e.allowed(t, 1, 989, paid)
		e.denied(t, 1, e.oldest(49*time.Minute, 51*time.Minute), free) // 11 of 10: two must leave
		e.allowed(t, 1, 988, paid)
	})
}

// oldest is when a window is over, or enough of a log has left.
func (e engine) oldest(fixed, sliding time.Duration) time.Duration {
	if e.algorithm == ginlimit.FixedWindow {
		return fixed + time.Minute
	}
	return sliding
}

func TestLargestWindowsStayExact(t *testing.T) {
	onEveryWindow(t, func(t *testing.T, e engine) {
		most := 1<<53 - 1
		if e.algorithm == ginlimit.SlidingWindow {
			most = 1<<52 - 1
		}
		limit := ginlimit.Limit{Rate: most, Period: 10 * 365 * 24 * time.Hour}
		e.allowed(t, most-1, 1, limit)
		e.allowed(t, 1, 0, limit)
		r := e.allowN(t, most, limit)
		require.False(t, r.Allowed)
		e.requireDuration(t, limit.Period, r.RetryAfter)
		r = e.allowN(t, math.MaxInt, limit)
		require.Negative(t, r.RetryAfter)
		require.NoError(t, e.limiter.Refund(t.Context(), "k", math.MaxInt, limit))
		e.allowed(t, most-1, 1, limit)
		for range 5 { // its log is never empty, and totals go round
			e.advance(limit.Period / 2)
			if e.algorithm == ginlimit.SlidingWindow {
				e.allowed(t, 1, 0, limit)
			}
			e.advance(limit.Period / 2)
			require.True(t, e.allowN(t, most-1, limit).Allowed)
		}
		r, err := e.limiter.Allow(t.Context(), "k", ginlimit.Limit{Rate: most + 1, Period: time.Hour})
		require.ErrorIs(t, err, ginlimit.ErrInvalidLimit)
		require.Zero(t, r)
	})
}

func TestWindowHasNoBurst(t *testing.T) {
	onEveryWindow(t, func(t *testing.T, e engine) {
		_, err := e.limiter.Allow(t.Context(), "k", ginlimit.PerMinute(10).WithBurst(20))
		require.ErrorIs(t, err, ginlimit.ErrInvalidLimit)
		require.ErrorContains(t, err, "burst")
		e.allowed(t, 1, 9, ginlimit.PerMinute(10).WithBurst(10))
		require.ErrorContains(t, panicError(func() { e.limiter.Handler(ginlimit.PerMinute(10).WithBurst(1)) }), "burst")
	})
}

func panicError(f func()) (err error) {
	defer func() { err, _ = recover().(error) }()
	f()
	return nil
}

// TestDoubleBurstAtTheEdge is what the fixed window lets through, and the others do not: twice the limit within
// moments, at the end of one window and the beginning of the next.
func TestDoubleBurstAtTheEdge(t *testing.T) {
	onEveryAlgorithm(t, func(t *testing.T, e engine) {
		limit := ginlimit.PerMinute(100)
		e.allowN(t, 1, limit)
		e.advance(55 * time.Second)
		burst := func() (admitted int) {
			for range 110 {
				admitted += e.allowN(t, 1, limit).Granted
			}
			return admitted
		}
		before := burst()
		e.advance(5 * time.Second)
		within := before + burst()
		switch {
		case e.algorithm == ginlimit.FixedWindow:
			require.Equal(t, 99+100, within, "in five seconds")
		case e.algorithm == ginlimit.TokenBucket && e.ahead > 0: // it goes on by itself
			require.InDelta(t, 100+5*100/60, within, 6)
		default:
			require.Equal(t, map[ginlimit.Algorithm]int{
				ginlimit.TokenBucket:   100 + 5*100/60, // what it regained in five seconds, and no more
				ginlimit.SlidingWindow: 99 + 1,         // the first one has left
			}[e.algorithm], within)
		}
	})
}

func TestAlgorithmsDoNotMeet(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limit := ginlimit.PerHour(3)
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		limiter := newLimiter(t, rdb, ginlimit.WithAlgorithm(a))
		r, err := limiter.AllowN(t.Context(), "k", 3, limit)
		require.NoError(t, err)
		require.True(t, r.Allowed, a)
	}
	require.EqualValues(t, 3, rdb.DBSize(t.Context()).Val())
}

func TestHandlersOfALimiterMayCountDifferently(t *testing.T) {
	t.Parallel()
	rdb, advance := newMiniredis(t)
	limiter := newLimiter(t, rdb, ginlimit.WithAlgorithm(ginlimit.FixedWindow), ginlimit.WithDenyMemory(0))
	fixed := serve(limiter.Handler(ginlimit.PerMinute(2)))
	bucket := serve(limiter.Handler(ginlimit.PerMinute(2), ginlimit.WithAlgorithm(ginlimit.TokenBucket)))
	for _, r := range []*gin.Engine{fixed, bucket} {
		get(r, "/")
		assert.Equal(t, "0", remaining(get(r, "/")))
	}
	assert.Equal(t, "60", get(fixed, "/").Header().Get("Retry-After"))
	assert.Equal(t, "30", get(bucket, "/").Header().Get("Retry-After"))
	advance(59 * time.Second)
	assert.Equal(t, "1", get(fixed, "/").Header().Get("Retry-After"))
	assert.Equal(t, "0", remaining(get(bucket, "/")))
}

// TestManyWindowsShareACall has callers on many keys at once: each key is decided on for itself.
func TestManyWindowsShareACall(t *testing.T) {
	t.Parallel()
	for _, a := range windowAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			rdb := connect(t, startRedis(t))
			limiter := newLimiter(t, rdb, ginlimit.WithAlgorithm(a), ginlimit.WithDenyMemory(0))
			const callers, each, keys = 256, 40, 50
			limit := ginlimit.PerDay(100) // half of what is asked for
			require.NoError(t, limiter.Block(t.Context(), "key 0", time.Hour, limit))
			e := engine{algorithm: a}
			require.NoError(t, rdb.Set(t.Context(), e.redisKey("key 1", limit), "foreign", 0).Err())
			if junk := e.redisKey("key 2", limit); a == ginlimit.SlidingWindow {
				require.NoError(t, rdb.RPush(t.Context(), junk, "0 7 86400000", "junk", "junk").Err())
				require.NoError(t, rdb.Expire(t.Context(), junk, time.Hour).Err())
			} else {
				require.NoError(t, rdb.HSet(t.Context(), junk, "a", "b").Err())
			}
			var granted [keys]atomic.Int64
			var all sync.WaitGroup
			for caller := range callers {
				all.Go(func() {
					for i := range each {
						key := (caller + i) % keys
						n := 1 + (caller+i)%2
						r, err := limiter.AllowUpTo(t.Context(), fmt.Sprint("key ", key), n, limit)
						if key == 1 || key == 2 {
							assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
							continue
						}
						assert.NoError(t, err)
						granted[key].Add(int64(r.Granted))
					}
				})
			}
			all.Wait()
			for key := range keys {
				want := 100
				if key < 3 {
					want = 0
				}
				require.EqualValues(t, want, granted[key].Load(), "key %d", key)
			}
			require.Less(t, scriptCalls(t, rdb), callers*each/2)
		})
	}
}

// TestShortWindowsNeverAdmitMore asks as fast as it can, so that windows end while their scripts run.
func TestShortWindowsNeverAdmitMore(t *testing.T) {
	t.Parallel()
	for _, a := range windowAlgorithms {
		for _, limit := range []ginlimit.Limit{
			{Rate: 1, Period: time.Millisecond}, {Rate: 3, Period: 2 * time.Millisecond}, {Rate: 40, Period: 9 * time.Millisecond},
		} {
			t.Run(fmt.Sprint(a, " ", limit), func(t *testing.T) {
				t.Parallel()
				rdb := connect(t, startRedis(t))
				limiter := newLimiter(t, rdb, ginlimit.WithAlgorithm(a), ginlimit.WithDenyMemory(0))
				admitted := 0
				start, err := rdb.Time(t.Context()).Result() // the clock that they go by, which may be set
				require.NoError(t, err)
				for i := range 3000 {
					limits := []ginlimit.Limit{limit}
					if i%2 == 1 {
						limits = append(limits, ampleWindow)
					}
					r, err := limiter.AllowUpTo(t.Context(), "k", 1+i%3, limits...)
					require.NoError(t, err)
					require.LessOrEqual(t, r.RetryAfter, limit.Period)
					require.GreaterOrEqual(t, r.Remaining, 0)
					admitted += r.Granted
				}
				end, err := rdb.Time(t.Context()).Result()
				require.NoError(t, err)
				windows := int(end.Sub(start)/limit.Period) + 2
				require.LessOrEqual(t, admitted, windows*limit.Rate)
				require.NotZero(t, admitted)
			})
		}
	}
}

// TestWindowsThatEndInTheirScript are many of a millisecond: the clock of Redis before 7.2 goes on between the commands
// of a script. None fails, and none is left without an end.
func TestWindowsThatEndInTheirScript(t *testing.T) {
	t.Parallel()
	for _, a := range windowAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			rdb := connect(t, startRedis(t))
			limiter := newLimiter(t, rdb, ginlimit.WithAlgorithm(a))
			limits := []ginlimit.Limit{{Rate: 1000, Period: time.Millisecond}, {Rate: 1000, Period: 2 * time.Millisecond}}
			var all sync.WaitGroup
			for caller := range 32 {
				all.Go(func() {
					for range 1500 {
						r, err := limiter.Allow(t.Context(), fmt.Sprint("k", caller), limits...)
						if !assert.NoError(t, err) || !assert.True(t, r.Allowed) {
							return
						}
					}
				})
			}
			all.Wait()
			require.True(t, becomesTrue(t.Context().Done(), func() bool { return rdb.DBSize(t.Context()).Val() == 0 }))
		})
	}
}

// TestDenyMemoryOfWindows: a client that is over costs no trip, and is told the same as by Redis.
func TestDenyMemoryOfWindows(t *testing.T) {
	t.Parallel()
	for _, a := range windowAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			rdb := connect(t, startRedis(t))
			limiter := newLimiter(t, rdb, ginlimit.WithAlgorithm(a), believing())
			limit, ctx := ginlimit.PerHour(5), t.Context()
			ask := func(n int) ginlimit.Result {
				r, err := limiter.AllowN(ctx, "k", n, limit)
				require.NoError(t, err)
				return r
			}
			require.True(t, ask(4).Allowed)
			require.Equal(t, ginlimit.FromRedis, ask(2).Source)
			known := ask(2)
			require.Equal(t, ginlimit.FromMemory, known.Source)
			require.Equal(t, 1, known.Remaining)
			require.InDelta(t, time.Hour, known.RetryAfter, float64(10*time.Second))
			require.InDelta(t, time.Hour, known.ResetAfter, float64(10*time.Second))
			require.Equal(t, ginlimit.FromRedis, ask(3).Source, "waits are those of one cost")
			require.True(t, ask(1).Allowed, "what fits is asked for")
			require.False(t, ask(1).Allowed)
			require.Equal(t, ginlimit.FromMemory, ask(1).Source)
			require.NoError(t, limiter.Refund(ctx, "k", 1, limit))
			require.True(t, ask(1).Allowed)
			require.False(t, ask(1).Allowed)
			require.NoError(t, limiter.Reset(ctx, "k", limit))
			require.True(t, ask(5).Allowed)
		})
	}
}

// TestDenyMemoryNeverOutlastsAWindow compares short windows with what a limiter without memory is told.
func TestDenyMemoryNeverOutlastsAWindow(t *testing.T) {
	t.Parallel()
	for _, a := range windowAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			rdb := connect(t, startRedis(t))
			limiter := newLimiter(t, rdb, ginlimit.WithAlgorithm(a), believing())
			plain := newLimiter(t, rdb, ginlimit.WithAlgorithm(a), ginlimit.WithDenyMemory(0))
			limit := ginlimit.Limit{Rate: 3, Period: 20 * time.Millisecond}
			fromMemory := 0
			for range 5000 {
				before, err := plain.Peek(t.Context(), "k", limit)
				require.NoError(t, err)
				r, err := limiter.Allow(t.Context(), "k", limit)
				require.NoError(t, err)
				if r.Source == ginlimit.FromMemory {
					fromMemory++
					require.False(t, before.Allowed, "Redis would have admitted it before")
				}
			}
			require.Positive(t, fromMemory)
		})
	}
}

// Guarantee 7: whatever clients do, and however long their logs are.
func TestMemoryOfWindowsIsBounded(t *testing.T) {
	t.Parallel()
	for _, a := range windowAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limiter, err := ginlimit.NewLocal(ginlimit.WithAlgorithm(a))
				require.NoError(t, err)
				limit := ginlimit.PerDay(1 << 20)
				client := ginlimit.KeysOfAShard(limiter) // which has a part of what there is for all
				const windowsOfAll, entriesOfAll = ginlimit.LocalBuckets / ginlimit.LocalShards, 1 << 20 / ginlimit.LocalShards
				for i := range entriesOfAll * 3 / 2 {
					if i%8 == 0 {
						time.Sleep(time.Millisecond) // so that entries are apart
					}
					_, err := limiter.Allow(t.Context(), client(i%8), limit)
					require.NoError(t, err)
				}
				windows, entries := ginlimit.LocalWindows(limiter)
				if a == ginlimit.SlidingWindow {
					require.LessOrEqual(t, entries, entriesOfAll)
					require.Greater(t, entries, entriesOfAll/4)
				} else {
					require.Equal(t, 8, windows)
					require.Zero(t, entries)
				}
				for i := range windowsOfAll * 5 / 4 {
					_, err := limiter.Allow(t.Context(), client(8+i), limit)
					require.NoError(t, err)
				}
				windows, _ = ginlimit.LocalWindows(limiter)
				require.LessOrEqual(t, windows, windowsOfAll)
				require.Greater(t, windows, windowsOfAll/2)
			})
		})
	}
}

// TestLongLogsForgetNobodyElse: a client with a long log costs neither blocks nor counters of others.
func TestLongLogsForgetNobodyElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter, err := ginlimit.NewLocal(ginlimit.WithAlgorithm(ginlimit.SlidingWindow))
		require.NoError(t, err)
		client, ctx, limit := ginlimit.KeysOfAShard(limiter), t.Context(), ginlimit.PerHour(1<<20)
		for i := range 1000 {
			require.NoError(t, limiter.Block(ctx, client(10+i), time.Minute, limit))
		}
		for i := range 45_000 {
			if i%10 == 0 {
				time.Sleep(time.Millisecond)
			}
			_, err := limiter.Allow(ctx, client(i%10), limit)
			require.NoError(t, err)
		}
		for i := range 1000 {
			r, err := limiter.Peek(ctx, client(10+i), limit)
			require.NoError(t, err)
			require.False(t, r.Allowed)
		}
	})
}

// TestLogsAreCoarserInTheProcessWhereTheyAreLong, which only keeps tokens for longer.
func TestLogsAreCoarserInTheProcessWhereTheyAreLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter, err := ginlimit.NewLocal(ginlimit.WithAlgorithm(ginlimit.SlidingWindow))
		require.NoError(t, err)
		const rate = 20_000
		limit, ctx := ginlimit.PerHour(rate), t.Context()
		for i := range rate {
			r, err := limiter.Allow(ctx, "k", limit)
			require.NoError(t, err)
			require.Equal(t, rate-1-i, r.Remaining)
			time.Sleep(time.Millisecond)
		}
		_, entries := ginlimit.LocalWindows(limiter)
		require.LessOrEqual(t, entries, 1<<13)
		time.Sleep(time.Hour - rate*time.Millisecond) // the first one leaves now
		for left := 1; left < rate; left += 977 {
			r, err := limiter.Peek(ctx, "k", limit)
			require.NoError(t, err)
			require.LessOrEqual(t, r.Remaining, left)
			require.Greater(t, r.Remaining, left-9)
			time.Sleep(977 * time.Millisecond)
		}
	})
}

// TestWindowsAreSharedWithoutRedis: what a share cannot give at once it owes.
func TestWindowsAreSharedWithoutRedis(t *testing.T) {
	t.Parallel()
	for _, a := range windowAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			rdb := connectDirect(t, "127.0.0.1:"+freePort(t))
			limiter := newLimiter(t, rdb, ginlimit.WithAlgorithm(a), ginlimit.WithFailure(ginlimit.FailLocal), ginlimit.WithReplicas(4))
			limit, ctx := ginlimit.PerMinute(10), t.Context()
			ask := func(key string, n int) ginlimit.Result {
				r, err := limiter.AllowN(ctx, key, n, limit)
				require.NoError(t, err)
				require.Equal(t, ginlimit.FromLocal, r.Source)
				require.Equal(t, limit, r.Limit)
				return r
			}
			require.Equal(t, 1, ask("k", 1).Remaining, "two of ten")
			require.True(t, ask("k", 1).Allowed)
			r := ask("k", 1)
			require.False(t, r.Allowed)
			require.InDelta(t, time.Minute, r.RetryAfter, float64(20*time.Second))

			require.True(t, ask("large", 7).Allowed, "four windows' worth")
			r = ask("large", 1)
			require.False(t, r.Allowed)
			require.InDelta(t, 4*time.Minute, r.RetryAfter, float64(20*time.Second))
			require.Negative(t, ask("larger", 11).RetryAfter)
			require.Equal(t, 5*time.Minute, ask("all", 10).ResetAfter)
			require.Error(t, limiter.Refund(ctx, "all", 1, limit), "there is no Redis, but it is done here")
			require.True(t, ask("all", 1).Allowed)
			r = ask("all", 1)
			require.False(t, r.Allowed)
			require.InDelta(t, 5*time.Minute, r.ResetAfter, float64(20*time.Second), "what is owed stays owed")

			require.Error(t, limiter.Block(ctx, "blocked", time.Hour, limit), "there is no Redis, but it is done here")
			require.InDelta(t, time.Hour, ask("blocked", 1).RetryAfter, float64(20*time.Second))
		})
	}
}

// TestClockSetBack: where the clock of Redis goes back, as in a failover, a window lasts longer, and stays sound.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	for _, a := range windowAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			e := redisEngine(t, a)
			limit, ctx, name := ginlimit.PerMinute(5), t.Context(), e.redisKey("k", ginlimit.PerMinute(5))
			back := func(d time.Duration) {
				ttl, err := e.rdb.PTTL(ctx, name).Result()
				require.NoError(t, err)
				require.NoError(t, e.rdb.PExpire(ctx, name, ttl+d).Err())
			}
			e.allowed(t, 1, 4, limit)
			e.advance(30 * time.Second)
			e.allowed(t, 1, 3, limit)
			back(40 * time.Second)
			e.allowed(t, 1, 2, limit)
			back(40 * time.Second)
			e.allowed(t, 1, 1, limit, ginlimit.PerHour(9)) // by the way of several limits
			back(40 * time.Second)
			require.NoError(t, e.limiter.Refund(ctx, "k", 1, limit))
			require.NoError(t, e.limiter.Block(ctx, "k", time.Second, limit))
			back(2 * time.Second)
			e.advance(10 * time.Second)
			e.allowed(t, 2, 0, limit)
			require.Len(t, e.found(t, "k", limit).taken, 5)
			if a == ginlimit.SlidingWindow {
				require.LessOrEqual(t, e.allowN(t, 1, limit).RetryAfter, limit.Period)
			}
			e.advance(4 * time.Minute)
			e.allowed(t, 5, 0, limit)
		})
	}
}

// TestLongLogsAreSearchedByHalves counts what a script does with a log of which nearly all has left.
func TestLongLogsAreSearchedByHalves(t *testing.T) {
	t.Parallel()
	e := redisEngine(t, ginlimit.SlidingWindow)
	const entries = 20_000
	limit, ctx := ginlimit.PerHour(entries), t.Context()
	list := []any{fmt.Sprintf("0 %d %d", entries, entries+limit.Period.Milliseconds())}
	for i := range entries {
		list = append(list, i+1, i+1)
	}
	name := e.redisKey("k", limit)
	require.NoError(t, e.rdb.RPush(ctx, name, list...).Err())
	require.NoError(t, e.rdb.PExpire(ctx, name, 10*time.Second).Err()) // so that the others have left
	do := func(what string, do func() error) {
		require.NoError(t, e.rdb.ConfigResetStat(ctx).Err())
		require.NoError(t, do(), what)
		sum := 0
		for _, calls := range commandCalls(t, e.rdb) {
			n, err := strconv.Atoi(calls)
			require.NoError(t, err)
			sum += n
		}
		require.Less(t, sum, 90, what)
	}
	do("Peek", func() error { _, err := e.limiter.Peek(ctx, "k", limit); return err })
	do("Peek beside another limit", func() error { _, err := e.limiter.Peek(ctx, "k", limit, ginlimit.PerDay(1)); return err })
	do("a lower limit", func() error { _, err := e.limiter.Allow(ctx, "k", ginlimit.PerHour(10)); return err })
	do("a large cost", func() error { _, err := e.limiter.AllowN(ctx, "k", entries-3, limit); return err })
	do("Refund", func() error { return e.limiter.Refund(ctx, "k", 5000, limit) })
	do("Block", func() error { return e.limiter.Block(ctx, "k", time.Second, limit) })
	do("Peek of what is blocked", func() error { _, err := e.limiter.Peek(ctx, "k", limit); return err })
}

// TestMixedAlgorithmsShareABatch has handlers of one limiter, all of them busy, that count differently.
func TestMixedAlgorithmsShareABatch(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	limiter := newLimiter(t, rdb, ginlimit.WithKey(ginlimit.ByHeader("X-Client-Id")))
	var routes []*gin.Engine
	for a := range ginlimit.Algorithm(3) {
		routes = append(routes, serve(limiter.Handler(ginlimit.PerDay(100), ginlimit.WithAlgorithm(a))))
	}
	const callers, each, clients = 128, 60, 4 // 640 requests of each client on each route
	var served [3][clients]atomic.Int64
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := range each {
				route, client := (caller+i)%3, (caller+i/3)%clients
				if get(routes[route], "/", with("X-Client-Id", fmt.Sprint("client ", client))).Code == http.StatusOK {
					served[route][client].Add(1)
				}
			}
		})
	}
	all.Wait()
	for route := range served {
		for client := range served[route] {
			assert.EqualValues(t, 100, served[route][client].Load(), "%s, client %d", ginlimit.Algorithm(route), client)
		}
	}
}

// TestLogWithoutAnEndIsNotLeft: where a charge cannot be completed, it is not begun.
func TestLogWithoutAnEndIsNotLeft(t *testing.T) {
	t.Parallel()
	addr := startRedis(t)
	admin := connect(t, addr)
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-pexpire").Err())
	rdb := redis.NewClient(&redis.Options{Addr: addr, Username: "app", Password: "secret"})
	t.Cleanup(func() { _ = rdb.Close() })
	limiter := newLimiter(t, rdb, ginlimit.WithAlgorithm(ginlimit.SlidingWindow))
	_, err := limiter.Allow(t.Context(), "k", ginlimit.PerHour(5))
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.Zero(t, admin.DBSize(t.Context()).Val())
}

// The state of a window that is none is an error of that key alone, and nothing is written.
func TestForeignWindowsAreErrors(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	ctx, limit := t.Context(), ginlimit.PerHour(5)
	for _, a := range windowAlgorithms {
		limiter := newLimiter(t, rdb, ginlimit.WithAlgorithm(a))
		name := engine{algorithm: a}.redisKey("k", limit)
		for what, set := range map[string]func(){
			"a list":              func() { rdb.RPush(ctx, name, "x", "y") },
			"an expiring list":    func() { rdb.RPush(ctx, name, "x", "y"); rdb.Expire(ctx, name, time.Hour) },
			"a text":              func() { rdb.Set(ctx, name, "what", time.Hour) },
			"a number that stays": func() { rdb.Set(ctx, name, "1", 0) },
			"a log that stays":    func() { rdb.RPush(ctx, name, "0 1 3600000", "0", "1") },
			"a hash":              func() { rdb.HSet(ctx, name, "a", "b") },
		} {
			require.NoError(t, rdb.Del(ctx, name).Err())
			set()
			before := rdb.Dump(ctx, name).Val()
			for _, limits := range [][]ginlimit.Limit{{limit}, {ginlimit.PerMinute(3), limit}} {
				_, err := limiter.Allow(ctx, "k", limits...)
				require.ErrorIs(t, err, ginlimit.ErrUnavailable, "%s, %s", a, what)
				require.ErrorIs(t, limiter.Refund(ctx, "k", 1, limits...), ginlimit.ErrUnavailable)
				require.ErrorIs(t, limiter.Block(ctx, "k", time.Minute, limits...), ginlimit.ErrUnavailable)
			}
			require.Equal(t, before, rdb.Dump(ctx, name).Val())
			require.EqualValues(t, 1, rdb.DBSize(ctx).Val(), "nothing was charged")
			require.NoError(t, limiter.Reset(ctx, "k", ginlimit.PerMinute(1)))
		}
		require.NoError(t, rdb.FlushDB(ctx).Err()) // of a server of this test's own
	}
}

// Guarantee 2 where memory is full: nothing is charged, and no log is left half written.
func TestFullMemoryChargesNoWindow(t *testing.T) {
	t.Parallel()
	rdb := connect(t, startRedis(t))
	ctx, limit := t.Context(), ginlimit.PerHour(50)
	for _, a := range windowAlgorithms {
		limiter := newLimiter(t, rdb, ginlimit.WithAlgorithm(a), ginlimit.WithDenyMemory(0))
		for range 3 {
			_, err := limiter.Allow(ctx, "k", limit, ginlimit.PerDay(60))
			require.NoError(t, err)
		}
		require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
		before, err := limiter.Peek(ctx, "k", limit, ginlimit.PerDay(60))
		require.NoError(t, err)
		for _, limits := range [][]ginlimit.Limit{{limit}, {limit, ginlimit.PerDay(60)}} {
			_, err = limiter.Allow(ctx, "k", limits...)
			require.ErrorIs(t, err, ginlimit.ErrUnavailable)
			_, err = limiter.Allow(ctx, "new", limits...)
			require.ErrorIs(t, err, ginlimit.ErrUnavailable)
		}
		require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "0").Err())
		after, err := limiter.Peek(ctx, "k", limit, ginlimit.PerDay(60))
		require.NoError(t, err)
		require.Equal(t, before.Remaining, after.Remaining)
		r, err := limiter.Allow(ctx, "k", limit)
		require.NoError(t, err)
		require.Equal(t, 46, r.Remaining)
		r, err = limiter.Allow(ctx, "new", limit)
		require.NoError(t, err)
		require.Equal(t, 49, r.Remaining)
	}
}

// TestWindowsOnACluster has several processes ask for windows on all nodes, which lose their scripts meanwhile.
func TestWindowsOnACluster(t *testing.T) {
	t.Parallel()
	addrs := startCluster(t, 3)
	for _, a := range windowAlgorithms {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
		t.Cleanup(func() { _ = rdb.Close() })
		limiters := []*ginlimit.Limiter{newLimiter(t, rdb, ginlimit.WithAlgorithm(a)), newLimiter(t, rdb, ginlimit.WithAlgorithm(a))}
		limit, day := ginlimit.PerHour(10), ginlimit.PerDay(15)
		const keys, callers = 20, 40
		var granted [keys]atomic.Int64
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				if caller == callers/2 {
					for _, addr := range addrs {
						assert.NoError(t, connect(t, addr).ScriptFlush(t.Context()).Err())
					}
				}
				for key := range keys {
					r, err := limiters[caller%2].Allow(t.Context(), fmt.Sprint("key ", key), limit, day)
					assert.NoError(t, err)
					granted[key].Add(int64(r.Granted))
				}
			})
		}
		all.Wait()
		for key := range keys {
			require.EqualValues(t, limit.Rate, granted[key].Load(), "%s, key %d", a, key)
		}
	}
}

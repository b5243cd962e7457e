package limits_test

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// traceLimits are the sets of limits that traces run under: rates that divide the period and that do
// not, bursts above and below the rate, periods from a millisecond to a week.
var traceLimits = [][]ginlimit.Limit{
	{ginlimit.PerSecond(10)},
	{ginlimit.PerMinute(100)},
	{ginlimit.PerMinute(7)},
	{ginlimit.PerSecond(3).WithBurst(1)},
	{ginlimit.PerSecond(1500).WithBurst(10)},
	{ginlimit.PerSecond(999).WithBurst(2000)},
	{ginlimit.PerHour(5)},
	{ginlimit.PerDay(11).WithBurst(4)},
	{{Rate: 13, Period: 7 * time.Millisecond, Burst: 5}},
	{{Rate: 1, Period: time.Millisecond}},
	{{Rate: 3, Period: 250 * time.Millisecond, Burst: 9}},
	{{Rate: 1000003, Period: time.Second, Burst: 77}},
	{{Rate: 17, Period: 7 * 24 * time.Hour, Burst: 1000}},
	{ginlimit.PerSecond(5), ginlimit.PerMinute(60)},
	{ginlimit.PerSecond(7).WithBurst(3), ginlimit.PerMinute(11), ginlimit.PerDay(500)},
	{{Rate: 9, Period: 100 * time.Millisecond, Burst: 20}, {Rate: 13, Period: 3 * time.Second}},
}

// ample never denies, beside a limit under test.
var ample = ginlimit.Limit{Rate: 1 << 20, Period: 13 * time.Millisecond, Burst: testkit.AsInt(1 << 40)}

// found reads a bucket as its key says that it is now.
func found(t testing.TB, e testkit.Engine, key string, l ginlimit.Limit) *testkit.ModelBucket {
	ttl, value := e.State(key, l)
	if ttl == 0 {
		return &testkit.ModelBucket{Missing: new(big.Rat)}
	}
	kept, before, blocked := strings.Cut(value, " ")
	rest := testkit.Must(strconv.ParseInt(kept, 10, 64))
	block := int64(0)
	if blocked {
		ends := testkit.Must(strconv.ParseInt(before, 10, 64))
		block = max(0, ttl-ends)
	}
	// value = TTL × drain - level, in units of which a token weighs period / gcd(rate, period).
	p := l.Period.Milliseconds()
	g := new(big.Int).GCD(nil, nil, big.NewInt(int64(l.Rate)), big.NewInt(p)).Int64()
	level := ttl*(int64(l.Rate)/g) - rest
	return &testkit.ModelBucket{Missing: big.NewRat(level, p/g), Block: block}
}

const traceSeeds, traceSteps = 8, 13000 // 104,000 steps

func TestTraceEqualsModelOnMiniredis(t *testing.T) {
	t.Parallel()
	if !testkit.Has64Bits {
		t.Skip("miniredis reads an expiry as an int")
	}
	for seed := range uint64(traceSeeds) {
		testkit.Run(t, fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			e, m := testkit.MiniredisEngine(t, ginlimit.TokenBucket), testkit.NewBucketModel()
			for i, s := range testkit.Trace(seed, testkit.Steps(traceSteps)/testkit.TraceShare, traceLimits, ample) {
				e.Advance(s.Wait)
				m.Advance(s.Wait)
				want := s.Expect(m)
				got, err := s.Apply(t.Context(), e.Limiter)
				got.Source = 0
				if err != nil || got != want {
					require.Failf(t, "differs", "seed %d, step %d, %s:\nwant %+v\n got %+v, error %v", seed, i, s, want, got, err)
				}
				for _, l := range s.Limits {
					want, got := m.Bucket(s.Key, l), found(t, e, s.Key, l)
					if got.Missing.Cmp(want.Missing) != 0 || got.Block != want.Block {
						require.Failf(t, "bucket differs", "seed %d, step %d, %s, %s: want %s missing, blocked for %d ms, got %s, %d ms",
							seed, i, s, l, want.Missing, want.Block, got.Missing, got.Block)
					}
				}
			}
		})
	}
}

func TestTraceEqualsModelInProcess(t *testing.T) {
	t.Parallel()
	for seed := range uint64(traceSeeds) {
		testkit.RunSynctest(t, fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			testkit.LocalEngine(t, ginlimit.TokenBucket).Follow(t, seed,
				testkit.Trace(seed, testkit.Steps(traceSteps), traceLimits, ample), testkit.NewBucketModel(), ginlimit.FromLocal)
		})
	}
}

const windowTraceSteps = 5000

func TestWindowTraceEqualsModelOnMiniredis(t *testing.T) {
	t.Parallel()
	for _, a := range testkit.WindowAlgorithms {
		for seed := range uint64(traceSeeds / 2) {
			testkit.Run(t, fmt.Sprintf("%s, seed %d", a, seed), func(t *testing.T) {
				testkit.MiniredisEngine(t, a).Follow(t, seed,
					testkit.WindowTrace(seed, testkit.Steps(windowTraceSteps/2)/testkit.TraceShare),
					testkit.NewWindowModel(a), ginlimit.FromRedis)
			})
		}
	}
}

func TestWindowTraceEqualsModelInProcess(t *testing.T) {
	t.Parallel()
	for _, a := range testkit.WindowAlgorithms {
		for seed := range uint64(traceSeeds) {
			testkit.RunSynctest(t, fmt.Sprintf("%s, seed %d", a, seed), func(t *testing.T) {
				testkit.LocalEngine(t, a).Follow(t, seed, testkit.WindowTrace(seed, testkit.Steps(windowTraceSteps)),
					testkit.NewWindowModel(a), ginlimit.FromLocal)
			})
		}
	}
}

// What windows do that a token bucket does not. What all algorithms do is in conformance_test.go.

// Each has an expiry, also after a single request.
func TestEveryWindowExpires(t *testing.T) {
	testkit.OnEveryWindow(t, func(t *testing.T, e testkit.Engine) {
		if e.Rdb == nil {
			return // nothing to look at
		}
		limit, ctx := ginlimit.PerMinute(3), t.Context()
		expires := func(within time.Duration) {
			t.Helper()
			ttl := testkit.Must(e.Rdb.PTTL(ctx, e.RedisKey("k", limit)).Result())
			e.RequireDuration(t, within, ttl)
		}
		e.Allowed(t, 1, 2, limit)
		expires(time.Minute)
		e.Advance(20 * time.Second)
		e.Allowed(t, 1, 1, limit, ginlimit.PerHour(5)) // by the way of several limits
		last := map[ginlimit.Algorithm]time.Duration{ginlimit.FixedWindow: 40 * time.Second,
			ginlimit.SlidingWindow: time.Minute}
		expires(last[e.Algorithm])
		require.NoError(t, e.Limiter.Refund(ctx, "k", 1, limit))
		expires(40 * time.Second)
		require.NoError(t, e.Limiter.Block(ctx, "k", time.Hour, limit))
		expires(time.Hour)
		e.Advance(time.Hour)
		require.Empty(t, testkit.Must(e.Rdb.Keys(ctx, "*:m:*").Result()))
	})
}

func TestChangedLimitKeepsWhatWasCounted(t *testing.T) {
	testkit.OnEveryWindow(t, func(t *testing.T, e testkit.Engine) {
		free, paid := ginlimit.PerHour(10), ginlimit.PerHour(1000)
		for range 10 {
			e.AllowN(t, 1, free)
			e.Advance(time.Minute)
		}
		e.Allowed(t, 1, 989, paid)
		e.Denied(t, 1, e.Oldest(49*time.Minute, 51*time.Minute), free) // 11 of 10: two must leave
		e.Allowed(t, 1, 988, paid)
	})
}

func TestLargestWindowsStayExact(t *testing.T) {
	testkit.OnEveryWindow(t, func(t *testing.T, e testkit.Engine) {
		if !testkit.Has64Bits {
			t.Skip("an int has 32 bits")
		}
		most := testkit.AsInt(1<<53 - 1)
		if e.Algorithm == ginlimit.SlidingWindow {
			most = testkit.AsInt(1<<52 - 1)
		}
		limit := ginlimit.Limit{Rate: most, Period: 10 * 365 * 24 * time.Hour}
		e.Allowed(t, most-1, 1, limit)
		e.Allowed(t, 1, 0, limit)
		r := e.AllowN(t, most, limit)
		require.False(t, r.Allowed)
		e.RequireDuration(t, limit.Period, r.RetryAfter)
		r = e.AllowN(t, math.MaxInt, limit)
		require.Equal(t, ginlimit.Never, r.RetryAfter)
		require.NoError(t, e.Limiter.Refund(t.Context(), "k", math.MaxInt, limit))
		e.Allowed(t, most-1, 1, limit)
		for range 5 { // its log is never empty, and totals go round
			e.Advance(limit.Period / 2)
			if e.Algorithm == ginlimit.SlidingWindow {
				e.Allowed(t, 1, 0, limit)
			}
			e.Advance(limit.Period / 2)
			require.True(t, e.AllowN(t, most-1, limit).Allowed)
		}
		r, err := e.Limiter.Allow(t.Context(), "k", ginlimit.Limit{Rate: most + 1, Period: time.Hour})
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
		require.Zero(t, r)
	})
}

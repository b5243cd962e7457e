package limits_test

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
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
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
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
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limiter := testkit.NewLocal(t)
				m := testkit.NewBucketModel()
				for i, s := range testkit.Trace(seed, testkit.Steps(traceSteps), traceLimits, ample) {
					time.Sleep(s.Wait) // the bubble's clock
					m.Advance(s.Wait)
					want := s.Expect(m)
					got, err := s.Apply(t.Context(), limiter)
					if want != (ginlimit.Result{}) {
						want.Source = ginlimit.FromLocal
					}
					if err != nil || got != want {
						require.Failf(t, "differs", "seed %d, step %d, %s:\nwant %+v\n got %+v, error %v", seed, i, s, want, got, err)
					}
				}
			})
		})
	}
}

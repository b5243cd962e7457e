package limits_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Leases under loads of requests at random times, in simulated time. integration/ has them on real servers.

// grantedUnder has several processes use one key at random times, four times as much as the limit allows, and returns
// what each was granted after a second to warm up. A call to Redis takes no time.
func grantedUnder(t *testing.T, b *testkit.LeaseBench, limit ginlimit.Limit, processes int, lasts time.Duration) []int {
	r := rand.New(rand.NewPCG(29, uint64(processes)))
	var all []*testkit.Limiter
	for range processes {
		all = append(all, b.Limiter(t, ginlimit.WithLease(200*time.Millisecond),
			ginlimit.WithTimeout(ginlimit.DefaultTimeout)))
	}
	gap := float64(time.Second) / (4 * float64(limit.Rate))
	start, granted := time.Now(), make([]int, processes)
	for time.Since(start) < time.Second+lasts {
		b.Advance(time.Duration(r.ExpFloat64() * gap))
		i := r.IntN(processes)
		if result := testkit.Must(all[i].Allow(t.Context(), "k", limit)); time.Since(start) >= time.Second {
			granted[i] += result.Granted
		}
	}
	return granted
}

// TestEqualDemandHasEqualShares, within a tenth, of a limit that has too little for all.
func TestEqualDemandHasEqualShares(t *testing.T) {
	for _, processes := range []int{2, 4} {
		if processes < 4 && !testkit.Full() {
			continue
		}
		testkit.RunOnLeaseBench(t, fmt.Sprint(processes), func(t *testing.T, b *testkit.LeaseBench) {
			length, apart := 2*time.Minute, 0.3 // a shorter run leaves more to chance
			if testkit.Full() {
				length, apart = 10*time.Minute, 0.1
			}
			granted := grantedUnder(t, b, ginlimit.PerSecond(20), processes, length)
			sum := 0
			for _, n := range granted {
				sum += n
			}
			require.InEpsilon(t, length.Seconds()*20, sum, 0.02)
			for _, n := range granted {
				require.InEpsilon(t, float64(sum)/float64(processes), n, apart, "%v", granted)
			}
		})
	}
}

// TestADecisionByALeaseAllocatesNothingMore than one that Redis makes.
func TestADecisionByALeaseAllocatesNothingMore(t *testing.T) {
	if testkit.RaceDetector {
		t.Skip("the race detector allocates")
	}
	rdb, _ := testkit.NewMiniredis(t)
	limit, ctx := ginlimit.PerSecond(1_000_000), context.Background()
	l := testkit.NewLimiter(t, rdb)
	plain := testkit.NewPolicy(t, l, "plain", limit)
	leased := testkit.NewPolicy(t, l, "leased", limit, ginlimit.WithLease(time.Minute))
	measure := func(p *ginlimit.Policy, want ginlimit.Source) float64 {
		least := 1e9
		for range 5 { // other goroutines may allocate meanwhile
			least = min(least, testing.AllocsPerRun(50, func() {
				if r, err := p.Allow(ctx, "alice"); err != nil || r.Source != want {
					panic(r.Source.String())
				}
			}))
		}
		return least
	}
	byRedis := measure(plain, ginlimit.FromRedis)
	for range 2000 { // until enough is leased
		testkit.Must(leased.Allow(ctx, "alice"))
	}
	for { // a new lease of two thousand tokens or more
		r := testkit.Must(leased.Allow(ctx, "alice"))
		if r.Source == ginlimit.FromRedis {
			break
		}
	}
	require.LessOrEqual(t, measure(leased, ginlimit.FromLease), byRedis)
}

// What is given back beside a lease leaves others what they had.

// TestNothingIsLostBesideALease: a client that asks for more than its limit gets all of it, whatever
// is given back meanwhile.
func TestNothingIsLostBesideALease(t *testing.T) {
	limit := ginlimit.PerSecond(500)
	for name, beside := range map[string]func(t *testing.T, l *testkit.Limiter) (used int){
		"nothing": func(*testing.T, *testkit.Limiter) int { return 0 },
		"refunds": func(t *testing.T, l *testkit.Limiter) int {
			require.NoError(t, l.Refund(t.Context(), "k", 1, limit))
			return -1
		},
		"cancels": func(t *testing.T, l *testkit.Limiter) int {
			require.NoError(t, testkit.Must(l.Reserve(t.Context(), "k", 2, limit)).Cancel(t.Context()))
			return 0
		},
	} {
		testkit.RunOnLeaseBench(t, name, func(t *testing.T, b *testkit.LeaseBench) {
			d := ginlimit.WithLease(200 * time.Millisecond)
			timeout := ginlimit.WithTimeout(ginlimit.DefaultTimeout)
			all := []*testkit.Limiter{b.Limiter(t, d, timeout), b.Limiter(t, d, timeout)}
			run := func(length time.Duration) (used int) {
				for i := range int(length / time.Millisecond) {
					for _, l := range all {
						r := testkit.Must(l.Allow(t.Context(), "k", limit))
						used += r.Granted
					}
					if i%20 == 0 {
						used += beside(t, all[i/20%2])
					}
					b.Advance(time.Millisecond)
				}
				return used
			}
			require.LessOrEqual(t, run(2*time.Second), 500+2*500, "with the burst")
			before := all[0].Stats().Leased + all[1].Stats().Leased
			seconds := testkit.Steps(16) // what is held at its ends differs by some 50 tokens
			used := run(time.Duration(seconds) * time.Second)
			require.InDelta(t, seconds*500, used, 80)
			require.Greater(t, all[0].Stats().Leased+all[1].Stats().Leased-before, uint64(used/2))
		})
	}
}

// TestCallersThatLeaveLoseNothingOfAQuota: two limiters admit exactly the quota, less one token for each
// caller that left while its call was in flight, which may have taken others ahead.
func TestCallersThatLeaveLoseNothingOfAQuota(t *testing.T) {
	const quota = 700
	for name, limit := range map[string]ginlimit.Limit{
		"calendar": ginlimit.PerCalendar(quota, ginlimit.CalendarMonth(nil, 1)),
		"window":   ginlimit.PerDay(quota).WithAlgorithm(ginlimit.FixedWindow),
	} {
		testkit.RunOnLeaseBench(t, name, func(t *testing.T, b *testkit.LeaseBench) {
			lease := ginlimit.WithLease(100 * time.Millisecond)
			all := []*testkit.Limiter{b.Limiter(t, lease), b.Limiter(t, lease)}
			admitted, left, leased := 0, 0, 0
			b.Hook.Wait.Store(int64(2 * time.Millisecond))
			for i := range 600 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				if i%10 < 3 { // it leaves while the call is in flight
					time.AfterFunc(time.Millisecond, cancel)
				}
				r, err := all[i%2].Allow(ctx, "k", limit)
				if cancel(); err != nil {
					require.ErrorIs(t, err, context.Canceled)
					left++
					b.Advance(3 * time.Millisecond)
					continue
				}
				if admitted += r.Granted; r.Source == ginlimit.FromLease {
					leased++
				}
			}
			b.Advance(time.Second) // what is held is given back
			for range 2 {
				for _, l := range all {
					admitted += testkit.AdmittedNow(t, l, "k", limit)
				}
			}
			require.Positive(t, left)
			require.Greater(t, leased, quota/3)
			require.Equal(t, quota, admitted+left, "a caller that left while its call was in flight has had its token")
		})
	}
}

// TestACancelUnderALeaseGivesBackOnce: at once all of it, later what has not flowed back, and
// nothing of a bucket that was full again.
func TestACancelUnderALeaseGivesBackOnce(t *testing.T) {
	limit := ginlimit.PerSecond(200)
	for name, row := range map[string]struct {
		takes time.Duration // the work
		back  int           // tokens of the 40 that it has taken
	}{"at once": {0, 40}, "half of it has flowed back": {100 * time.Millisecond, 20}, "all has": {time.Second, 0}} {
		testkit.RunOnLeaseBench(t, name, func(t *testing.T, b *testkit.LeaseBench) {
			l := b.Limiter(t)
			p := testkit.Must(l.Policy("api", limit, ginlimit.WithLease(time.Second)))
			b.Busy(t, func() (ginlimit.Result, error) { return p.Allow(t.Context(), "192.0.2.1") })
			for range 100 { // so that enough is leased
				b.Advance(5 * time.Millisecond)
				testkit.Must(p.Allow(t.Context(), "192.0.2.1"))
			}
			take := func() (n int) { // all that there is now
				for {
					mine := testkit.Must(p.Allow(t.Context(), "192.0.2.1"))
					if !mine.Allowed {
						return n
					}
					n++
				}
			}
			b.Advance(2 * time.Second) // the bucket is full
			r := testkit.Must(p.Reserve(t.Context(), "192.0.2.1", 40))
			b.Advance(row.takes)
			take()
			require.NoError(t, r.Cancel(t.Context()))
			require.InDelta(t, row.back, take(), 1)
		})
	}
}

// TestARareKeyCostsNoMore with leases than without, neither calls nor keys in Redis: one that is used once in
// two lives of a lease at most.
func TestARareKeyCostsNoMore(t *testing.T) {
	for name, limit := range map[string]ginlimit.Limit{
		"token bucket": ginlimit.PerSecond(500), "fixed window": fixedMinute, "calendar": quotaOfDay,
	} {
		testkit.RunOnLeaseBench(t, name, func(t *testing.T, b *testkit.LeaseBench) {
			var calls []int64
			var keys [][]string
			for _, lease := range []time.Duration{0, 200 * time.Millisecond, time.Second / 2} {
				l := testkit.NewLimiter(t, b.Client(t), ginlimit.WithLease(lease), testkit.RemembersDenials())
				testkit.Must(l.Allow(t.Context(), "warm", limit))
				b.Mini.FlushAll()
				before := b.Hook.Calls.Load()
				for range 50 {
					testkit.Must(l.Allow(t.Context(), "k", limit))
					b.Advance(time.Second)
				}
				testkit.Must(l.Allow(t.Context(), "k", limit))
				calls, keys = append(calls, b.Hook.Calls.Load()-before), append(keys, slices.Clone(b.Mini.Keys()))
				require.Zero(t, l.Stats().Leased)
			}
			require.Equal(t, []int64{51, 51, 51}, calls)
			require.Len(t, keys[0], 1)
			require.Equal(t, [][]string{keys[0], keys[0], keys[0]}, keys)
		})
	}
}

package limits_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestDebtOfAWindow keeps it from everybody until the tokens have left, and no longer.
func TestDebtOfAWindow(t *testing.T) {
	testkit.OnEveryWindow(t, func(t *testing.T, e testkit.Engine) {
		limit := ginlimit.PerDay(20)
		for name, row := range map[string]struct{ estimate, actual int }{
			"one more than all": {8, 21}, "half as much again": {8, 30}, "twice": {8, 40},
			"more than is charged": {1, 500}, "of all": {20, 33},
		} {
			require.NoError(t, e.Limiter.Reset(t.Context(), "k", limit))
			r := e.Reserve(t, row.estimate, limit)
			e.Advance(9 * time.Hour)
			require.NoError(t, r.Settle(t.Context(), row.actual), name)
			wait := 15 * time.Hour // a fixed window ends with what it owes
			if extra := min(row.actual, 40) - row.estimate; e.Algorithm == ginlimit.SlidingWindow && extra >= 20 {
				wait = 24 * time.Hour // what was charged later alone fills the window
			}
			e.Denied(t, 1, wait, limit)
			e.Advance(wait - 10*time.Second)
			e.Denied(t, 1, 10*time.Second, limit)
			e.Advance(10 * time.Second)
			left := 20
			if e.Algorithm == ginlimit.SlidingWindow && wait < 24*time.Hour {
				left = 20 - (min(row.actual, 40) - row.estimate)
			}
			require.Equal(t, left, e.Left(t, limit), name)
		}
	})
}

// TestDebtBesideACalendar: each limit owes its own, and the one that is longest keeps the others from being charged.
func TestDebtBesideACalendar(t *testing.T) {
	testkit.OnEveryWindow(t, func(t *testing.T, e testkit.Engine) {
		limit, quota := ginlimit.PerHour(10),
			ginlimit.PerCalendar(15, ginlimit.CalendarMonth(nil, 1+(time.Now().UTC().Day()+14)%28))
		require.NoError(t, e.Reserve(t, 5, limit, quota).Settle(t.Context(), 25))
		require.False(t, e.AllowN(t, 1, limit).Allowed)
		require.False(t, e.AllowN(t, 1, quota).Allowed)
		require.NoError(t, e.Limiter.Reset(t.Context(), "k", quota))
		e.Denied(t, 1, time.Hour, limit, quota)
		require.Equal(t, 15, e.Left(t, quota))
		// 10 of it are owed, as no more than 20 were charged
		require.NoError(t, e.Limiter.Refund(t.Context(), "k", 11, limit))
		require.Equal(t, 1, e.Left(t, limit))
		e.Allowed(t, 1, 0, limit, quota)
	})
}

// TestManySettleAtOnce has charges and debts of many callers travel together, on one key and on several.
func TestManySettleAtOnce(t *testing.T) {
	testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
		const callers, keys = 60, 3
		limit := ginlimit.PerDay(2000)
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				for key := range keys {
					r, err := e.Limiter.Reserve(t.Context(), fmt.Sprint("key ", key), 10, limit)
					if !assert.NoError(t, err) || !assert.True(t, r.Result().Allowed) {
						return
					}
					assert.NoError(t, r.Settle(t.Context(), []int{3, 10, 22}[caller%3]))
				}
			})
		}
		all.Wait()
		for key := range keys {
			r, err := e.Limiter.Peek(t.Context(), fmt.Sprint("key ", key), limit)
			require.NoError(t, err)
			require.InDelta(t, 2000-callers/3*(3+10+22), r.Remaining, 1) // a token bucket regains one in 43 s
		}
	})
}

// TestSettleEndsARememberedDenial: what is given back is there at once, and what is charged does not come back sooner.
func TestSettleEndsARememberedDenial(t *testing.T) {
	for _, a := range append(testkit.WindowAlgorithms, ginlimit.TokenBucket) {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			rdb, _ := testkit.NewMiniredis(t)
			limit := ginlimit.PerDay(20)
			e := testkit.Engine{Limiter: testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a),
				ginlimit.WithDenyCache(10)), Algorithm: a}
			more, less := e.Reserve(t, 8, limit), e.Reserve(t, 12, limit)
			denied := func(from ginlimit.Source) {
				t.Helper()
				r := e.AllowN(t, 1, limit)
				require.False(t, r.Allowed)
				require.Equal(t, from, r.Source)
			}
			denied(ginlimit.FromRedis)
			denied(ginlimit.FromCache)
			require.NoError(t, more.Settle(t.Context(), 10))
			denied(ginlimit.FromRedis)
			denied(ginlimit.FromCache)
			require.NoError(t, less.Settle(t.Context(), 9))
			e.Allowed(t, 1, 0, limit)
			denied(ginlimit.FromRedis)
		})
	}
}

// TestFloorBesideLeases: tokens that a process has leased are taken, so a policy with a floor does
// not count on them; and none of them are admitted twice when a debt takes of the floor.
func TestFloorBesideLeases(t *testing.T) {
	t.Parallel()
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow} {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				const burst, floor = 2000, 500
				limit := ginlimit.PerHour(3_600_000).WithBurst(burst)
				if a == ginlimit.FixedWindow {
					limit = ginlimit.Per(burst, 2*time.Second).WithAlgorithm(a)
				}
				limiter := testkit.NewLimiter(t, b.Redis, testkit.WithAlgorithm(a), ginlimit.WithDenyCache(0))
				people := testkit.NewPolicy(t,
					testkit.NewLimiter(t, b.Connect(t), testkit.WithAlgorithm(a),
						ginlimit.WithLease(200*time.Millisecond), testkit.RemembersDenials()),
					"x", limit)
				batch := testkit.Derive(t, testkit.NewPolicy(t, limiter, "x", limit), ginlimit.WithFloor(floor))
				start, admitted, leased, owed := time.Now(), 0, 0, false
				for i := range 1800 {
					if i%4 == 0 {
						time.Sleep(time.Millisecond)
					}
					b.Mini.SetTime(time.Now())
					r, err := people.Allow(t.Context(), "k")
					require.NoError(t, err)
					if admitted += r.Granted; r.Source == ginlimit.FromLease {
						leased++
					}
					if i%50 > 0 {
						continue
					}
					looked, err := limiter.Peek(t.Context(), ginlimit.Key("x", "k"), limit)
					require.NoError(t, err)
					estimate, err := batch.Reserve(t.Context(), "k", 20)
					require.NoError(t, err)
					require.Equal(t, looked.Remaining >= floor+20, estimate.Result().Allowed)
					if estimate.Result().Allowed {
						require.NoError(t, estimate.Settle(t.Context(), 120))
						after, err := limiter.Peek(t.Context(), ginlimit.Key("x", "k"), limit)
						require.NoError(t, err)
						require.Equal(t, max(0, looked.Remaining-120), after.Remaining)
						admitted, owed = admitted+120, owed || after.Remaining < floor
					}
				}
				flowed := 0
				if a == ginlimit.TokenBucket {
					flowed = int(time.Since(start).Milliseconds())
				}
				require.LessOrEqual(t, admitted, burst+flowed)
				require.Greater(t, admitted, burst-100)
				require.True(t, owed, "something was taken of the floor")
				require.Greater(t, leased, 100)
			})
		})
	}
}

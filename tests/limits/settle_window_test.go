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
			r := testkit.Must(e.Limiter.Peek(t.Context(), fmt.Sprint("key ", key), limit))
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

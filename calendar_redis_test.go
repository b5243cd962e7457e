//go:build integration

package ginlimit_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/harness"
)

// TestKindsOfLimitsOnRedis has a quota that ends in weeks beside a limit of each algorithm, on servers whose user may do no more
// than docs/operations.md says.
func TestKindsOfLimitsOnRedis(t *testing.T) {
	t.Parallel()
	month := ginlimit.CalendarMonth(nil, min(28, 1+(time.Now().UTC().Day()+14)%28))
	for name, a := range map[string]ginlimit.Algorithm{
		"TokenBucket": ginlimit.TokenBucket, "FixedWindow": ginlimit.FixedWindow, "SlidingWindow": ginlimit.SlidingWindow,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := harness.StartRedis(t)
			user := restrict(t, addr, name, privilegesOf(t, "Calendar quotas also need")...)
			rdb := redis.NewClient(&user)
			defer rdb.Close()
			e := engine{limiter: harness.NewLimiter(t, rdb, ginlimit.WithAlgorithm(a)), algorithm: a, ahead: 10 * time.Second}
			quota, day := ginlimit.PerCalendar(10, month), ginlimit.PerDay(6)

			e.allowed(t, 1, 9, quota)             // alone, by the script of fixed windows
			e.allowed(t, 1, 5, quota, day)        // both by one script
			require.Equal(t, 8, e.left(t, quota)) // of which both were charged
			require.NoError(t, e.reserve(t, 3, day, quota).Settle(t.Context(), 5))
			require.Equal(t, 3, e.left(t, quota))
			require.Equal(t, 0, e.left(t, day))
			require.False(t, e.allowN(t, 1, quota, day).Allowed)
			require.Equal(t, 3, e.left(t, quota), "refused by one, charged by none")
			require.NoError(t, e.limiter.Refund(t.Context(), "k", 2, day, quota))
			require.Equal(t, 5, e.left(t, quota))
			require.Equal(t, 2, e.left(t, day))
			require.NoError(t, e.reserve(t, 2, day, quota).Cancel(t.Context()))
			require.Equal(t, 5, e.left(t, quota))
			require.Equal(t, 2, e.left(t, day))

			require.NoError(t, e.limiter.Block(t.Context(), "k", 100*24*time.Hour, quota, day)) // over the ends of months
			blocked := e.allowN(t, 1, quota, day)
			require.False(t, blocked.Allowed)
			e.requireDuration(t, 100*24*time.Hour, blocked.RetryAfter)
			require.NoError(t, e.limiter.Reset(t.Context(), "k", quota, day))
			keys, err := harness.Connect(t, addr).Keys(t.Context(), "*").Result()
			require.NoError(t, err)
			require.Empty(t, keys, "of later months either")

			require.NoError(t, e.reserve(t, 10, quota).Settle(t.Context(), 100))
			refused := e.allowN(t, 1, quota)
			require.False(t, refused.Allowed)
			require.Greater(t, refused.RetryAfter, 24*time.Hour)
			require.Less(t, refused.RetryAfter, 32*24*time.Hour)
			forbiddenNothing(t, addr)
		})
	}
}

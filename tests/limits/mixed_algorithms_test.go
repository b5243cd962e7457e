package limits_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestAPolicyMayMixAlgorithms, also for one period: all its limits are charged, or none.
func TestAPolicyMayMixAlgorithms(t *testing.T) {
	t.Parallel()
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		token := ginlimit.PerMinute(3)
		fixed, sliding := ginlimit.PerMinute(4).WithAlgorithm(ginlimit.FixedWindow),
			ginlimit.PerMinute(5).WithAlgorithm(ginlimit.SlidingWindow)
		p := testkit.NewPolicy(t, b.Limiter, "api", sliding, token, fixed)
		require.Equal(t, token, takes(1, 1, 1)(t, p).Limit, "the fewest are left of it")
		r := takes(1)(t, p)
		require.False(t, r.Allowed)
		require.Equal(t, token, r.Limit)
		require.InDelta(t, 20*time.Second, r.RetryAfter, second)
		time.Sleep(r.RetryAfter)
		require.True(t, takes(1)(t, p).Allowed)
		time.Sleep(20 * time.Second) // a token is there, and the window has none
		r = takes(1)(t, p)
		require.False(t, r.Allowed)
		require.Equal(t, fixed, r.Limit)
		require.InDelta(t, 20*time.Second, r.RetryAfter, second)
		requireStatus(t, b, p, "api", row{limit: sliding, left: 1, reset: 40 * time.Second},
			row{limit: token, left: 1, reset: 40 * time.Second},
			row{fixed, 0, ginlimit.CauseRate, 20 * time.Second, 20 * time.Second, false})

		if b.Other != b.Limiter { // a process that has one of the limits
			alone := testkit.NewPolicy(t, b.Other, "api", fixed)
			requireStatus(t, b, alone, "api", row{fixed, 0, ginlimit.CauseRate, 20 * time.Second, 20 * time.Second, false})
		}
	})
	_, err := testkit.NewLocal(t).Policy("api", ginlimit.PerMinute(3), ginlimit.PerMinute(4))
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument, "of one algorithm")
}

//go:build integration

package limits_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestAFullRedisKeepsNothingOfARequestThatIsDenied or fails, whether one script decides or several do: a bucket that
// needs no memory for a charge is charged all the same, and its tokens are given back.
func TestAFullRedisKeepsNothingOfARequestThatIsDenied(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t, "--maxmemory-policy", "noeviction")
	rdb := testkit.Connect(t, addr)
	for name, client := range map[string]redis.UniversalClient{
		"one script": rdb, "several scripts": struct{ redis.UniversalClient }{rdb},
	} {
		for _, window := range []bool{false, true} {
			l := testkit.NewLimiter(t, client, ginlimit.WithPrefix(name+map[bool]string{true: " window"}[window]),
				ginlimit.WithTimeout(5*time.Second), ginlimit.WithFailureMode(ginlimit.FailClosed), ginlimit.WithDenyCache(0))
			limit := ginlimit.PerHour(1).WithBurst(100) // charged by PEXPIRE
			if window {
				limit = ginlimit.PerHour(100).WithAlgorithm(ginlimit.FixedWindow)
			}
			a, b := testkit.NewPolicy(t, l, "a", limit), testkit.NewPolicy(t, l, "b", ginlimit.PerHour(1))
			fresh := testkit.NewPolicy(t, l, "fresh", ginlimit.PerHour(5))
			require.Equal(t, 99, testkit.Must(a.Allow(t.Context(), "k")).Remaining)
			require.True(t, testkit.Must(b.Allow(t.Context(), "k")).Allowed)
			require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
			for range 60 {
				r, err := ginlimit.ReserveAll(t.Context(), charge(a, "k", 1), charge(b, "k", 1))
				if window && name == "several scripts" { // a window's charge needs memory, and fails closed
					require.ErrorIs(t, err, ginlimit.ErrUnavailable)
				} else {
					require.NoError(t, err)
					require.False(t, r.Result().Allowed)
				}
				_, err = ginlimit.ReserveAll(t.Context(), charge(a, "k", 1), charge(fresh, "new", 1))
				require.ErrorIs(t, err, ginlimit.ErrUnavailable)
			}
			require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
			require.Equal(t, 99, testkit.Must(a.Peek(t.Context(), "k")).Remaining, "%s, window: %v", name, window)
		}
	}
}

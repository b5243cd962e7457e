//go:build integration

package limits_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestKindsOfLimitsOnRedis has a quota that ends in weeks beside a limit of each algorithm, on
// servers whose user may do no more than docs/operations.md says.
func TestKindsOfLimitsOnRedis(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]ginlimit.Algorithm{
		"TokenBucket": ginlimit.TokenBucket, "FixedWindow": ginlimit.FixedWindow, "SlidingWindow": ginlimit.SlidingWindow,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := testkit.StartRedis(t)
			user := testkit.Restrict(t, addr, name, testkit.PrivilegesOf(t, "Calendar quotas also need")...)
			rdb := redis.NewClient(&user)
			defer rdb.Close()
			e := testkit.Engine{Limiter: testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a)),
				Algorithm: a, Started: time.Now()}
			chargeKindsTogether(t, e)
			keys, err := testkit.Connect(t, addr).Keys(t.Context(), "*").Result()
			require.NoError(t, err)
			keys = slices.DeleteFunc(keys, func(key string) bool { return strings.HasSuffix(key, ":back") })
			require.Len(t, keys, 1, "none of later months")
			testkit.RequireNothingDenied(t, addr)
		})
	}
}

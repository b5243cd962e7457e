package limits_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Callers that leave, and calls that fail, while tokens are taken ahead.

// TestCallersThatLeaveLoseNothingOfAQuota: two limiters admit exactly the quota, less one token for each
// caller that left while its call was in flight, which may have taken others ahead.
func TestCallersThatLeaveLoseNothingOfAQuota(t *testing.T) {
	const quota = 700
	for name, limit := range map[string]ginlimit.Limit{
		"calendar": ginlimit.PerCalendar(quota, ginlimit.CalendarMonth(nil, 1)),
		"window":   ginlimit.PerDay(quota).WithAlgorithm(ginlimit.FixedWindow),
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
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
		})
	}
}

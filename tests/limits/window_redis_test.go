//go:build integration

package limits_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// admission is how many tokens were granted between two times of this machine's clock, which Redis goes by.
type admission struct {
	asked, answered time.Time
	granted         int
}

// requireSliding holds that no more than the limit was granted in any period. What was asked for
// and answered within a period was granted within it, however long the answers took.
func requireSliding(t *testing.T, limit ginlimit.Limit, admissions []admission) {
	t.Helper()
	within := limit.Period - 2*time.Millisecond // Redis counts whole ones, and before 7.2 they may go on within a script
	for i, last := range admissions {
		granted := 0
		for _, a := range slices.Backward(admissions[:i+1]) {
			if last.answered.Sub(a.asked) >= within {
				break
			}
			granted += a.granted
		}
		require.LessOrEqual(t, granted, limit.Rate, "in less than %s", within)
	}
}

// TestShortWindowsNeverAdmitMore asks as fast as it can, so that windows end while their scripts
// run. At times it pauses after a window has begun: most of that window is then taken at its end,
// shortly before the next one begins.
func TestShortWindowsNeverAdmitMore(t *testing.T) {
	t.Parallel()
	for _, a := range testkit.WindowAlgorithms {
		for _, limit := range []ginlimit.Limit{
			{Rate: 1, Period: time.Millisecond}, {Rate: 3, Period: 2 * time.Millisecond},
			{Rate: 40, Period: 9 * time.Millisecond}, {Rate: 20, Period: 30 * time.Millisecond},
		} {
			t.Run(fmt.Sprint(a, " ", limit), func(t *testing.T) {
				t.Parallel()
				rdb := testkit.Connect(t, testkit.StartRedis(t))
				limiter := testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a), ginlimit.WithDenyCache(0))
				var admissions []admission
				admitted := 0
				start, err := rdb.Time(t.Context()).Result() // the clock that they go by, which may be set
				require.NoError(t, err)
				for i := range 2000 {
					switch i % 100 {
					case 0:
						time.Sleep(limit.Period)
					case 1:
						time.Sleep(limit.Period * 3 / 4)
					}
					limits := []ginlimit.Limit{limit}
					if i%2 == 1 {
						limits = append(limits, testkit.AmpleWindow)
					}
					asked := time.Now().Round(0) // without the monotonic clock
					r := testkit.Must(limiter.AllowUpTo(t.Context(), "k", 1+i%3, limits...))
					if r.Granted > 0 {
						admissions = append(admissions, admission{asked, time.Now().Round(0), r.Granted})
					}
					require.LessOrEqual(t, r.RetryAfter, limit.Period)
					require.GreaterOrEqual(t, r.Remaining, 0)
					admitted += r.Granted
				}
				end := testkit.Must(rdb.Time(t.Context()).Result())
				windows := int(end.Sub(start)/limit.Period) + 2
				require.LessOrEqual(t, admitted, windows*limit.Rate)
				require.NotZero(t, admitted)
				if a == ginlimit.SlidingWindow {
					requireSliding(t, limit, admissions)
				}
			})
		}
	}
}

package limits_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

const day = 24 * time.Hour

// TestCalendarShareOfAnOutage: a process admits its share of a quota in a period, and no debt
// passes the period's end. When Redis is back, its count of the period is as it was.
func TestCalendarShareOfAnOutage(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) { // from midnight
		l := failingLocal(t, b, ginlimit.WithReplicas(2))
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerCalendar(6, ginlimit.CalendarDay(nil)))
		time.Sleep(day - 10*time.Second)
		asks(t, p, verdict{true, 5, 0})
		loseRedis(t, b, l)
		for range 2 {
			end := time.Now().Truncate(day).Add(day)
			res, err := p.AllowN(t.Context(), "alice", 4)
			require.NoError(t, err)
			require.False(t, res.Allowed, "more than the share")
			require.InDelta(t, time.Until(end), res.RetryAfter, float64(time.Second))
			for left := 2; left >= 0; left-- {
				require.Equal(t, ginlimit.FromLocal, asks(t, p, verdict{true, left, 0}).Source)
			}
			asks(t, p, verdict{false, 0, time.Until(end)})
			time.Sleep(min(20*time.Second, time.Until(end)))
		}
		findRedis(t, b, l)
		require.Equal(t, ginlimit.FromRedis, asks(t, p, verdict{true, 5, 0}).Source)
	})
}

// TestDenyCacheKnowsWhenAPeriodEnds: a denial is remembered for a second, and not into the next
// period.
func TestDenyCacheKnowsWhenAPeriodEnds(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) { // from midnight
		p := testkit.NewPolicy(t, testkit.NewLimiter(t, b.Redis, testkit.RemembersDenials()),
			"api", ginlimit.PerCalendar(1, ginlimit.CalendarDay(nil)))
		time.Sleep(day - 500*time.Millisecond)
		asks(t, p, verdict{true, 0, 0})
		require.Equal(t, ginlimit.FromRedis, asks(t, p, verdict{false, 0, 500 * time.Millisecond}).Source)
		time.Sleep(499 * time.Millisecond)
		require.Equal(t, ginlimit.FromCache, asks(t, p, verdict{false, 0, time.Millisecond}).Source)
		time.Sleep(time.Millisecond)
		require.Equal(t, ginlimit.FromRedis, asks(t, p, verdict{true, 0, 0}).Source)
		require.Equal(t, ginlimit.FromRedis, asks(t, p, verdict{false, 0, day}).Source)
		require.Equal(t, ginlimit.FromCache, asks(t, p, verdict{false, 0, day}).Source)
		time.Sleep(time.Second)
		require.Equal(t, ginlimit.FromRedis, asks(t, p, verdict{false, 0, -1}).Source)
	})
}

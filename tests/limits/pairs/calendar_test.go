package pairs_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

const day = 24 * time.Hour

// TestCalendarWhereverItIsDecided: a quota for days beside one for months, on a server and
// in an outage.
func TestCalendarWhereverItIsDecided(t *testing.T) {
	onEveryPlace(t, func(t *testing.T, p place) { // from the first of January, 2000
		policy := testkit.NewPolicy(t, p.limiter, "api", ginlimit.PerCalendar(2, ginlimit.CalendarDay(nil)),
			ginlimit.PerCalendar(3, ginlimit.CalendarMonth(nil, 3)))
		time.Sleep(day - 10*time.Second)
		p.begin()
		end := time.Now().Truncate(day).Add(day)
		require.Equal(t, p.source, asks(t, policy, verdict{true, 1, 0}).Source)
		asks(t, policy, verdict{true, 0, 0})
		asks(t, policy, verdict{false, 0, time.Until(end)})
		time.Sleep(time.Until(end))
		asks(t, policy, verdict{true, 0, 0})
		asks(t, policy, verdict{false, 0, day}) // by the month
	})
}

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

// TestCalendarQuotaOfAPlan: from the source, and by way of Redis in another process. A changed
// quota keeps what was used.
func TestCalendarQuotaOfAPlan(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) { // from midnight in UTC
		berlin := ginlimit.CalendarDay(testkit.Location(t, "Europe/Berlin"))
		plan, asked := []ginlimit.Limit{ginlimit.PerCalendar(3, berlin),
			ginlimit.PerCalendar(50, ginlimit.CalendarMonth(nil, 15))}, 0
		source := func(context.Context, string) ([]ginlimit.Limit, error) { asked++; return plan, nil }
		process := func() (*ginlimit.Plans, *ginlimit.Policy) {
			l := testkit.NewLimiter(t, b.Connect(t))
			plans, err := l.NewPlans("plans", 48*time.Hour, source)
			require.NoError(t, err)
			return plans, testkit.NewPolicy(t, l, "api", ginlimit.WithLimitFunc(plans.Limits))
		}
		plans, here := process()
		_, elsewhere := process()
		asks(t, here, verdict{true, 2, 0})
		asks(t, elsewhere, verdict{true, 1, 0})
		require.Equal(t, 1, asked, "the other process has the plan from Redis")
		asks(t, elsewhere, verdict{true, 0, 0})
		asks(t, here, verdict{false, 0, 23 * time.Hour}) // midnight in Berlin
		plan = []ginlimit.Limit{ginlimit.PerCalendar(5, berlin)}
		require.NoError(t, plans.Invalidate(t.Context(), "alice"))
		asks(t, here, verdict{true, 1, 0})
		time.Sleep(23 * time.Hour)
		asks(t, here, verdict{true, 4, 0})
		asks(t, elsewhere, verdict{true, 3, 0})
		require.Equal(t, 2, asked)
	})
}

// TestCalendarInADryRun denies nobody, and says when the period ends.
func TestCalendarInADryRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // from midnight
		l, quota := testkit.NewLocal(t), ginlimit.PerCalendar(2, ginlimit.CalendarDay(nil))
		trial := testkit.NewPolicy(t, l, "api", quota, testkit.ByUser(), ginlimit.WithDryRun())
		var found ginlimit.Result
		router := testkit.Serve(func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }, trial.Handler())
		for range 2 {
			for i := range 4 {
				rec := testkit.Get(router, "/", testkit.User("alice"))
				require.Equal(t, http.StatusOK, rec.Code)
				require.Empty(t, rec.Header().Get("Retry-After"))
				require.Equal(t, i < 2, found.Allowed)
			}
			require.Equal(t, day, found.RetryAfter)
			time.Sleep(day)
		}
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

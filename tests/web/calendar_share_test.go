package web_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestACostAboveTheShareOfAQuota waits until the period ends, and each row says so of its own limit.
func TestACostAboveTheShareOfAQuota(t *testing.T) {
	t.Parallel()
	month, day := ginlimit.CalendarMonth(nil, 1), ginlimit.CalendarDay(nil)
	monthly, daily := ginlimit.PerCalendar(5, month), ginlimit.PerCalendar(7, day)
	const toMonth, toDay = 31 * 24 * time.Hour, 24 * time.Hour // a bubble begins with a month
	for name, row := range map[string]struct {
		limits     []ginlimit.Limit
		cost       int
		limit      ginlimit.Limit // of the Result
		retryAfter []time.Duration
	}{
		"one quota":         {[]ginlimit.Limit{monthly}, 4, monthly, []time.Duration{toMonth}},
		"above the quota":   {[]ginlimit.Limit{monthly}, 6, monthly, []time.Duration{ginlimit.Never}},
		"two quotas":        {[]ginlimit.Limit{daily, monthly}, 4, monthly, []time.Duration{toDay, toMonth}},
		"above one of two":  {[]ginlimit.Limit{daily, monthly}, 6, monthly, []time.Duration{toDay, ginlimit.Never}},
		"a burst with room": {[]ginlimit.Limit{monthly, ginlimit.PerHour(100)}, 4, monthly, []time.Duration{toMonth, 0}},
		"a burst that forbids": {[]ginlimit.Limit{monthly, ginlimit.PerHour(3)}, 4, ginlimit.PerHour(3),
			[]time.Duration{toMonth, ginlimit.Never}},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			var rows []ginlimit.Result
			var denied ginlimit.Result
			l := testkit.NewLimiter(t, b.Redis, ginlimit.WithReplicas(5), ginlimit.WithTimeout(50*time.Millisecond),
				ginlimit.WithFailureMode(ginlimit.FailLocal))
			p := testkit.NewPolicy(t, l, "p", ginlimit.WithLimits(row.limits...), testkit.ByUser(),
				ginlimit.WithCost(func(*gin.Context) int { return row.cost }),
				ginlimit.WithDeniedHandler(func(_ *gin.Context, r ginlimit.Result) { denied = r }),
				ginlimit.WithHeaderFunc(func(_ http.Header, all []ginlimit.Result) { rows = all }))
			b.Late.Store(true)
			testkit.Get(testkit.Serve(p.Handler()), "/", testkit.User("u"))
			require.Equal(t, row.limit, denied.Limit)
			require.Len(t, rows, len(row.retryAfter))
			for i, want := range append(row.retryAfter, slices.Max(row.retryAfter)) {
				r := append(rows, denied)[i]
				require.Equal(t, want == ginlimit.Never, r.RetryAfter == ginlimit.Never)
				require.Equal(t, want == ginlimit.Never, r.Cause == ginlimit.CauseNever)
				require.InDelta(t, want, r.RetryAfter, float64(time.Second))
			}
		})
	}
}

package web_test

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestEveryResultIsJSON has an application send each kind of Result.
func TestEveryResultIsJSON(t *testing.T) {
	t.Parallel()
	type options = []ginlimit.PolicyOption
	unnamed, month := time.FixedZone("ours", 3600), ginlimit.CalendarMonth(nil, 1)
	onMiniredis := func(t *testing.T, opts ...ginlimit.LimiterOption) *testkit.Limiter {
		rdb, _ := testkit.NewMiniredis(t)
		return testkit.NewLimiter(t, rdb, append(opts, testkit.TrustsClock())...)
	}
	local := func(t *testing.T, opts ...ginlimit.LimiterOption) *testkit.Limiter {
		return testkit.NewLocal(t, opts...)
	}
	for name, row := range map[string]struct {
		make     func(*testing.T, ...ginlimit.LimiterOption) *testkit.Limiter
		opts     []ginlimit.PolicyOption
		requests int
		want     string // the limit
		back     bool   // it is read as it was written
		cause    ginlimit.Cause
	}{
		"allowed":    {onMiniredis, options{ginlimit.PerHour(5).WithBurst(9)}, 1, "5/h burst 9", true, 0},
		"denied":     {onMiniredis, options{ginlimit.PerHour(1)}, 2, "1/h", true, ginlimit.CauseRate},
		"remembered": {onMiniredis, options{ginlimit.PerHour(1)}, 3, "1/h", true, ginlimit.CauseRate},
		"a window": {local, options{ginlimit.Per(1, 7*time.Hour).WithAlgorithm(ginlimit.SlidingWindow)}, 2,
			"1/7h sliding-window", true, ginlimit.CauseRate},
		"no slot": {onMiniredis, options{ginlimit.PerHour(5), ginlimit.InFlight(2)}, -3, "2 in flight", true,
			ginlimit.CauseInFlight},
		"no slot in the process": {local, options{ginlimit.PerHour(5), ginlimit.InFlight(2)}, -3, "2 in flight", true,
			ginlimit.CauseInFlight},
		"no slot, waited": {local,
			options{ginlimit.PerHour(5), ginlimit.InFlight(1), ginlimit.WithQueue(1, time.Millisecond)},
			-2, "1 in flight", true, ginlimit.CauseInFlight},
		"no slot of a dry run": {local, options{ginlimit.PerHour(5), ginlimit.InFlight(1), ginlimit.WithDryRun()},
			-2, "1 in flight", true, ginlimit.CauseInFlight},
		"slots alone": {local, options{ginlimit.InFlight(2)}, 1, "2 in flight", true, 0},
		"a ban": {local, options{ginlimit.PerHour(1), ginlimit.WithBan(time.Hour, time.Hour)}, 3, "1/h", true,
			ginlimit.CauseBan},
		"a ban alone": {local, options{ginlimit.InFlight(1), ginlimit.WithBan(time.Hour, time.Hour)},
			-3, "1 in flight", true, ginlimit.CauseBan},
		"an address that is denied": {local, options{ginlimit.PerHour(1),
			ginlimit.WithDenyList(netip.MustParsePrefix("0.0.0.0/0"))}, 1, "", true, ginlimit.CauseList}, // its answer is 403
		"an address that is allowed": {local, options{ginlimit.PerHour(1),
			ginlimit.WithAllowList(netip.MustParsePrefix("0.0.0.0/0"))}, 1, "unlimited", true, 0},
		"skipped": {local,
			options{ginlimit.PerHour(1), ginlimit.WithSkip(func(*gin.Context) bool { return true })}, 1, "unlimited", true, 0},
		"unlimited":          {local, options{ginlimit.Unlimited()}, 1, "unlimited", true, 0},
		"prohibited":         {local, options{ginlimit.Prohibited()}, 1, "0/s", true, ginlimit.CauseNever},
		"none a day":         {local, options{ginlimit.PerDay(0)}, 1, "0/d", true, ginlimit.CauseNever},
		"a prohibited quota": {local, options{ginlimit.PerCalendar(0, month)}, 1, "0/month", true, ginlimit.CauseNever},
		"a quota": {local,
			options{ginlimit.PerCalendar(1, ginlimit.CalendarWeek(testkit.Location(t, "Europe/Berlin"), 0))}, 2,
			"1/week from sunday in Europe/Berlin", true, ginlimit.CauseRate},
		"an unnamed zone": {local, options{ginlimit.PerCalendar(1, ginlimit.CalendarMonth(unnamed, 15))}, 2,
			`1/month from 15 in "ours"`, false, ginlimit.CauseRate},
		"a zone named nothing": {local, options{ginlimit.PerCalendar(1, ginlimit.CalendarDay(time.FixedZone("", 60)))}, 2,
			`1/calendar-day in ""`, false, ginlimit.CauseRate},
		"a zone of a name that another has": {local,
			options{ginlimit.PerCalendar(1, ginlimit.CalendarDay(time.FixedZone("CET", 60)))}, 2,
			`1/calendar-day in "CET"`, false, ginlimit.CauseRate},
		"leased": {onMiniredis, options{ginlimit.PerHour(10_000), ginlimit.WithLease(time.Minute)}, 5, "10000/h", true, 0},
		"without Redis": {func(t *testing.T, opts ...ginlimit.LimiterOption) *testkit.Limiter {
			return testkit.WithoutRedis(t, opts...)
		}, options{ginlimit.PerHour(1)}, 2, "1/h", true, ginlimit.CauseRate},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent *ginlimit.Result
			send := func(c *gin.Context, status int, r ginlimit.Result) {
				sent = &r
				c.JSON(status, r)
			}
			p := testkit.NewPolicy(t, row.make(t), "api",
				append([]ginlimit.PolicyOption{testkit.ByUser(),
					ginlimit.WithDeniedHandler(func(c *gin.Context, r ginlimit.Result) {
						send(c, http.StatusTooManyRequests, r)
					})}, row.opts...)...)
			for range -row.requests - 1 {
				slot, err := p.Reserve(t.Context(), "alice", 1)
				require.NoError(t, err)
				defer slot.Release()
			}
			r := testkit.Serve(func(c *gin.Context) {
				if c.Next(); sent == nil {
					found, ok := ginlimit.FromContext(c)
					require.True(t, ok)
					send(c, http.StatusOK, found)
				}
			}, p.Handler())
			var body string
			for range max(1, row.requests) {
				sent = nil
				body = testkit.Get(r, "/", testkit.User("alice")).Body.String()
			}
			require.Equal(t, row.cause, sent.Cause)
			require.Equal(t, row.cause == 0, sent.Allowed)
			text, err := json.Marshal(sent)
			require.NoError(t, err)
			require.Contains(t, body, string(text))
			var fields map[string]any
			require.NoError(t, json.Unmarshal(text, &fields))
			require.Equal(t, row.want, fields["Limit"])
			var back ginlimit.Result
			if err := json.Unmarshal(text, &back); row.back {
				require.NoError(t, err)
				require.Equal(t, *sent, back)
			} else {
				require.ErrorContains(t, err, "unknown time zone")
			}
			require.NotEmpty(t, sent.Limit.String())
			if name == "leased" {
				require.Equal(t, ginlimit.FromLease, sent.Source)
			}
		})
	}
}

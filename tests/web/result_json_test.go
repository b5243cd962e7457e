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
	unnamed := time.FixedZone("ours", 3600)
	onMiniredis := func(t *testing.T, opts ...ginlimit.Option) *ginlimit.Limiter {
		rdb, _ := testkit.NewMiniredis(t)
		return testkit.NewLimiter(t, rdb, append(opts, testkit.TrustsClock())...)
	}
	local := func(t *testing.T, opts ...ginlimit.Option) *ginlimit.Limiter { return testkit.NewLocal(t, opts...) }
	for name, row := range map[string]struct {
		limit    ginlimit.Limit
		make     func(*testing.T, ...ginlimit.Option) *ginlimit.Limiter
		opts     []ginlimit.Option
		requests int
		want     string // the limit
		back     bool   // it is read as it was written
		allowed  bool
	}{
		"allowed":    {ginlimit.PerHour(5).WithBurst(9), onMiniredis, nil, 1, "5/h burst 9", true, true},
		"denied":     {ginlimit.PerHour(1), onMiniredis, nil, 2, "1/h", true, false},
		"remembered": {ginlimit.PerHour(1), onMiniredis, nil, 3, "1/h", true, false},
		"a window": {ginlimit.Limit{Rate: 1, Period: 7 * time.Hour}, local,
			[]ginlimit.Option{ginlimit.WithAlgorithm(ginlimit.SlidingWindow)}, 2, "1/7h", true, false},
		"no slot": {ginlimit.PerHour(5), onMiniredis,
			[]ginlimit.Option{ginlimit.WithConcurrency(2)}, -3, "2 in flight", true, false},
		"no slot in the process": {ginlimit.PerHour(5), local,
			[]ginlimit.Option{ginlimit.WithConcurrency(2)}, -3, "2 in flight", true, false},
		"no slot, waited": {ginlimit.PerHour(5), local,
			[]ginlimit.Option{ginlimit.WithConcurrency(1), ginlimit.WithQueue(1, time.Millisecond)},
			-2, "1 in flight", true, false},
		"no slot of a dry run": {ginlimit.PerHour(5), local,
			[]ginlimit.Option{ginlimit.WithConcurrency(1), ginlimit.WithDryRun()}, -2, "1 in flight", true, false},
		"slots alone": {ginlimit.Limit{Rate: -1}, local,
			[]ginlimit.Option{ginlimit.WithConcurrency(2)}, 1, "2 in flight", true, true},
		"a ban": {ginlimit.PerHour(1), local,
			[]ginlimit.Option{ginlimit.WithBan(time.Hour, time.Hour)}, 3, "1/h", true, false},
		"a ban alone": {ginlimit.Limit{Rate: -1}, local,
			[]ginlimit.Option{ginlimit.WithBan(time.Hour, time.Hour), ginlimit.WithConcurrency(1)},
			-3, "1 in flight", true, false},
		"an address that is denied": {ginlimit.PerHour(1), local, []ginlimit.Option{
			ginlimit.WithDenyList(netip.MustParsePrefix("0.0.0.0/0"))}, 1, "", true, false}, // its answer is 403
		"an address that is allowed": {ginlimit.PerHour(1), local, []ginlimit.Option{
			ginlimit.WithAllowList(netip.MustParsePrefix("0.0.0.0/0"))}, 1, "-1/0s", true, true},
		"skipped": {ginlimit.PerHour(1), local,
			[]ginlimit.Option{ginlimit.WithSkip(func(*gin.Context) bool { return true })}, 1, "-1/0s", true, true},
		"unlimited":  {ginlimit.PerMinute(-1), local, nil, 1, "-1/m", true, true},
		"prohibited": {ginlimit.PerDay(0), local, nil, 1, "0/d", true, false},
		"a prohibited quota": {ginlimit.PerCalendar(0, ginlimit.CalendarMonth(nil, 1)),
			local, nil, 1, "0/month", true, false},
		"a quota": {ginlimit.PerCalendar(1,
			ginlimit.CalendarWeek(testkit.Location(t, "Europe/Berlin"), 0)), local, nil, 2,
			"1/week from sunday in Europe/Berlin", true, false},
		"an unnamed zone": {ginlimit.PerCalendar(1, ginlimit.CalendarMonth(unnamed, 15)),
			local, nil, 2, `1/month from 15 in "ours"`, false, false},
		"a zone named nothing": {ginlimit.PerCalendar(1, ginlimit.CalendarDay(time.FixedZone("", 60))),
			local, nil, 2, `1/calendar-day in ""`, false, false},
		"a zone of a name that another has": {ginlimit.PerCalendar(1,
			ginlimit.CalendarDay(time.FixedZone("CET", 60))), local, nil, 2,
			`1/calendar-day in "CET"`, false, false},
		"leased": {ginlimit.PerHour(10_000), onMiniredis,
			[]ginlimit.Option{ginlimit.WithLease(time.Minute)}, 4, "10000/h", true, true},
		"without Redis": {ginlimit.PerHour(1), func(t *testing.T, opts ...ginlimit.Option) *ginlimit.Limiter {
			return testkit.WithoutRedis(t, opts...)
		}, nil, 2, "1/h", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent *ginlimit.Result
			send := func(c *gin.Context, status int, r ginlimit.Result) {
				sent = &r
				c.JSON(status, r)
			}
			p := testkit.NewPolicy(t, row.make(t), row.limit,
				append([]ginlimit.Option{testkit.ByUser(), ginlimit.WithName("api"),
					ginlimit.WithDeniedHandler(func(c *gin.Context, r ginlimit.Result) {
						send(c, http.StatusTooManyRequests, r)
					})}, row.opts...)...)
			for range -row.requests - 1 {
				slot, err := p.Acquire(t.Context(), "alice")
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
			require.Equal(t, row.allowed, sent.Allowed)
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

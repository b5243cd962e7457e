package web_test

import (
	"cmp"
	"encoding/json"
	"math"
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
		return testkit.NewLimiter(t, rdb, append(opts, testkit.RemembersDenials())...)
	}
	local := func(t *testing.T, opts ...ginlimit.LimiterOption) *testkit.Limiter {
		return testkit.NewLocal(t, opts...)
	}
	for name, row := range map[string]struct {
		make     func(*testing.T, ...ginlimit.LimiterOption) *testkit.Limiter
		opts     []ginlimit.PolicyOption
		requests int
		want     string // the limit
		cause    ginlimit.Cause
	}{
		"allowed":    {onMiniredis, options{ginlimit.PerHour(5).WithBurst(9)}, 1, "5/h burst 9", 0},
		"denied":     {onMiniredis, options{ginlimit.PerHour(1)}, 2, "1/h", ginlimit.CauseRate},
		"remembered": {onMiniredis, options{ginlimit.PerHour(1)}, 3, "1/h", ginlimit.CauseRate},
		"a window": {local, options{ginlimit.Per(1, 7*time.Hour).WithAlgorithm(ginlimit.SlidingWindow)}, 2,
			"1/7h sliding-window", ginlimit.CauseRate},
		"no slot": {onMiniredis, options{ginlimit.PerHour(5), ginlimit.InFlight(2)}, -3, "2 in flight",
			ginlimit.CauseInFlight},
		"no slot in the process": {local, options{ginlimit.PerHour(5), ginlimit.InFlight(2)}, -3, "2 in flight",
			ginlimit.CauseInFlight},
		"no slot, waited": {local,
			options{ginlimit.PerHour(5), ginlimit.InFlight(1), ginlimit.WithQueue(1, time.Millisecond)},
			-2, "1 in flight", ginlimit.CauseInFlight},
		"no slot of a dry run": {local, options{ginlimit.PerHour(5), ginlimit.InFlight(1), ginlimit.WithDryRun()},
			-2, "1 in flight", ginlimit.CauseInFlight},
		"slots alone": {local, options{ginlimit.InFlight(2)}, 1, "2 in flight", 0},
		"a ban": {local, options{ginlimit.PerHour(1), ginlimit.WithBan(time.Hour, time.Hour)}, 3, "1/h",
			ginlimit.CauseBan},
		"a ban alone": {local, options{ginlimit.InFlight(1), ginlimit.WithBan(time.Hour, time.Hour)},
			-3, "1 in flight", ginlimit.CauseBan},
		"an address that is denied": {local, options{ginlimit.PerHour(1),
			ginlimit.WithDenyList(netip.MustParsePrefix("0.0.0.0/0"))}, 1, "", ginlimit.CauseList}, // its answer is 403
		"an address that is allowed": {local, options{ginlimit.PerHour(1),
			ginlimit.WithAllowList(netip.MustParsePrefix("0.0.0.0/0"))}, 1, "unlimited", 0},
		"skipped": {local,
			options{ginlimit.PerHour(1), ginlimit.WithSkip(func(*gin.Context) bool { return true })}, 1, "unlimited", 0},
		"unlimited":          {local, options{ginlimit.Unlimited()}, 1, "unlimited", 0},
		"prohibited":         {local, options{ginlimit.Prohibited()}, 1, "0/s", ginlimit.CauseNever},
		"none a day":         {local, options{ginlimit.PerDay(0)}, 1, "0/d", ginlimit.CauseNever},
		"a prohibited quota": {local, options{ginlimit.PerCalendar(0, month)}, 1, "0/month", ginlimit.CauseNever},
		"a quota": {local,
			options{ginlimit.PerCalendar(1, ginlimit.CalendarWeek(testkit.Location(t, "Europe/Berlin"), 0))}, 2,
			"1/week from sunday in Europe/Berlin", ginlimit.CauseRate},
		"an unnamed zone": {local, options{ginlimit.PerCalendar(1, ginlimit.CalendarMonth(unnamed, 15))}, 2,
			`1/month from 15 in "ours"`, ginlimit.CauseRate},
		"a zone named nothing": {local, options{ginlimit.PerCalendar(1, ginlimit.CalendarDay(time.FixedZone("", 60)))}, 2,
			`1/calendar-day in ""`, ginlimit.CauseRate},
		"a zone of a name that another has": {local,
			options{ginlimit.PerCalendar(1, ginlimit.CalendarDay(time.FixedZone("CET", 60)))}, 2,
			`1/calendar-day in "CET"`, ginlimit.CauseRate},
		"leased": {onMiniredis, options{ginlimit.PerHour(10_000), ginlimit.WithLease(time.Minute)}, 5, "10000/h", 0},
		"without Redis": {func(t *testing.T, opts ...ginlimit.LimiterOption) *testkit.Limiter {
			return testkit.WithoutRedis(t, opts...)
		}, options{ginlimit.PerHour(1)}, 2, "1/h", ginlimit.CauseRate},
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
			require.Equal(t, row.want, fields["limit"])
			require.Equal(t, sent.Source.String(), fields["source"])
			require.Equal(t, sent.Cause.String(), cmp.Or(fields["cause"], any("")))
			require.NotEmpty(t, sent.Limit.String())
			if name == "leased" {
				require.Equal(t, ginlimit.FromLease, sent.Source)
			}
		})
	}
}

// TestResultAsJSON, to the byte.
func TestResultAsJSON(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]ginlimit.Result{
		`{"allowed":true,"granted":2,"limit":"5/h burst 9","name":"api","remaining":7,"retry_after":0,` +
			`"reset_after":1440,"source":"redis"}`: {
			Allowed: true, Granted: 2, Limit: ginlimit.PerHour(5).WithBurst(9), Name: "api", Remaining: 7,
			ResetAfter: 24 * time.Minute,
		},
		`{"allowed":false,"granted":0,"limit":"2 in flight","name":"api-c","remaining":0,"retry_after":1.5,` +
			`"reset_after":0.012,"source":"policy","cause":"queue_full"}`: {
			Limit: ginlimit.InFlight(2), Name: "api-c", RetryAfter: 1500 * time.Millisecond,
			ResetAfter: 12 * time.Millisecond, Source: ginlimit.FromPolicy, Cause: ginlimit.CauseQueueFull,
		},
		`{"allowed":true,"granted":0,"limit":"unlimited","name":"a\"b","remaining":null,"retry_after":0,` +
			`"reset_after":0,"source":"policy"}`: {
			Allowed: true, Limit: ginlimit.Unlimited(), Name: `a"b`, Remaining: math.MaxInt, Source: ginlimit.FromPolicy,
		},
		`{"allowed":false,"granted":0,"limit":"","name":"api","remaining":0,"retry_after":null,` +
			`"reset_after":0,"source":"policy","cause":"list"}`: {
			Name: "api", RetryAfter: -1, Source: ginlimit.FromPolicy, Cause: ginlimit.CauseList,
		},
	} {
		text, err := json.Marshal(r)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
		text, err = json.Marshal([]*ginlimit.Result{&r})
		require.NoError(t, err)
		require.Equal(t, "["+want+"]", string(text))
	}
}

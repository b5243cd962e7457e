package limits_test

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestCalendarText is read and written as it is.
func TestCalendarText(t *testing.T) {
	t.Parallel()
	berlin, auckland := testkit.Location(t, "Europe/Berlin"), testkit.Location(t, "Pacific/Auckland")
	for text, want := range map[string]ginlimit.Calendar{
		"500/calendar-day":                         ginlimit.CalendarDay(nil),
		"500/calendar-day in Europe/Berlin":        ginlimit.CalendarDay(berlin),
		"500/week":                                 ginlimit.CalendarWeek(time.UTC, time.Monday),
		"500/week from sunday":                     ginlimit.CalendarWeek(nil, time.Sunday),
		"500/week from friday in Pacific/Auckland": ginlimit.CalendarWeek(auckland, time.Friday),
		"500/month":                                ginlimit.CalendarMonth(nil, 1),
		"500/month from 31":                        ginlimit.CalendarMonth(nil, 31),
		"500/month from 15 in Europe/Berlin":       ginlimit.CalendarMonth(berlin, 15),
	} {
		got := testkit.Must(ginlimit.ParseLimit(text))
		require.Equal(t, ginlimit.PerCalendar(500, want), got)
		require.True(t, ginlimit.PerCalendar(500, want) == got, "comparable: %s", text)
		require.Equal(t, text, got.String())

		encoded := testkit.Must(json.Marshal(map[string]ginlimit.Limit{"l": got}))
		var decoded map[string]ginlimit.Limit
		require.NoError(t, json.Unmarshal(encoded, &decoded))
		require.Equal(t, got, decoded["l"])
	}
	for text, want := range map[string]string{
		" 500/month   in  Europe/Berlin ": "500/month in Europe/Berlin",
		"500/month from 1":                "500/month",
		"500/month from 07":               "500/month from 7",
		"500/week from monday in UTC":     "500/week",
		"0/month":                         "0/month",
		"-1/month":                        "-1/month",
	} {
		got, err := ginlimit.ParseLimit(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got.String())
	}
	require.Equal(t, "none", ginlimit.Calendar{}.String())
}

// TestBadCalendarTextIsAnError that says what is wanted.
func TestBadCalendarTextIsAnError(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"5/month from 0":                "1 to 31",
		"5/month from 32":               "1 to 31",
		"5/month from -1":               "1 to 31",
		"5/month from monday":           "1 to 31",
		"5/week from 1":                 "weekday",
		"5/week from Monday":            "weekday",
		"5/calendar-day from 1":         "only weeks and months",
		"5/month in Atlantis":           "unknown time zone",
		"5/month in ../../etc/passwd":   "unknown time zone",
		"5/month in UTC from 3":         "in this order",
		"5/month from 3 from 4":         "in this order",
		"5/month burst 3":               "no burst",
		"5/m from 3":                    "nothing else a first day",
		"5/m in UTC":                    "nothing else a first day",
		"5/month from":                  "want",
		"5/month of":                    "want",
		"5/month of 3":                  "in this order",
		"5/year":                        "period",
		"5/Month":                       "period",
		"9007199254740993/month":        "too large",
		"99999999999999999999999/month": "whole number",
	} {
		_, err := ginlimit.ParseLimit(text)
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument, text)
		require.ErrorContains(t, err, want, text)
	}
}

// TestBadCalendarIsAnError wherever a limit is given.
func TestBadCalendarIsAnError(t *testing.T) {
	t.Parallel()
	month := ginlimit.CalendarMonth(nil, 1)
	for name, limit := range map[string]ginlimit.Limit{
		"day 0":            ginlimit.PerCalendar(5, ginlimit.CalendarMonth(nil, 0)),
		"day 32":           ginlimit.PerCalendar(5, ginlimit.CalendarMonth(nil, 32)),
		"weekday 7":        ginlimit.PerCalendar(5, ginlimit.CalendarWeek(nil, 7)),
		"weekday -1":       ginlimit.PerCalendar(5, ginlimit.CalendarWeek(nil, -1)),
		"a burst":          ginlimit.PerCalendar(5, month).WithBurst(9),
		"its own burst":    ginlimit.PerCalendar(5, month).WithBurst(5),
		"a negative burst": ginlimit.PerCalendar(5, month).WithBurst(-1),
		"a period":         {Rate: 5, Period: time.Hour, Calendar: month},
		"no calendar":      ginlimit.PerCalendar(5, ginlimit.Calendar{}),
		"nothing":          ginlimit.PerCalendar(0, ginlimit.Calendar{}),
		"unlimited, day 0": ginlimit.PerCalendar(-1, ginlimit.CalendarMonth(nil, 0)),
	} {
		_, err := testkit.NewLocal(t).Allow(t.Context(), "k", limit)
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument, name)
		_, err = testkit.NewLocal(t).Policy("test", limit)
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument, name)
	}
	l := testkit.NewLocal(t)
	_, err := l.Allow(t.Context(), "k", ginlimit.PerCalendar(5, month), ginlimit.PerCalendar(6, month))
	require.ErrorContains(t, err, "same period")
	_, err = l.Allow(t.Context(), "k", ginlimit.PerCalendar(5, month),
		ginlimit.PerCalendar(6, ginlimit.CalendarMonth(nil, 2)), ginlimit.PerDay(6))
	require.NoError(t, err)
	zone := func() *time.Location { return time.FixedZone("ours", 3600) } // another pointer each time
	_, err = l.Allow(t.Context(), "k", ginlimit.PerCalendar(5, ginlimit.CalendarDay(zone())),
		ginlimit.PerCalendar(6, ginlimit.CalendarDay(zone())))
	require.ErrorContains(t, err, "same period")
	nameless := ginlimit.PerCalendar(5, ginlimit.CalendarDay(time.FixedZone("ours", 3600)))
	_, err = l.Allow(t.Context(), "k", nameless)
	require.NoError(t, err)
	text, err := nameless.MarshalText()
	require.NoError(t, err)
	require.Equal(t, `5/calendar-day in "ours"`, string(text))
	text, err = ginlimit.PerCalendar(5, ginlimit.CalendarDay(time.FixedZone("Europe/Berlin", 0))).MarshalText()
	require.NoError(t, err)
	require.ErrorContains(t, new(ginlimit.Limit).UnmarshalText(text), "unknown time zone",
		"it is not the zone of that name")
	err = l.Block(t.Context(), "k", 40*24*time.Hour, ginlimit.PerCalendar(5, ginlimit.CalendarDay(nil)))
	require.ErrorContains(t, err, "too long")
	require.NoError(t, l.Block(t.Context(), "k", 31*24*time.Hour, ginlimit.PerCalendar(5, ginlimit.CalendarDay(nil))))
}

// TestCalendarInTheFields: w is the length of the period that it is, and Retry-After its end.
func TestCalendarInTheFields(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) { // from the first of January, 2000, in UTC
		berlin := testkit.Location(t, "Europe/Berlin")
		router := gin.New()
		limiter := testkit.NewLocal(t, ginlimit.WithHeaders(ginlimit.XRateLimit|ginlimit.RateLimitDraft))
		router.Use(ginlimit.AllOf(
			limiter.Must("plan", ginlimit.PerCalendar(2, ginlimit.CalendarMonth(berlin, 1)), ginlimit.PerSecond(5)),
			limiter.Must("all", testkit.All(), ginlimit.PerCalendar(90, ginlimit.CalendarDay(nil)))))
		router.GET("/", testkit.OK)
		fields := func(code int, policy, limit, retry string) {
			t.Helper()
			rec := testkit.Get(router, "/")
			require.Equal(t, code, rec.Code)
			require.Equal(t, policy, rec.Header().Get("RateLimit-Policy"))
			require.Equal(t, limit, rec.Header().Get("RateLimit"))
			require.Equal(t, retry, rec.Header().Get("Retry-After"))
		}
		time.Sleep(500 * time.Millisecond)
		january := `"plan-month-in-Europe/Berlin";q=2;w=2678400, "plan-s";q=5;w=1, "all";q=90;w=86400`
		fields(http.StatusOK, january,
			`"plan-month-in-Europe/Berlin";r=1;t=2674800, "plan-s";r=4;t=1, "all";r=89;t=86400`, "")
		fields(http.StatusOK, january,
			`"plan-month-in-Europe/Berlin";r=0;t=2674800, "plan-s";r=3;t=1, "all";r=88;t=86400`, "")
		fields(http.StatusTooManyRequests, january,
			`"plan-month-in-Europe/Berlin";r=0;t=2674800, "plan-s";r=3, "all";r=88`, "2674800")
		time.Sleep(2674800*time.Second - 501*time.Millisecond)
		fields(http.StatusTooManyRequests, january, `"plan-month-in-Europe/Berlin";r=0;t=1, "plan-s";r=5, "all";r=90`, "1")
		time.Sleep(time.Millisecond)
		february := `"plan-month-in-Europe/Berlin";q=2;w=2505600, "plan-s";q=5;w=1, "all";q=90;w=86400`
		fields(http.StatusOK, february,
			`"plan-month-in-Europe/Berlin";r=1;t=2505600, "plan-s";r=4;t=1, "all";r=89;t=3600`, "")
		time.Sleep(29 * 24 * time.Hour)
		march := `"plan-month-in-Europe/Berlin";q=2;w=2674800, "plan-s";q=5;w=1, "all";q=90;w=86400`
		fields(http.StatusOK, march, `"plan-month-in-Europe/Berlin";r=1;t=2674800, "plan-s";r=4;t=1, "all";r=89;t=3600`, "")
	})
}

// TestWhoWaitsOverMidnightKeepsItsTurn: then the first is served, and of the others only the next asks Redis.
func TestWhoWaitsOverMidnightKeepsItsTurn(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var calls atomic.Int64
		b.Redis.AddHook(testkit.EveryScript(func(send func() error) error { calls.Add(1); return send() }))
		p := testkit.NewPolicy(t, testkit.NewLimiter(t, b.Redis), "test", ginlimit.PerCalendar(1, ginlimit.CalendarDay(nil)))
		midnight := time.Now().Truncate(24 * time.Hour).Add(24 * time.Hour)
		time.Sleep(time.Until(midnight) - time.Minute)
		testkit.Must(p.Allow(t.Context(), "k"))
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var served []int
		for caller := range 20 {
			time.Sleep(time.Millisecond)
			all.Go(func() {
				if p.Wait(ctx, "k") == nil {
					served = append(served, caller)
				}
			})
		}
		time.Sleep(time.Until(midnight) - time.Millisecond)
		before := calls.Load()
		time.Sleep(time.Second)
		require.EqualValues(t, 2, calls.Load()-before, "the first and the second")
		cancel()
		all.Wait()
		require.Equal(t, []int{0}, served)
	})
}

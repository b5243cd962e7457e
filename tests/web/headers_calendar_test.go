package web_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// A bubble begins with January 2000, and February has 29 days then.
const (
	january  = 31 * 24 * time.Hour
	february = 29 * 24 * time.Hour
)

// TestHeadersAreThoseOfTheDecision, though a month ends before they are written.
func TestHeadersAreThoseOfTheDecision(t *testing.T) {
	t.Parallel()
	month := ginlimit.PerCalendar(5, ginlimit.CalendarMonth(nil, 1))
	synctest.Test(t, func(t *testing.T) {
		end := false
		l := testkit.NewLocal(t, ginlimit.WithHeaders(ginlimit.RateLimitDraft), testkit.ByUser(),
			ginlimit.WithObserver(func(_ context.Context, e ginlimit.Event) {
				if end && e.Name == "second" { // the decision is made
					time.Sleep(time.Second)
				}
			}))
		r := testkit.Serve(l.Handler("first", month), ginlimit.AllOf(l.Must("second", month), l.Must("all", month)))
		check := func(header http.Header, windows string) {
			require.Equal(t, strings.ReplaceAll(`"first";q=5;W, "second";q=5;W, "all";q=5;W`,
				"W", windows), header.Get("RateLimit-Policy"))
			for _, name := range []string{`"first";`, `"second";`} {
				require.Equal(t, 1, strings.Count(header.Get("RateLimit"), name), header.Get("RateLimit"))
			}
		}
		check(testkit.Get(r, "/", testkit.User("alice")).Header(), "w=2678400")
		time.Sleep(january - time.Second/2)
		end = true
		check(testkit.Get(r, "/", testkit.User("alice")).Header(), "w=2678400")
		require.Equal(t, time.February, time.Now().UTC().Month())
		end = false
		check(testkit.Get(r, "/", testkit.User("alice")).Header(), "w=2505600")
	})
}

// TestWindowOfAProhibitedQuotaIsThatOfItsMonth, whenever the process has begun.
func TestWindowOfAProhibitedQuotaIsThatOfItsMonth(t *testing.T) {
	t.Parallel()
	month := ginlimit.CalendarMonth(nil, 1)
	for name, row := range map[string]struct {
		opts    []ginlimit.PolicyOption
		windows [3]string // in January, February and March
	}{
		"prohibited": {[]ginlimit.PolicyOption{ginlimit.PerCalendar(0, month)},
			[3]string{"w=2678400", "w=2505600", "w=2678400"}},
		"beside a period": {[]ginlimit.PolicyOption{ginlimit.PerCalendar(0, month), ginlimit.PerHour(3)},
			[3]string{"w=2678400", "w=2505600", "w=2678400"}},
		"beside a shorter quota": {
			[]ginlimit.PolicyOption{ginlimit.PerCalendar(0, month), ginlimit.PerCalendar(5, ginlimit.CalendarDay(nil))},
			[3]string{"w=2678400", "w=2505600", "w=2678400"}},
		"of a client": {[]ginlimit.PolicyOption{testkit.LimitsFrom(ginlimit.PerCalendar(0, month))},
			[3]string{"w=2678400", "w=2505600", "w=2678400"}},
		"a quota that a floor takes": {
			[]ginlimit.PolicyOption{ginlimit.WithFloor(3), testkit.LimitsFrom(ginlimit.PerCalendar(3, month))},
			[3]string{"w=2678400", "w=2505600", "w=2678400"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := testkit.Serve(testkit.NewPolicy(t, testkit.NewLocal(t), "api",
					append([]ginlimit.PolicyOption{testkit.ByUser(), ginlimit.WithHeaders(ginlimit.RateLimitDraft)},
						row.opts...)...).Handler())
				for i, passed := range []time.Duration{0, january, february} {
					time.Sleep(passed)
					for range 2 { // the second one finds what the first has made
						rec := testkit.Get(r, "/", testkit.User("alice"))
						require.Equal(t, http.StatusTooManyRequests, rec.Code)
						require.Contains(t, rec.Header().Get("RateLimit-Policy"), ";q=0;"+row.windows[i])
					}
				}
			})
		})
	}
}

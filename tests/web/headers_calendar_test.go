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

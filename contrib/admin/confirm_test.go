package admin_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

var shared = ginlimit.WithShares(func(c *gin.Context) (string, int) { return c.GetHeader("Tenant"), 1 })

// TestWhatCannotBeIsNotConfirmed: nobody is asked to confirm a change that is refused afterwards.
func TestWhatCannotBeIsNotConfirmed(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	s.policy("floor", ginlimit.PerHour(100), ginlimit.WithFloor(30), byX)
	s.policy("slots", ginlimit.InFlight(2), byX)
	s.policy("rate", ginlimit.PerHour(10), byX)
	s.policy("days", ginlimit.PerCalendar(10, ginlimit.CalendarDay(time.UTC)), byX)
	for text, form := range map[string][]string{
		"WithFloor(30) leaves nothing of 20/h":               {"policy", "floor", "do", "override", "limits", "20/h", "ends", "2h"},
		"limits requests in flight alone, and has no blocks": {"policy", "slots", "do", "block", "for", "1h"},
		"a block of 1560h0m0s is too long under":             {"policy", "days", "do", "block", "for", "65d"},
		"is too long: at most 36500d":                        {"policy", "rate", "do", "block", "for", "40000d"},
		"at most 366 days ahead":                             {"policy", "rate", "do", "override", "limits", "1/h", "ends", "900d"},
		"without its other limits": {"policy", "rate", "do", "override", "limits", "2 in flight", "ends",
			"2h"},
	} {
		for _, path := range []string{"confirm", "change"} {
			got := s.post(path, append(form, "client", "a")...)
			require.Equal(t, http.StatusBadRequest, got.code, "%s: %s", text, got.text)
			require.Contains(t, got.text, text)
		}
	}
	got := s.post("confirm", "policy", "floor", "all", "yes", "do", "override", "limits", "20/h", "ends", "2h")
	require.Equal(t, http.StatusBadRequest, got.code)
	require.Empty(t, testkit.Must(s.limiter.Overrides(t.Context())), "nothing is done before it is confirmed")
	page := s.ok("client", "policy", "slots", "client", "a")
	require.Contains(t, page, "limits requests in flight alone, and has no blocks")
	require.NotContains(t, page, `value="block"`)
}

// TestShares: tenants share a limit, which has no blocks. All else works.
func TestShares(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	upstream := testkit.Must(s.limiter.Policy("upstream", ginlimit.PerHour(100), shared, byX))
	testkit.Must(upstream.Share("a tenant", 1).Allow(t.Context(), "x"))
	testkit.Must(s.limiter.Policies(t.Context()))
	of := []string{"policy", "upstream", "client", "x", "tenant", "a tenant"}
	page := s.ok("client", of...)
	before := testkit.Must(upstream.Share("a tenant", 1).Peek(t.Context(), "x")).Remaining
	require.Contains(t, page, fmt.Sprintf("%d of 100 left", before))
	require.Contains(t, page, "is shared by tenants, and has no blocks; an override with the limit prohibited")
	require.NotContains(t, page, `value="block"`)
	got := s.post("confirm", append(of, "do", "block", "for", "1h")...)
	require.Equal(t, http.StatusBadRequest, got.code)
	require.Contains(t, got.text, "is shared by tenants, and has no blocks")
	got = s.post("confirm", append(of, "do", "override", "limits", "9/h, 9/m", "ends", "1h")...)
	require.Equal(t, http.StatusBadRequest, got.code, got.text)
	_, page = s.confirmed(append(of, "do", "reset")...)
	require.Contains(t, page, fmt.Sprintf("%d of 100 left",
		testkit.Must(upstream.Share("a tenant", 1).Peek(t.Context(), "x")).Remaining))
	require.Greater(t, testkit.Must(upstream.Share("a tenant", 1).Peek(t.Context(), "x")).Remaining, before)
	_, page = s.confirmed(append(of, "do", "override", "limits", "900/h", "ends", "1h")...)
	require.Contains(t, page, "of 900 left")
}

// TestWhatAConfirmationSays, beside what it changes: who is denied, and what stands afterwards.
func TestWhatAConfirmationSays(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	api := s.policy("api", ginlimit.PerMinute(60), ginlimit.InFlight(2), byX)
	all := []string{"policy", "api", "all", "yes", "do", "override", "ends", "2h", "limits"}
	one := []string{"policy", "api", "client", "a", "do", "override", "ends", "2h", "limits"}
	require.Contains(t, s.ok("confirm", append(all, "0/m")...), "This denies everybody everything.")
	require.Contains(t, s.ok("confirm", append(one, "0/m, 3 in flight")...), "This denies it everything.")
	page := s.ok("confirm", append(one, "600/m")...)
	require.Regexp(t, `to 600/m instead of 60/m, until [^.]*\. It keeps 2 in flight\.`, page)
	require.NotContains(t, page, "denie")
	require.NotContains(t, page, "will not hold")
	require.Contains(t, s.ok("confirm", append(one, "600/m, 3 in flight")...), "instead of 60/m, 2 in flight, until")
	s.policy("slots", ginlimit.InFlight(3), byX)
	slots := append([]string{"policy", "slots"}, one[2:]...)
	require.Regexp(t, `to 1/m instead of no rate, until [^.]*\. It keeps 3 in flight\.`,
		s.ok("confirm", append(slots, "1/m")...))
	require.Contains(t, s.ok("confirm", append(slots, "4 in flight")...), "to 4 in flight instead of 3 in flight, until")
	s.policy("quota", ginlimit.PerMinute(60), ginlimit.PerHour(900), byX)
	require.Regexp(t, `instead of 60/m, 900/h, until [^.]*\. An override replaces all limits: 900/h will not hold\.`,
		s.ok("confirm", append([]string{"policy", "quota"}, append(one[2:], "600/m")...)...))

	require.NoError(t, api.Block(t.Context(), "a", 3*time.Hour))
	page = s.ok("confirm", append(one, "600/h")...)
	require.Regexp(t, `It is blocked until 20[-0-9: ]*UTC, but let in while the override holds, and denied again when it `+
		`ends\.`, page)
	require.Contains(t, s.ok("confirm", append(one, "600/m")...), "It stays denied until")
	one[7] = "9h"
	require.Contains(t, s.ok("confirm", append(one, "600/h")...), ", but let in while the override holds.")

	s.confirmed(append(all, "600/h")...)
	require.Contains(t, s.ok("confirm", append(all, "900/h")...), "instead of 600/h, of an override, until")
	page = s.ok("confirm", "policy", "api", "all", "yes", "do", "end")
	require.Regexp(t, `all clients: 600/h until 20\d\d-\d\d-\d\d \d\d:\d\d UTC\.`, page)
	require.Regexp(t, `<small class="tag">600/h for all clients until 20[-0-9: ]*UTC</small>`, s.get(""))
	require.Contains(t, s.get("policies"), "600/h for all clients until")
}

// TestAPageReadsItsOwnOverrides: of thousands it reads what it shows, so that one that nobody can read is no fault of
// other pages.
func TestAPageReadsItsOwnOverrides(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	s.policy("api", ginlimit.PerHour(10), byX)
	s.policy("bad", ginlimit.PerHour(10), byX)
	s.confirmed("policy", "api", "client", "a", "do", "override", "limits", "7/h", "ends", "1h")
	for _, format := range []string{`{"v":1,"policy":"bad","client":"b","limits":"?","until":%d}`, `{"v":2,"until":%d}`} {
		text := fmt.Sprintf(format, time.Now().Add(2*time.Hour).UnixMilli())
		require.NoError(t, rdb.HSet(t.Context(), "ginlimit:{overrides}", "bad|b", text).Err())
		require.Contains(t, s.ok("client", "policy", "api", "client", "a"), "Override:</b> 7/h until")
		require.Contains(t, s.get("policy?name=api"), "<small>1</small>")
		require.Contains(t, s.get("overrides?policy=api"), "7/h")
		require.Equal(t, http.StatusServiceUnavailable, s.ask("GET", "overrides", nil).code)
		require.Equal(t, http.StatusServiceUnavailable, s.post("client", "policy", "bad", "client", "b").code)
	}
}

// TestAClientInARollout: the page says whose limits it shows, and what others serve.
func TestAClientInARollout(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	s.policy("api", ginlimit.PerMinute(60), ginlimit.WithFloor(7), byX)
	require.Contains(t, s.get(""), `<small class="tag">WithFloor(7)</small>`)
	of := []string{"policy", "api", "client", "a"}
	require.NotContains(t, s.ok("client", of...), "variants")
	other := newSite(t, testkit.Connect(t, rdb.Options().Addr))
	other.policy("api", ginlimit.PerHour(1), byX)
	require.Regexp(t, `Processes serve 2 variants of the policy: these are the limits of (60/m WithFloor\(7\)|1/h) `+
		`\(1 process\); others serve (60/m WithFloor\(7\)|1/h) \(1 process\)\.`, s.ok("client", of...))
	require.Contains(t, s.ok("confirm", append(of, "do", "block", "for", "1h")...),
		"Processes that serve limits of another period do not know it.")
	require.Regexp(t, "instead of (60/m or 1/h|1/h or 60/m), until",
		s.ok("confirm", append(of, "do", "override", "limits", "9/m", "ends", "1h")...))
}

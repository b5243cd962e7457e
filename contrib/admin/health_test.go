package admin_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestHealthSaysThatDataAreLost, when, and how many overrides.
func TestHealthSaysThatDataAreLost(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	api := s.policy("api", ginlimit.PerHour(10), byX)
	require.NoError(t, s.limiter.OverrideAll(t.Context(), override("api", "a", ginlimit.PerHour(20)),
		override("api", "b", ginlimit.PerHour(20))))
	require.True(t, testkit.BecomesTrue(nil, func() bool { return s.limiter.Stats().Overrides == 2 }))
	require.NotContains(t, s.get("health"), "lost")
	require.NoError(t, rdb.FlushAll(t.Context()).Err())
	page := ""
	require.True(t, testkit.BecomesTrue(nil, func() bool {
		testkit.Must(api.Allow(t.Context(), "c")) // a process that decides looks at Redis soon
		page = s.get("health")
		return strings.Contains(page, "lost")
	}))
	require.Regexp(t, `warning</b></td><th scope="row">data</th><td>Redis has lost its data with 2 overrides, as this `+
		`process noticed at 20\d\d-\d\d-\d\d \d\d:\d\d UTC; blocks and bans may be gone, too`, page)
}

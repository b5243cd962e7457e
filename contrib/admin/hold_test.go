package admin_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What a block, a ban and an override of one client do together.

// TestThePageTellsABlock from what is owed, and shows one that an override hides.
func TestThePageTellsABlock(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	api := s.policy("api", ginlimit.PerMinute(2), byX)
	of := []string{"policy", "api", "client", "a"}
	reserved := testkit.Must(api.Reserve(t.Context(), "a", 2))
	require.NoError(t, reserved.Settle(t.Context(), 4))
	page := s.ok("client", of...)
	require.Contains(t, page, "not blocked: more was used than the limit has, so it takes longer than its period")
	require.NotContains(t, page, "debt")
	require.NoError(t, api.Block(t.Context(), "a", 3*time.Hour))
	require.Regexp(t, `>Denied</b> for 3h0m0s: blocked until 20[-0-9: ]*UTC\.`, s.ok("client", of...))
	_, page = s.confirmed(append(of, "do", "override", "limits", "100/h", "ends", "1h")...)
	require.Contains(t, page, ">Allowed</b> now.")
	require.Regexp(t, `The override hides a block until 20[-0-9: ]*UTC\.`, page)
}

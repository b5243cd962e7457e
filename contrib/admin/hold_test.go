package admin_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin"
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

// TestTheConfirmationSaysWhatABlockDoesThen: when an override is made, or ended, of a client or of all.
func TestTheConfirmationSaysWhatABlockDoesThen(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	for _, opts := range [][]ginlimit.LimiterOption{nil, {ginlimit.WithKeySecret([]byte("0123456789abcdef"))}} {
		s := newSite(t, rdb, opts...)
		var has []admin.Option
		name := "api"
		if opts != nil {
			name, has = "secret", []admin.Option{admin.WithKeySecret([]byte("0123456789abcdef"))}
		}
		s.page = s.pageOf(rdb, has...)
		api := s.policy(name, ginlimit.PerMinute(2), byX)
		require.NoError(t, api.Block(t.Context(), "a", 3*time.Hour))
		of := []string{"policy", name, "client", "a"}
		override := append(of, "do", "override", "ends", "1h", "limits")
		require.Regexp(t, `It stays denied until 20[-0-9: ]*UTC by a block: unblock ends it\.`,
			s.ok("confirm", append(override, "5/m")...))
		_, page := s.confirmed(append(override, "100/h")...)
		require.Regexp(t, `It is blocked until 20[-0-9: ]*UTC, but let in while the override holds, and denied again `+
			`when it ends\.`, page)
		_, form, found := strings.Cut(page, `name="do" value="end">`)
		require.True(t, found)
		end := []string{"do", "end"}
		form, _, _ = strings.Cut(form, "</form>")
		for _, m := range field.FindAllStringSubmatch(form, -1) {
			end = append(end, m[1], m[2])
		}
		require.Regexp(t, `A block that the override hides denies it again until 20[-0-9: ]*UTC`, s.ok("confirm", end...))

		all := []string{"policy", name, "all", "yes", "do", "override", "ends", "2h", "limits"}
		require.NotContains(t, s.ok("confirm", append(all, "9/m")...), "block")
		_, page = s.confirmed(append(all, "9/h")...)
		require.Contains(t, page, "Clients that are blocked are let in while it holds")
		require.Contains(t, s.ok("confirm", "policy", name, "all", "yes", "do", "end"),
			"A block that it hides denies its client again")
	}
}

// TestTheConfirmationSaysWhatAResetEnds, and that the client was neither blocked nor banned.
func TestTheConfirmationSaysWhatAResetEnds(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	api := s.policy("api", ginlimit.PerMinute(2), byX)
	of := []string{"policy", "api", "client", "a", "do", "reset"}
	_, page := s.confirmed(of...)
	require.Contains(t, page, "Done: Fill the buckets of client a under policy api, found neither blocked nor banned.")
	require.NoError(t, api.Block(t.Context(), "a", 3*time.Hour))
	before, page := s.confirmed(of...)
	require.Regexp(t, `End the block and the ban of client a under policy api, found blocked until 20[-0-9: ]*UTC, and `+
		`fill its buckets\.`, before)
	require.Regexp(t, `Done: .*, found blocked until 20[-0-9: ]*UTC, and fill`, page)
}

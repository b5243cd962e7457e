package main

import (
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What a block, a ban and an override of one client do together.

// held is what status says of a block in JSON.
type held struct {
	Allowed     bool
	Blocked     *bool
	BlockedTill time.Time `json:"blocked_until"`
	Hidden      time.Time `json:"hidden_block_until"`
}

// TestStatusTellsABlock from an empty bucket and from what is owed, whatever the algorithm, also in JSON.
func TestStatusTellsABlock(t *testing.T) {
	t.Parallel()
	minute := ginlimit.PerMinute(2)
	fixed, sliding := minute, minute
	fixed.Algorithm, sliding.Algorithm = ginlimit.FixedWindow, ginlimit.SlidingWindow
	all := map[string][]ginlimit.PolicyOption{
		"token": {minute}, "fixed": {fixed}, "sliding": {sliding}, "lease": {minute, ginlimit.WithLease(time.Second)},
		"day":  {ginlimit.PerCalendar(2, ginlimit.CalendarDay(time.UTC))},
		"both": {ginlimit.PerHour(100), minute, ginlimit.InFlight(2)},
	}
	policies, r := serving(t, all)
	status := func(name string) (h held, text string) {
		require.NoError(t, jsonOf(r.run("status", name, "k", "--json").out, &h))
		return h, r.run("status", name, "k").out
	}
	for name, p := range policies {
		for range 3 {
			reserved := testkit.Must(p.Reserve(t.Context(), "k", 1))
			reserved.Release()
		}
		h, text := status(name)
		require.False(t, h.Allowed, name)
		require.Equal(t, new(bool), h.Blocked, name)
		require.NotContains(t, text, "block", name)
		r.ok("block", name, "k", "20s", "-y")
		h, text = status(name)
		require.True(t, *h.Blocked, name)
		require.WithinDuration(t, time.Now().Add(20*time.Second), h.BlockedTill, 15*time.Second, name)
		require.Regexp(t, `(?m)^blocked until 20[-0-9: ]*UTC: unblock ends it$`, text, name)
		r.ok("unblock", name, "k", "-y")
		h, _ = status(name)
		require.False(t, *h.Blocked, name)
	}
	testkit.Must(policies["token"].Allow(t.Context(), "k"))
	reserved := testkit.Must(policies["token"].Reserve(t.Context(), "k", 1))
	require.NoError(t, reserved.Settle(t.Context(), 4))
	h, text := status("token")
	require.False(t, *h.Blocked)
	require.Contains(t, text, "not blocked: more was used than the limit has, so it takes longer than its period")
	require.NotContains(t, text, "debt")
}

// TestStatusShowsWhatAnOverrideHides, and whose the override is.
func TestStatusShowsWhatAnOverrideHides(t *testing.T) {
	t.Parallel()
	_, r := serving(t, map[string][]ginlimit.PolicyOption{"api": {ginlimit.PerMinute(60)}})
	r.ok("block", "api", "k", "3h", "-y")
	r.ok("override", "api", "k", "100/h", "--for", "1h", "-y")
	require.Regexp(t, regexp.MustCompile(`(?m)^the override hides a block until 20[-0-9: ]*UTC$`), r.ok("status", "api", "k"))
	h := read[held](r, "status", "api", "k")
	require.True(t, h.Allowed)
	require.False(t, *h.Blocked)
	require.WithinDuration(t, time.Now().Add(3*time.Hour), h.Hidden, time.Minute)
	require.NotContains(t, r.ok("status", "api", "other"), "hides")
}

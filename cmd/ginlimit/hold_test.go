package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
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
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		rdb, _ := testkit.NewMiniredis(t)
		statusTellsABlock(t, rdb)
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		statusTellsABlock(t, testkit.Connect(t, testkit.StartRedis(t)))
	})
}

func statusTellsABlock(t *testing.T, rdb *redis.Client) {
	t.Helper()
	hourly := ginlimit.PerHour(2)
	fixed, sliding := hourly, hourly
	fixed.Algorithm, sliding.Algorithm = ginlimit.FixedWindow, ginlimit.SlidingWindow
	all := map[string][]ginlimit.PolicyOption{
		"token": {hourly}, "fixed": {fixed}, "sliding": {sliding}, "lease": {hourly, ginlimit.WithLease(time.Second)},
		"month": {ginlimit.PerCalendar(2, ginlimit.CalendarMonth(time.UTC, 1))},
		"both":  {ginlimit.PerMinute(100), hourly, ginlimit.InFlight(2)},
	}
	policies, r := servingOn(t, rdb, all)
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
		r.ok("block", name, "k", "10m", "-y")
		h, text = status(name)
		require.True(t, *h.Blocked, name)
		require.WithinDuration(t, time.Now().Add(10*time.Minute), h.BlockedTill, time.Minute, name)
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
	require.Regexp(t, `(?m)^the override hides a block until 20[-0-9: ]*UTC$`, r.ok("status", "api", "k"))
	h := read[held](r, "status", "api", "k")
	require.True(t, h.Allowed)
	require.False(t, *h.Blocked)
	require.WithinDuration(t, time.Now().Add(3*time.Hour), h.Hidden, time.Minute)
	require.NotContains(t, r.ok("status", "api", "other"), "hides")
}

// TestAnOverrideSaysWhatABlockDoesThen, before it is made or ended: and so it is.
func TestAnOverrideSaysWhatABlockDoesThen(t *testing.T) {
	t.Parallel()
	policies, r := serving(t, map[string][]ginlimit.PolicyOption{"api": {ginlimit.PerMinute(60)},
		"ban":   {ginlimit.PerHour(1), ginlimit.WithBan(time.Hour, time.Hour)},
		"trial": {ginlimit.PerHour(1), ginlimit.WithDryRun()},
		"plan": {ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
			return []ginlimit.Limit{ginlimit.PerHour(9)}, nil
		})}})
	const stays, until = "It stays denied until 20[-0-9: ]*UTC by a block", "until 20[-0-9: ]*UTC"
	change := func(says string, denied bool, args ...string) {
		t.Helper()
		asked := r.run(args...)
		require.Equal(t, exitUsage, asked.code)
		got := r.run(append(args, "-y")...)
		require.Equal(t, exitOK, got.code, got.errs)
		if says == "" {
			require.NotContains(t, asked.errs+got.errs, "block")
		} else {
			require.Regexp(t, says, asked.errs)
			require.Regexp(t, says, got.errs, "also to who is not asked")
		}
		require.Equal(t, denied, r.run("status", args[1], args[2]).code == exitDenied)
	}
	override := func(limits, span string) []string { return []string{"override", "api", "k", limits, "--for", span} }
	end := []string{"override", "api", "k", "--end"}
	change("", false, override("100/m", "1h")...)
	change("", false, end...)
	r.ok("block", "api", "k", "3h", "-y")
	change(stays, true, override("100/m", "1h")...)
	change(stays, true, end...)
	change("It is blocked "+until+", but let in while the override holds, and denied again when it ends", false,
		override("100/h", "1h")...)
	change("A block that the override hides denies it again "+until, true, end...)
	change("It is blocked "+until+", but let in while the override holds\\.", false, override("100/h", "9h")...)
	change("A block that the override hides denies it again "+until, true, override("200/m", "1h")...)
	change(stays, true, end...)

	r.ok("override-all", "api", "100/h", "--for", "1h", "-y")
	r.ok("status", "api", "k")
	change("A block that the override hides denies it again "+until, true, override("100/m", "1h")...)
	change("It is blocked "+until+", but let in when the override ends", false, end...)

	for range 2 {
		testkit.Must(policies["ban"].Allow(t.Context(), "k"))
	}
	change("It stays denied until 20[-0-9: ]*UTC by a ban", true, "override", "ban", "k", "100/m", "--for", "1h")
	change("", false, "override", "trial", "k", "100/m", "--for", "1h")
	change("Only the application knows the client's own limits, and whether a block holds under them", false, "override",
		"plan", "k", "100/m", "--for", "1h")
	r.ok("block", "plan", "k", "1h", "-y")
	change(stays, true, "override", "plan", "k", "9/m", "--for", "1h")
}

// TestAnOverrideOfAllSaysWhatBlocksDoThen.
func TestAnOverrideOfAllSaysWhatBlocksDoThen(t *testing.T) {
	t.Parallel()
	_, r := serving(t, map[string][]ginlimit.PolicyOption{"api": {ginlimit.PerMinute(60)}})
	for _, row := range []struct{ says, limits string }{
		{"Clients that are blocked are let in while it holds", "100/h"}, {"", "9/m"},
	} {
		all := []string{"override-all", "api", row.limits, "--for", "1h"}
		ends := "A block that it hides denies its client again"
		for _, args := range [][]string{all, {"override-all", "api", "--end"}} {
			got := r.run(append(args, "-y")...)
			require.Equal(t, exitOK, got.code)
			if row.says == "" {
				require.NotContains(t, got.errs, "block")
				continue
			}
			require.Contains(t, got.errs, row.says)
			row.says = ends
		}
	}
}

// TestWhoMayNotReadBucketsMayOverride, and is told what is not known.
func TestWhoMayNotReadBucketsMayOverride(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	_, r := servingOn(t, rdb, map[string][]ginlimit.PolicyOption{"api": {ginlimit.PerMinute(60)}})
	require.NoError(t, rdb.LPush(t.Context(), "ginlimit:{api|k}:m", "x").Err())
	got := r.run("override", "api", "k", "100/h", "--for", "1h", "-y")
	require.Equal(t, exitOK, got.code, got.errs)
	require.Contains(t, got.errs, "Whether a block or a ban denies it then cannot be read")
}

// TestAResetSaysWhatItEnds, and that a client was neither blocked nor banned.
func TestAResetSaysWhatItEnds(t *testing.T) {
	t.Parallel()
	policies, r := serving(t, map[string][]ginlimit.PolicyOption{"api": {ginlimit.PerMinute(60)},
		"ban": {ginlimit.PerHour(1), ginlimit.WithBan(time.Hour, time.Hour)}})
	reset := func(policy, found string) {
		t.Helper()
		asked := r.run("unblock", policy, "k")
		require.Equal(t, exitUsage, asked.code)
		require.Regexp(t, "Reset client k under policy "+policy+", found "+found+", and fill its buckets\\?", asked.errs)
		require.Regexp(t, "^reset client k under policy "+policy+", found "+found+"\n$", r.ok("reset", policy, "k", "-y"))
	}
	const nothing, end = "neither blocked nor banned", " until 20[-0-9: ]*UTC"
	reset("api", nothing)
	r.ok("block", "api", "k", "1h", "-y")
	reset("api", "blocked"+end)
	reset("api", nothing)
	for range 2 {
		testkit.Must(policies["ban"].Allow(t.Context(), "k"))
	}
	reset("ban", "banned"+end)
	require.Equal(t, nothing, read[map[string]string](r, "reset", "ban", "k", "-y")["found"])
	r.ok("block", "api", "k", "1h", "-y")
	r.ok("override", "api", "k", "9/h", "--for", "1h", "-y")
	reset("api", `blocked \(hidden by the override\)`+end)
	r.ok("override", "api", "k", "--end", "-y")
	r.ok("status", "api", "k")
}

// TestOverridesBelowThePolicy are marked in the list.
func TestOverridesBelowThePolicy(t *testing.T) {
	t.Parallel()
	_, r := serving(t, map[string][]ginlimit.PolicyOption{
		"api": {ginlimit.PerMinute(60), ginlimit.InFlight(3)},
		"plan": {ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
			return []ginlimit.Limit{ginlimit.PerHour(9)}, nil
		})},
		"day": {ginlimit.PerCalendar(9, ginlimit.CalendarDay(time.UTC))}, "free": {ginlimit.Unlimited()},
	})
	for _, row := range []struct {
		policy, limits string
		below          bool
	}{
		{"api", "59/m", true}, {"api", "61/m", false}, {"api", "60/m", false}, {"api", "3599/h", true},
		{"api", "3600/h", false}, {"api", "unlimited", false}, {"api", "prohibited", true}, {"api", "100/m, 30/h", true},
		{"api", "100/m, 2 in flight", true}, {"api", "100/m, 4 in flight", false}, {"plan", "1/h", false},
		{"day", "8/calendar-day", true}, {"day", "10/calendar-day", false}, {"free", "1/s", true},
	} {
		r.ok("override-all", row.policy, row.limits, "--for", "1h", "-y")
		list := r.ok("overrides", row.policy)
		require.Equal(t, row.below, strings.Contains(list, ", below the policy's "), "%s\n%s", row.limits, list)
	}
	require.Regexp(t, `(?m)^free +\(all\) +1/s, below the policy's unlimited +20`, r.ok("overrides", "free"))
}

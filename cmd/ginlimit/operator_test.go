package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What an operator who is new to the tool tries.

// TestApplyBeforeAllPoliciesAreServed, as on a new Redis: it does what it can, and the rest later.
func TestApplyBeforeAllPoliciesAreServed(t *testing.T) {
	t.Parallel()
	_, r := serving(t, map[string][]ginlimit.PolicyOption{"api": {ginlimit.PerHour(100)}})
	r.in = "- {policy: late, client: a, limits: 9/h, for: 2h}\n- {policy: api, client: a, limits: 9/h, for: 2h}\n" +
		"- {policy: late, client: b, limits: 9/h, for: 2h}\n- {policy: later, all: true, limits: 9/h, for: 2h}"
	const text = "left out 3 overrides of policies that no process serves yet: late, later"
	for _, args := range [][]string{{"apply", "-", "--dry-run"}, {"apply", "-", "--prune", "-y"}} {
		r.fails(exitFailed, text, args...)
		require.Empty(t, read[[]operate.Written](r, "overrides"))
	}
	r.fails(exitFailed, text, "apply", "-", "-y")
	require.Len(t, read[[]operate.Written](r, "overrides"), 1)
	r.in = "- {policy: late, client: a, limits: 9/h, for: 2h}"
	r.fails(exitFailed, "left out 1 override of policies that no process serves yet: late", "apply", "-", "-y")
	require.Equal(t, "nothing changes yet\n", r.run("apply", "-", "-y").out)
	r.in = "- {policy: api, client: b, limits: 9/h, for: 2h}"
	r.fails(exitUsage, "Change 1 override?", "apply", "-")
	require.Contains(t, r.run("apply", "-", "-y").errs, "changed 1 override\n")
}

// TestWhatCannotBeIsSaidBeforeTheQuestion, and by a dry run.
func TestWhatCannotBeIsSaidBeforeTheQuestion(t *testing.T) {
	t.Parallel()
	_, r := serving(t, map[string][]ginlimit.PolicyOption{
		"floor": {ginlimit.PerHour(100), ginlimit.WithFloor(30)}, "slots": {ginlimit.InFlight(2)}, "api": {ginlimit.PerHour(9)},
		"free": {ginlimit.Unlimited()},
	})
	for text, args := range map[string][]string{
		"WithFloor(30) leaves nothing of 20/h":                       {"override", "floor", "k", "20/h", "--for", "1h"},
		"at most 366 days ahead":                                     {"override-all", "api", "20/h", "--for", "400d"},
		`policy "slots" limits requests in flight alone`:             {"block", "slots", "k", "1h"},
		"unlimited is never counted":                                 {"block", "free", "k", "1h"},
		"1 in flight alone would leave the policy without its other": {"override-all", "api", "1 in flight", "--for", "1h"},
	} {
		got := r.run(args...)
		require.Equal(t, exitUsage, got.code)
		require.Contains(t, got.errs, text)
		require.NotContains(t, got.errs, "Nobody can be asked")
	}
	r.in = "- {policy: floor, all: true, limits: 20/h, for: 2h}"
	r.fails(exitUsage, "WithFloor(30) leaves nothing", "apply", "-", "--dry-run")
	r.ok("override", "slots", "k", "prohibited", "--for", "1h", "-y")
	require.Equal(t, exitDenied, r.run("status", "slots", "k").code, "as the tool says")
}

// TestTheQuestionSaysWhatChanges, and who is denied.
func TestTheQuestionSaysWhatChanges(t *testing.T) {
	t.Parallel()
	_, r := serving(t, map[string][]ginlimit.PolicyOption{"api": {ginlimit.PerHour(9)}, "slots": {ginlimit.InFlight(3)}})
	r.fails(exitUsage, "for client k, which denies it everything: 0/s until", "override", "api", "k", "prohibited",
		"--for", "1h")
	r.fails(exitUsage, ", instead of 9/h?", "override", "api", "k", "20/h", "--for", "1h")
	r.fails(exitUsage, "for all clients, which denies everybody without an override of their own: 0/m until",
		"override-all", "api", "0/m", "--for", "1h")
	r.ok("override-all", "api", "8/h", "--for", "1h", "-y")
	r.fails(exitUsage, ", instead of 8/h, of an override?", "override", "api", "k", "20/h", "--for", "1h")
	r.fails(exitUsage, ", instead of no rate; 3 in flight stay?", "override", "slots", "k", "1/m", "--for", "1h")
	r.fails(exitUsage, ", instead of 3 in flight?", "override", "slots", "k", "4 in flight", "--for", "1h")
	r.ok("override-all", "slots", "5 in flight", "--for", "1h", "-y")
	r.fails(exitUsage, ", instead of 5 in flight, of an override; 3 in flight stay?", "override", "slots", "k", "1/m",
		"--for", "1h")
}

// TestWhatAnOverrideLeavesOut, of several limits, is said: also to who is not asked.
func TestWhatAnOverrideLeavesOut(t *testing.T) {
	t.Parallel()
	_, r := serving(t, map[string][]ginlimit.PolicyOption{
		"api": {ginlimit.PerMinute(60), ginlimit.PerHour(900), ginlimit.InFlight(2)},
	})
	const text = "an override replaces all limits: 900/h will not hold"
	run := func(limits string) string {
		got := r.run("override", "api", "k", limits, "--for", "1h", "-y")
		require.Equal(t, exitOK, got.code, got.errs)
		return got.errs
	}
	require.Contains(t, run("600/m"), text)
	require.Empty(t, run("600/m"), "it is an override's")
	require.Empty(t, run("600/m, 9000/h"))
	require.Contains(t, run("600/m"), "9000/h will not hold")
	require.Contains(t, r.run("override-all", "api", "600/m", "--for", "1h", "-y").errs, text)
	r.ok("override", "api", "k", "--end", "-y")
	r.ok("override-all", "api", "--end", "-y")
	require.Empty(t, run("7/s"), "none of its limits is one of the policy, so the question is enough")
}

// TestLongSpans: what is too long is not said to be no duration.
func TestLongSpans(t *testing.T) {
	t.Parallel()
	_, r := serving(t, map[string][]ginlimit.PolicyOption{"api": {ginlimit.PerMinute(60)}})
	for _, span := range []string{"36501d", "500000d", "99999999999999999999d", "876001h", "9223372036854775807ns"} {
		r.fails(exitUsage, "is too long: at most 36500d", "block", "api", "k", span, "-y")
	}
	r.fails(exitUsage, "is no duration above 0, such as", "block", "api", "k", "1.5d", "-y")
	r.ok("block", "api", "k", "36500d", "-y")
}

// TestPoliciesShowOverridesForAll: a reader who looks for a limit sees what holds.
func TestPoliciesShowOverridesForAll(t *testing.T) {
	t.Parallel()
	_, r := serving(t, map[string][]ginlimit.PolicyOption{"api": {ginlimit.PerHour(9)}})
	r.ok("override", "api", "k", "1/h", "--for", "1h", "-y")
	require.NotContains(t, r.ok("policies"), "now")
	r.ok("override-all", "api", "1/m", "--for", "1h", "-y")
	require.Regexp(t, `(?m)^api +9/h; now 1/m `, r.ok("policies"))
	require.Equal(t, ginlimit.PerMinute(1), read[[]published](r, "policies")[0].Override.Limits[0])
	r.fails(exitUsage, `no process serves a policy "nope"; there are api`, "overrides", "nope")
	r.fails(exitUsage, "give a POLICY: there are api", "top")
}

// TestVersionsAreNoVariants: a rollout that changes no limit is nothing to be warned of.
func TestVersionsAreNoVariants(t *testing.T) {
	t.Parallel()
	_, r, rdb := start(t)
	publish := func(name, text string) {
		require.NoError(t, rdb.HSet(t.Context(), "ginlimit:{policies}", name, text).Err())
		seen := float64(time.Now().UnixMilli())
		require.NoError(t, rdb.ZAdd(t.Context(), "ginlimit:{policies}:processes", redis.Z{Score: seen, Member: name + " P1"}).Err())
	}
	warnings := func() string { return r.run("policies").errs + r.run("status", "login", "203.0.113.7").errs }
	text := ""
	for _, one := range testkit.Must(rdb.HVals(t.Context(), "ginlimit:{policies}").Result()) {
		if strings.Contains(one, `"name":"login"`) {
			text = regexp.MustCompile(`"build":"[^"]*"`).ReplaceAllString(one, `"build":"2"`)
		}
	}
	publish("newer", text)
	require.Equal(t, 2, strings.Count(r.ok("policies"), "\nlogin "))
	require.Empty(t, warnings())
	require.Contains(t, r.run("doctor").out, "9 are served")
	publish("other", strings.Replace(text, "5/15m", "6/15m", 1))
	require.Equal(t, "ginlimit: processes have different limits or options of login\n"+
		"ginlimit: processes serve policy login with 2 different limits or options; this is about the last seen\n", warnings())
	require.Contains(t, r.run("doctor").out, "1 of 9 have different limits or options in different processes, such as login")
}

// TestTenantsOfAShare are reset one by one or together, and blocked not at all.
func TestTenantsOfAShare(t *testing.T) {
	t.Parallel()
	shares, r, _ := start(t)
	r.fails(exitUsage, `policy "login" has no tenants`, "reset", "login", "203.0.113.7", "--tenant", "a", "-y")
	for range 30 {
		take(t, shares["share"].Share("a", 1), "203.0.113.7")
		take(t, shares["share"].Share("b", 1), "203.0.113.7")
	}
	left := func(tenant string) int {
		return readAs[shown](r, "status", "share", "203.0.113.7", "--tenant", tenant, "--json").Limits[0].Remaining
	}
	before := left("b")
	require.Equal(t, "reset tenant a of client 203.0.113.7 under policy share\n",
		r.ok("reset", "share", "203.0.113.7", "--tenant", "a", "-y"))
	require.Greater(t, left("a"), before)
	r.ok("reset", "share", "203.0.113.7", "-y")
	require.Equal(t, 30, left("a"), "half of the burst")
	got := r.run("block", "share", "203.0.113.7", "1h", "-y")
	require.Contains(t, got.errs, `policy "share" is shared by tenants, and has no blocks`)
	r.ok("override", "share", "203.0.113.7", "prohibited", "--for", "1h", "-y")
	require.Equal(t, exitDenied, r.run("status", "share", "203.0.113.7", "--tenant", "a").code)
}

// TestAnOverrideSuspendsABlock of another period, as the help says.
func TestAnOverrideSuspendsABlock(t *testing.T) {
	t.Parallel()
	_, r := serving(t, map[string][]ginlimit.PolicyOption{"api": {ginlimit.PerHour(9)}})
	r.ok("block", "api", "k", "1h", "-y")
	r.ok("override", "api", "k", "20/h", "--for", "1h", "-y")
	require.Equal(t, exitDenied, r.run("status", "api", "k").code)
	r.ok("override", "api", "k", "20/m", "--for", "1h", "-y")
	r.ok("status", "api", "k")
	r.ok("override", "api", "k", "--end", "-y")
	require.Equal(t, exitDenied, r.run("status", "api", "k").code)
}

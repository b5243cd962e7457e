package main

import (
	"context"
	"io"
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

// shown is the JSON of status.
type shown struct {
	Client   string
	Allowed  bool
	Override *operate.Written
	Limits   []struct {
		Limit     ginlimit.Limit
		Remaining int
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	_, r, _ := start(t)
	r.ok("status", "login", "203.0.113.7")
	byName := map[string]published{}
	for _, p := range read[[]published](r, "policies") {
		byName[p.Policy] = p
	}
	require.Len(t, byName, 9)
	require.Equal(t, 1, byName["login"].Processes, "the tool is none")
	require.Equal(t, []ginlimit.Limit{ginlimit.PerHour(100), ginlimit.InFlight(3)}, byName["report"].Limits)
	require.Equal(t, "ByHeader", byName["report"].Key)
	require.Equal(t, []string{"WithBan"}, byName["ban"].Options)
	require.Regexp(t, `(?m)^report +100/h, 3 in flight +ByHeader +.* 1 +\d+s ago$`, r.ok("policies"))
	plain := r.ok("policies", "--json")
	require.Contains(t, plain, `"options":[]`, "no list is null")
	require.NotContains(t, plain, "null")
	require.Regexp(t, `(?m)^plan +of each client +ByHeader +WithLimitFunc `, r.ok("policies"))
	require.Contains(t, r.ok("policies", "--prefix", "other"), `no process has served a policy under the prefix "other"`)
	require.Empty(t, read[[]published](r, "policies", "--prefix", "other"))
	require.Regexp(t, `(?s)^ban\n.*report\nsearch\nshare\ntrial\n:4\n`, r.ok("__complete", "status", ""))
	require.Equal(t, ":4\n", r.ok("__complete", "status", "login", ""))
}

func TestStatusBlockAndReset(t *testing.T) {
	t.Parallel()
	policies, r, _ := start(t)
	login := policies["login"]
	require.True(t, take(t, login, "2001:db8::/64").Allowed)
	s := read[shown](r, "status", "login", "2001:db8::7")
	require.True(t, s.Allowed)
	require.Equal(t, "2001:db8::/64", s.Client)
	require.Equal(t, 4, s.Limits[0].Remaining)
	require.Nil(t, s.Override)

	r.fails(exitUsage, "Block client 2001:db8::/64 under policy login for 15m0s? Nobody can be asked here: give --yes",
		"block", "login", "2001:db8::/64", "15m")
	require.Equal(t, "blocked client 2001:db8::/64 under policy login\n",
		r.ok("block", "login", "2001:db8::8", "15m", "-y"))
	require.False(t, take(t, login, "2001:db8::/64").Allowed)
	got := r.run("status", "login", "2001:db8::")
	require.Equal(t, exitDenied, got.code)
	require.Regexp(t, `(?m)^5/15m +false +0 +15m0s +\S+ +rate$`, got.out)
	r.ok("unblock", "login", "2001:db8::7", "--yes")
	require.True(t, take(t, login, "2001:db8::/64").Allowed)

	take(t, policies["busy"], "203.0.113.7")
	require.Equal(t, 99999, read[shown](r, "status", "busy", "203.0.113.7").Limits[0].Remaining)
	r.ok("reset", "lease", "203.0.113.7", "-y")

	take(t, policies["ban"], "key")
	require.Equal(t, ginlimit.CauseBan, take(t, policies["ban"], "key").Cause)
	require.Equal(t, exitDenied, r.run("status", "ban", "key").code)
	require.Regexp(t, `^reset client key under policy ban, found banned until .* UTC\n`, r.ok("reset", "ban", "key", "-y"))
	require.True(t, take(t, policies["ban"], "key").Allowed)

	r.fails(exitUsage, `a policy "logout"; there are ban, busy, lease, login, plan, report, search, share, trial`,
		"status", "logout", "203.0.113.7")
	r.fails(exitUsage, `policy "login" counts by address, and "alice" is none`, "status", "login", "alice")
	r.fails(exitUsage, "the client is empty", "reset", "report", "", "-y")
	r.fails(exitUsage, `no process has served a policy under the prefix "x"`, "status", "a", "b", "--prefix", "x")
}

// TestVariants: of a policy that is tried and in force, the tool takes what is in force.
func TestVariants(t *testing.T) {
	t.Parallel()
	policies, r, _ := start(t)
	take(t, policies["trial"], "203.0.113.7")
	s := read[shown](r, "status", "trial", "203.0.113.7")
	require.False(t, s.Allowed)
	require.Equal(t, 0, s.Limits[0].Remaining)
	require.Contains(t, r.ok("status", "trial", "203.0.113.7"), "a dry run: nobody is denied")

	trial := testkit.Must(policies["login"].With(ginlimit.WithDryRun()))
	take(t, trial, "203.0.113.7")
	require.True(t, testkit.BecomesTrue(nil, func() bool {
		return strings.Count(r.ok("policies"), "\nlogin ") == 2
	}))
	take(t, policies["login"], "203.0.113.7")
	require.Equal(t, 4, read[shown](r, "status", "login", "203.0.113.7").Limits[0].Remaining)
	require.Empty(t, r.run("status", "login", "203.0.113.7").errs)
}

// TestShares: a status is of one tenant, a reset of all.
func TestShares(t *testing.T) {
	t.Parallel()
	policies, r, _ := start(t)
	take(t, policies["share"].Share("b", 1), "key")
	r.fails(exitUsage, `policy "share" is shared by tenants: give --tenant`, "status", "share", "203.0.113.7")
	r.fails(exitUsage, `policy "login" has no tenants`, "status", "login", "203.0.113.7", "--tenant", "a")
	require.True(t, read[shown](r, "status", "share", "203.0.113.7", "--tenant", "a").Allowed)
	for range 60 {
		take(t, policies["share"].Share("b", 1), "203.0.113.7")
	}
	require.Equal(t, exitDenied, r.run("status", "share", "203.0.113.7", "--tenant", "b").code)
	r.fails(exitUsage, "has no blocks", "block", "share", "203.0.113.7", "1h", "-y")
	r.ok("reset", "share", "203.0.113.7", "-y")
	require.True(t, read[shown](r, "status", "share", "203.0.113.7", "--tenant", "b").Allowed)
}

// TestConfirmation: on a terminal the tool asks.
func TestConfirmation(t *testing.T) {
	t.Parallel()
	policies, r, _ := start(t)
	r.terminal = true
	for _, no := range []string{"", "\n", "n\n", "yess\n"} {
		r.in = no
		r.fails(exitFailed, "nothing was changed", "block", "ban", "key", "1h")
	}
	ctx, stop := context.WithCancel(t.Context())
	silent, _ := io.Pipe()
	var errs strings.Builder
	interrupted := &tool{in: silent, errs: &errs, terminal: true}
	stop()
	require.EqualError(t, interrupted.confirm(ctx, "Block"), "nothing was changed")
	require.Equal(t, "Block? [y/N] \n", errs.String())
	require.True(t, take(t, policies["ban"], "key").Allowed)
	r.in = "Yes\n"
	r.ok("block", "ban", "other", "1h")
	require.False(t, take(t, policies["ban"], "other").Allowed)
}

// TestLimitsOfEachClient: only the application knows them, so they have to be given.
func TestLimitsOfEachClient(t *testing.T) {
	t.Parallel()
	policies, r, _ := start(t)
	take(t, policies["plan"], "key")
	r.fails(exitUsage, `policy "plan" has limits of each client, which only the application knows`,
		"status", "plan", "key")
	require.Equal(t, 6, read[shown](r, "status", "plan", "key", "--limit", "7/h").Limits[0].Remaining)
	r.fails(exitUsage, `"7/x": period`, "status", "plan", "key", "--limit", "7/x")
	r.ok("override", "plan", "key", "9/h", "--for", "1h", "-y")
	require.Equal(t, ginlimit.PerHour(9), read[shown](r, "status", "plan", "key").Limits[0].Limit)
}

func TestSlots(t *testing.T) {
	t.Parallel()
	policies, r, rdb := start(t)
	require.Empty(t, read[[]operate.Holder](r, "slots", "report", "key"))
	first := testkit.Must(policies["report"].Reserve(t.Context(), "key", 1))
	defer first.Release()
	second := testkit.Must(policies["report"].Reserve(t.Context(), "key", 1))
	defer second.Release()
	held := read[[]operate.Holder](r, "slots", "report", "key")
	require.Len(t, held, 1)
	require.Equal(t, 2, held[0].Slots)
	third := testkit.Must(application(t, rdb)["report"].Reserve(t.Context(), "key", 1))
	defer third.Release()
	held = read[[]operate.Holder](r, "slots", "report", "key")
	require.Len(t, held, 2)
	require.Equal(t, 3, held[0].Slots+held[1].Slots)
	require.Regexp(t, `(?m)^P\w+ +2$`, r.ok("slots", "report", "key"))
}

func TestTop(t *testing.T) {
	t.Parallel()
	policies, r, rdb := start(t)
	silent := testkit.Must(ginlimit.NewLimiter(rdb, ginlimit.WithTimeout(testkit.Patience)))
	defer silent.Close()
	take(t, testkit.Must(silent.Policy("silent", ginlimit.PerHour(1))), "key")
	require.True(t, testkit.BecomesTrue(nil, func() bool { return strings.Contains(r.ok("policies"), "silent") }))
	require.Contains(t, r.ok("top", "silent"), "no process reports silent: it has denied nobody")
	require.Contains(t, r.ok("top", "silent", "--used"), "no process reports use of silent")
	r.fails(exitUsage, `no process serves a policy "nobody"`, "top", "nobody")
	for range 4 {
		take(t, policies["login"], "203.0.113.7")
		take(t, policies["ban"], "key")
		take(t, policies["ban"], "a\x1b[2Jkey")
	}
	require.True(t, testkit.BecomesTrue(nil, func() bool { // a part may be reported before
		all := read[[]ranked](r, "top", "ban", "-n", "9")
		return len(all) == 2 && all[1] == ranked{Client: "key", Denials: 3}
	}))
	require.Regexp(t, `(?m)^key +3 +0$`, r.ok("top", "ban"))
	require.True(t, testkit.BecomesTrue(nil, func() bool {
		all := read[[]ranked](r, "top", "login", "--used")
		return len(all) > 0 && all[0] == ranked{Client: "203.0.113.7", Tokens: 4}
	}))
	require.Regexp(t, `^CLIENT +TOKENS +ERROR\n203.0.113.7 +4 +0\n`, r.ok("top", "login", "--used"))
	require.Equal(t, "no denials in the last ten minutes, as contrib/top reports\n", r.ok("top", "login"))
	require.Contains(t, r.ok("top", "trial", "--used"), "no process reports use of trial")
	require.Len(t, read[[]ranked](r, "top", "ban", "-n", "1"), 1)
}

// TestARegistryOfANewerVersion: the tool says that it is too old, and changes nothing. An override that it cannot read
// stops nobody but who wants to read it.
func TestARegistryOfANewerVersion(t *testing.T) {
	t.Parallel()
	_, r, rdb := start(t)
	newer := `{"v":2,"policy":"login","limits":{"rate":9}}`
	require.NoError(t, rdb.HSet(t.Context(), "ginlimit:{policies}", "newer", newer).Err())
	seen := redis.Z{Score: float64(time.Now().UnixMilli()), Member: "newer P1"}
	require.NoError(t, rdb.ZAdd(t.Context(), "ginlimit:{policies}:processes", seen).Err())
	const text = "a newer version of ginlimit has written it"
	r.fails(exitFailed, text, "policies")
	r.fails(exitFailed, text, "status", "login", "203.0.113.7")
	r.fails(exitFailed, text, "override-all", "login", "9/h", "--for", "1h", "-y")
	require.NoError(t, rdb.ZRem(t.Context(), "ginlimit:{policies}:processes", "newer P1").Err())
	r.ok("override-all", "login", "9/h", "--for", "1h", "-y")
	require.NoError(t, rdb.HSet(t.Context(), "ginlimit:{overrides}", "login|203.0.113.9", newer).Err())
	r.fails(exitFailed, text, "overrides")
	r.fails(exitFailed, text, "status", "login", "203.0.113.9")
	r.ok("status", "login", "203.0.113.7")
	r.ok("override", "login", "203.0.113.7", "9/h", "--for", "1h", "-y")
	r.ok("override", "login", "203.0.113.9", "--end", "-y")
	r.ok("overrides")
}

// TestForeignTextsMoveNoCursor of who looks at the policies.
func TestForeignTextsMoveNoCursor(t *testing.T) {
	t.Parallel()
	_, r, rdb := start(t)
	const text = `{"v":1,"name":"a\u001b[2J","handler":true,"key":"b\u001b[2J","options":["c\u001b[2J"],"build":"d\u001b[2J"}`
	require.NoError(t, rdb.HSet(t.Context(), "ginlimit:{policies}", "foreign", text).Err())
	seen := redis.Z{Score: float64(time.Now().UnixMilli()), Member: "foreign P1"}
	require.NoError(t, rdb.ZAdd(t.Context(), "ginlimit:{policies}:processes", seen).Err())
	out := r.ok("policies")
	require.Regexp(t, `a\\x1b\[2J.* b\\u001b\[2J +c\\u001b\[2J +d\\u001b\[2J`, out)
	require.NotContains(t, out, "\x1b")
}

// TestSecretKeys: with the secret the tool finds the same buckets, and shows no key.
func TestSecretKeys(t *testing.T) {
	t.Parallel()
	secret := strings.Repeat("s", 16)
	policies, r, rdb := start(t, ginlimit.WithKeySecret([]byte(secret)))
	r.env["GINLIMIT_KEY_SECRET"] = secret
	take(t, policies["login"], "203.0.113.7")
	require.Equal(t, 4, read[shown](r, "status", "login", "203.0.113.7").Limits[0].Remaining)
	r.ok("override", "login", "203.0.113.7", "9/h", "--for", "1h", "-y")
	require.Equal(t, ginlimit.PerHour(9), read[shown](r, "status", "login", "203.0.113.7").Override.Limits[0])
	slot := testkit.Must(policies["report"].Reserve(t.Context(), "key", 1))
	defer slot.Release()
	require.Len(t, read[[]operate.Holder](r, "slots", "report", "key"), 1)
	keys := testkit.Must(rdb.Keys(t.Context(), "*203*").Result())
	require.Empty(t, keys)
	require.NotContains(t, r.ok("overrides"), "203.0.113.7")
	delete(r.env, "GINLIMIT_KEY_SECRET")
	require.Regexp(t, "^no (process reports plan|denials in the last)", r.ok("top", "plan"), "that needs no secret")
	require.Len(t, read[[]operate.Holder](r, "slots", "report", "key", "--key-secret-file", file(t, secret+"\n")), 1)
	delete(r.env, "GINLIMIT_KEY_SECRET")
	for _, args := range [][]string{{"status", "login", "203.0.113.7"}, {"block", "login", "203.0.113.7", "1h", "-y"},
		{"override", "login", "203.0.113.7", "9/h", "--for", "1h", "-y"}} {
		r.fails(exitUsage, `policy "login" has a WithKeySecret: give the secret by --key-secret-file`, args...)
	}
	r.in = "- {policy: login, client: 203.0.113.7, limits: 9/h, for: 2h}"
	r.fails(exitUsage, `line 1: policy "login" has a WithKeySecret`, "apply", "-", "-y")
	_, plain, _ := start(t)
	plain.env["GINLIMIT_KEY_SECRET"] = secret
	plain.fails(exitUsage, `policy "login" has no WithKeySecret: leave out`, "reset", "login", "203.0.113.7", "-y")
	r.env["GINLIMIT_KEY_SECRET"] = "short"
	r.fails(exitUsage, "WithKeySecret: 5 bytes", "status", "login", "203.0.113.7")
}

// TestLimitsThatCannotBeRead, as of a zone without a name, have to be given.
func TestLimitsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	here := ginlimit.PerCalendar(5, ginlimit.CalendarDay(time.FixedZone("here", 1234)))
	p := testkit.NewPolicy(t, testkit.NewOperated(t, rdb), "quota", here, ginlimit.WithKey(ginlimit.ByHeader("X")))
	p.Handler()
	take(t, p, "key")
	r := newRunner(t, "redis://"+rdb.Options().Addr)
	require.True(t, testkit.BecomesTrue(nil, func() bool {
		return regexp.MustCompile(`quota +of a time zone that is not known here +ByHeader`).MatchString(r.ok("policies"))
	}))
	r.fails(exitUsage, "has limits of a time zone that is not known here: give them by --limit", "status", "quota", "key")
	r.ok("override", "quota", "key", "9/h", "--for", "1h", "-y")
	require.Equal(t, ginlimit.PerHour(9), read[shown](r, "status", "quota", "key").Limits[0].Limit)
}

// TestSlotsOfADryRun have keys of their own.
func TestSlotsOfADryRun(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	p := testkit.NewPolicy(t, testkit.NewOperated(t, rdb), "tried", ginlimit.InFlight(9), ginlimit.WithDryRun(),
		ginlimit.WithKey(ginlimit.ByHeader("X")))
	held := testkit.Must(p.Reserve(t.Context(), "key", 1))
	defer held.Release()
	r := newRunner(t, "redis://"+rdb.Options().Addr)
	require.True(t, testkit.BecomesTrue(nil, func() bool { return r.run("status", "tried", "key").code == exitOK }))
	require.Len(t, read[[]operate.Holder](r, "slots", "tried", "key"), 1)
}

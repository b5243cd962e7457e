package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestOverride(t *testing.T) {
	t.Parallel()
	policies, r, _ := start(t)
	end := time.Now().Add(time.Hour).Truncate(time.Second)
	r.fails(exitUsage, "Override policy login for all clients: 9/h, 2 in flight until", "override-all", "login",
		"9/h, 2 in flight", "--for", "1h", "--note", "a test")
	r.ok("override-all", "login", "9/h", "--until", end.Format(time.RFC3339), "--note", "a test", "-y")
	r.ok("override", "login", "2001:db8::1", "unlimited", "--for", "7d", "-y")
	list := read[[]operate.Written](r, "overrides")
	require.Len(t, list, 2)
	require.True(t, end.Equal(list[0].Until))
	require.Equal(t, operate.Written{Policy: "login", All: true, Limits: []ginlimit.Limit{ginlimit.PerHour(9)},
		Until: list[0].Until, Note: "a test"}, list[0])
	require.Equal(t, "2001:db8::/64", list[1].Client)
	require.Regexp(t, `(?m)^login +\(all\) +9/h, below the policy's 5/15m +\S+ +a test$`, r.ok("overrides", "login"))
	require.Empty(t, read[[]operate.Written](r, "overrides", "ban"))
	require.Regexp(t, `(?m)^override of all clients: 9/h until \S+ \(a test\)`, r.ok("status", "login", "203.0.113.7"))
	require.True(t, testkit.BecomesTrue(nil, func() bool {
		return take(t, policies["login"], "203.0.113.8").Limit == ginlimit.PerHour(9)
	}))
	require.Equal(t, ginlimit.Unlimited(), read[shown](r, "status", "login", "2001:db8::5").Limits[0].Limit)

	r.ok("override-all", "report", "9/h", "--for", "1h", "-y")
	limits := read[shown](r, "status", "report", "key").Limits
	require.Len(t, limits, 2)
	require.Equal(t, ginlimit.InFlight(3), limits[1].Limit, "the policy's slots stay")
	r.ok("override-all", "report", "9/h,2 in flight", "--for", "1h", "-y")
	limits = read[shown](r, "status", "report", "key").Limits
	require.Len(t, limits, 2)
	require.Equal(t, ginlimit.InFlight(2), limits[1].Limit)
	r.ok("override-all", "report", "--end", "-y")

	r.ok("override", "login", "2001:db8::1", "--end", "-y")
	r.ok("override-all", "login", "--end", "--yes")
	require.Empty(t, read[[]operate.Written](r, "overrides"))
	for _, flags := range [][]string{{"--end"}, {"--end", "-y"}} {
		got := r.run(append([]string{"override-all", "login"}, flags...)...)
		require.Equal(t, exitFailed, got.code)
		require.Equal(t, "ginlimit: policy login has no override for all clients\n", got.errs, "and nobody is asked")
		require.Empty(t, got.out)
	}
}

// TestTheEndOfAnOverride: it says which one ends, and of whom.
func TestTheEndOfAnOverride(t *testing.T) {
	t.Parallel()
	_, r, rdb := start(t)
	const says = `9/h until 20\S+ \(a test\)`
	require.Regexp(t, "^done: "+says+"\n$",
		r.ok("override", "login", "203.0.113.7", "9/h", "--for", "1h", "--note", "a test", "-y"))
	asked := r.run("override", "login", "203.0.113.7", "--end")
	require.Equal(t, exitUsage, asked.code)
	require.Regexp(t, `End the override of policy login for client 203\.0\.113\.7: `+says+`\?`, asked.errs)
	require.Regexp(t, "^done: ended "+says+"\n$", r.ok("override", "login", "203.0.113.7", "--end", "-y"))
	r.ok("override-all", "login", "9/h", "--for", "1h", "-y")
	r.fails(exitFailed, "policy login has no override for client 203.0.113.7; one for all clients ends by override-all",
		"override", "login", "203.0.113.7", "--end", "-y")

	until := time.Now().Add(2 * time.Hour).UnixMilli()
	text := fmt.Sprintf(`{"v":1,"policy":"ban","client":"k","limits":"?","until":%d}`, until)
	require.NoError(t, rdb.HSet(t.Context(), "ginlimit:{overrides}", "ban|k", text).Err())
	end := redis.Z{Score: float64(until), Member: "ban|k"}
	require.NoError(t, rdb.ZAdd(t.Context(), "ginlimit:{overrides}:ends", end).Err())
	require.Equal(t, "done: ended what cannot be read\n", r.ok("override", "ban", "k", "--end", "-y"))
}

func TestMistakesInOverrides(t *testing.T) {
	t.Parallel()
	_, r, _ := start(t)
	long := strings.Repeat("x", 300)
	for text, args := range map[string][]string{
		"accepts 3 arg(s), received 2":        {"override", "login", "9/h", "--for", "1h"},
		"accepts 2 arg(s), received 3":        {"override", "login", "203.0.113.9", "1/h", "--end"},
		`no process serves a policy "logout"`: {"override", "logout", "203.0.113.9", "1/h", "--for", "1h"},
		`"203.0.113.9999" is none`:            {"override", "login", "203.0.113.9999", "1/h", "--for", "1h"},
		`invalid argument: "8/x": period`:     {"override", "login", "203.0.113.9", "9/h,8/x", "--for", "1h"},
		`give one of --until and --for`:       {"override-all", "login", "1/h"},
		`"tomorrow" is no time such as`:       {"override-all", "login", "1/h", "--until", "tomorrow"},
		`"18:00" is no duration above 0, such as 90s, 15m, 2h or 7d; --until takes a time such as ` +
			"2026-12-31T18:00:00Z": {"override-all", "login", "1/h", "--for", "18:00"},
		"2020-01-01T00:00:00Z is in the past": {"override-all", "login", "1/h", "--until", "2020-01-01T00:00:00Z"},
		"at most 366 days ahead":              {"override-all", "login", "1/h", "--for", "400d", "-y"},
		"accepts 1 arg(s), received 2":        {"override-all", "login", "1/h", "--end"},
		"--end takes no time or note":         {"override-all", "login", "--end", "--note", "x"},
		"a note of 300 bytes":                 {"override-all", "login", "1/h", "--for", "1h", "-y", "--note", long},
	} {
		r.fails(exitUsage, text, args...)
	}
	require.Empty(t, read[[]operate.Written](r, "overrides"))
}

func readAll(name string) (string, error) {
	text, err := os.ReadFile(name)
	return string(text), err
}

// file writes a file for apply.
func file(t *testing.T, text string) string {
	name := filepath.Join(t.TempDir(), "overrides.yaml")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// TestApplyOfAllOverrides: what overrides --json prints of more than one call sets is a file for apply.
func TestApplyOfAllOverrides(t *testing.T) {
	t.Parallel()
	_, r, _ := start(t)
	var text strings.Builder
	for i := range 2100 {
		fmt.Fprintf(&text, "- {policy: ban, client: client %d, limits: 9/h, for: 2h}\n", i)
	}
	require.Contains(t, r.run("apply", file(t, text.String()), "-y").errs, "changed 2100 overrides\n")
	all := r.ok("overrides", "--json")
	_, other, _ := start(t)
	require.Contains(t, other.run("apply", file(t, all), "-y").errs, "changed 2100 overrides\n")
	require.Equal(t, all, other.ok("overrides", "--json"))
}

func TestApply(t *testing.T) {
	t.Parallel()
	_, r, _ := start(t)
	end := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	name := file(t, fmt.Sprintf(`
- policy: login
  all: true
  limits: 9/h
  until: %[1]s
- policy: login
  client: 2001:db8::1
  limits: [100/h burst 20, 4 in flight]
  until: %[1]s
  note: load test
`, end))
	plan := "+  login  all clients           9/h until " + end + "\n" +
		"+  login  client 2001:db8::/64  100/h burst 20, 4 in flight until " + end + " (load test)\n"
	require.Equal(t, plan, r.ok("apply", name, "--dry-run"))
	r.fails(exitUsage, "Change 2 overrides? Nobody can be asked here: give --yes", "apply", name)
	require.Empty(t, read[[]operate.Written](r, "overrides"))
	require.Equal(t, plan, r.ok("apply", name, "-y"))
	require.Len(t, read[[]operate.Written](r, "overrides"), 2)
	require.Equal(t, "nothing changes\n", r.ok("apply", name))

	noted := strings.Replace(testkit.Must(readAll(name)), "load test", "launch", 1)
	require.Contains(t, r.ok("apply", file(t, noted), "--dry-run"), "(load test) -> 100/h burst 20, 4 in flight until")
	r.in = "[{policy: login, all: true, limits: 8/h, until: " + end + "}, " +
		"{policy: ban, client: key, limits: [2/h], for: 2h}]"
	got := read[[]operate.Step](r, "apply", "-", "--prune", "-y")
	require.Equal(t, []string{operate.Changes, operate.Adds, operate.Ends}, []string{got[0].Change, got[1].Change, got[2].Change})
	require.Equal(t, ginlimit.PerHour(9), got[0].Old.Limits[0])
	require.Equal(t, ginlimit.PerHour(8), got[0].New.Limits[0])
	list := read[[]operate.Written](r, "overrides")
	require.Len(t, list, 2)
	require.Equal(t, "key", list[0].Client)
	require.Equal(t, ginlimit.PerHour(8), list[1].Limits[0])
}

// TestOverridesMoveToAnotherRedis: apply reads what overrides prints, also of clients that are hashes or read as such.
func TestOverridesMoveToAnotherRedis(t *testing.T) {
	t.Parallel()
	hash := "#" + strings.Repeat("A", 43)
	for name, opts := range map[string][]ginlimit.LimiterOption{
		"names": nil, "hashes": {ginlimit.WithKeySecret([]byte(strings.Repeat("s", 16)))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, from, _ := start(t, opts...)
			_, to, _ := start(t, opts...)
			is := fmt.Sprint("--hash=", opts != nil)
			from.ok("override-all", "login", "9/h", "--for", "1h", "-y")
			from.ok("override", "report", hash, "100/h burst 20, 4 in flight", "--for", "7d", "--note", "a: \"b\"", is, "-y")
			if opts == nil {
				from.ok("override", "login", "2001:db8::1", "unlimited", "--for", "1h", "-y")
			}
			to.in = from.ok("overrides", "--json")
			to.ok("apply", "-", "-y")
			require.Equal(t, to.in, to.ok("overrides", "--json"))
			require.Equal(t, "nothing changes\n", to.ok("apply", "-", "--prune"))
		})
	}
}

// TestABadLineChangesNothing: every bad line is named.
func TestABadLineChangesNothing(t *testing.T) {
	t.Parallel()
	_, r, _ := start(t)
	for _, row := range []struct{ text, want string }{
		{"", "the file is empty"},
		{"policy: login", `line 1: want a list of overrides, each beginning with "- policy:"`},
		{"[]", "line 1: want a list"},
		{"- policy: [", "line 1: did not find expected node content"},
		{"- policy: login\n  all: true\n  limits: 9/h\n  for: 1h\n- 7", "line 5: want an override"},
		{"- policy: login\n  all: true\n  limits: 9/x\n  fro: 1h\n",
			"override 1, line 1: want one of until and for\noverride 1, line 3: limits: "},
		{"- policy: login\n  all: true\n  limits: 9/x\n  fro: 1h\n",
			"line 4: fro: no such field; there are policy, client"},
		{"- limits: [9/h]\n  all: true\n  for: 1h\n  for: 2h\n", "line 1: policy is missing\noverride 1, line 4: for is given twice"},
		{"- policy: login\n  all: true\n  for: 1h\n  until: 2026\n  limits: []\n",
			"line 4: until: \"2026\" is no time such as"},
		{"- {policy: login, all: true, limits: 9/h, for: 1h}\n- {policy: login, client: bob, limits: 9/h, for: 1h}\n",
			`line 2: policy "login" counts by address, and "bob" is none`},
		{"- {policy: login, all: true, limits: 9/h, for: 1h}\n\n- {policy: login, all: true, limits: 8/h, for: 1h}\n",
			`line 3: policy "login" has all clients twice`},
		{"- {policy: login, all: true, limits: 9/h, for: 1h}\n\n- {policy: ban, all: true, limits: 8/h, for: 400d}\n",
			"override 2, line 3: an override until"},
		{"- {policy: login, all: true, limits: 9/h, for: 1h}\n" +
			"- {policy: ban, all: true, limits: 8/h, for: 1h, note: \"(override 7)\\n\"}\n",
			`override 2, line 2: the note "(override 7)\n" has control characters`},
		{"- {policy: ban, all: true, limits: 8/h, for: 400d}\n" +
			"- {policy: login, all: true, limits: 8/h, for: 400d, note: \"(override 1)\\a\"}\n",
			"\noverride 2, line 2: the note"},
		{"\n- {policy: ban, all: true, limits: 8/h, for: 400d}\n", "override 1, line 2: an override until"},
		{strings.Repeat("- {policy: login, all: true, limits: 9/h, for: 1h}\n", 10_001), "10001 overrides; want at most 10000"},
		{"- {policy: login, all: true, limits: 9/h, for: 1h}\n---\n- {policy: ban, all: true, limits: 9/h, for: 1h}\n",
			"line 2: another document"},
		{"# nothing\n", "the file is empty"},
		{strings.Repeat("#", operate.MaxFile+1), "the file has more than 16777216 bytes"},
	} {
		r.fails(exitUsage, row.want, "apply", file(t, row.text), "-y")
	}
	require.Empty(t, read[[]operate.Written](r, "overrides"))
}

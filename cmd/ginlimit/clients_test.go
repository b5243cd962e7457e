package main

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
	"github.com/ginlimit/ginlimit/contrib/top"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// hostileClients are names that clients may choose.
var hostileClients = []string{
	"prohibited", "unlimited", "10/s", "4 in flight", "1/h, 2/m", "all", "report", "true",
	"-x", "-y", "-1", "-json", "--all", "--end", "--yes", "--json", "--help", "-h", "--version", "--hash",
	"--hash=true", "--",
	"--redis=redis://127.0.0.1:1", "--redis", "--prefix=other", "--note", "--for", "--timeout=1ns", "--limit=prohibited",
	"#", "#a", "a b", " ", "'", `"`, `\`, "a'b", "$HOME", "$(exit)", "`exit`", "*", "~", "!", "=ls", "a;b", "a|b",
	"{a}", "a\nb",
	"a\x1b[2Jb", "\x01", "\t", "a\u202eb", "\u00a0", "é", "\xff\xfe", "a\xc3", "\ufffd",
	strings.Repeat("x", 300), "null", "- a", "a: b",
}

// TestClientsChooseTheirNames: with flags before -- a script is right whatever the name is.
func TestClientsChooseTheirNames(t *testing.T) {
	t.Parallel()
	policies, r, _ := start(t)
	report := policies["report"]
	for _, name := range hostileClients {
		held := testkit.Must(report.Reserve(t.Context(), name, 1))
		require.Len(t, readAs[[]operate.Holder](r, "slots", "--json", "--", "report", name), 1, "%q", name)
		held.Release()
		require.Equal(t, string([]rune(name)), readAs[shown](r, "status", "--json", "--", "report", name).Client)
		r.ok("block", "-y", "--", "report", name, "1h")
		peeked := testkit.Must(report.Peek(t.Context(), name))
		require.False(t, peeked.Allowed, "%q", name)
		require.Equal(t, exitDenied, r.run("status", "--", "report", name).code, "%q", name)
		require.NotContains(t, r.run("status", "--", "report", name).out, "\x1b")
		r.ok("unblock", "-y", "--", "report", name)
		peeked = testkit.Must(report.Peek(t.Context(), name))
		require.True(t, peeked.Allowed, "%q", name)
		if utf8.ValidString(name) { // an override is JSON
			r.ok("override", "--for", "1h", "-y", "--", "report", name, "prohibited")
			list := read[[]override](r, "overrides")
			require.Len(t, list, 1, "%q", name)
			require.Equal(t, name, list[0].Client)
			require.NotContains(t, r.ok("overrides"), "\x1b")
			require.Equal(t, exitDenied, r.run("status", "--", "report", name).code, "%q", name)
			require.True(t, readAs[shown](r, "status", "--json", "--", "report", "other").Allowed, "%q", name)
			r.ok("override", "--end", "-y", "--", "report", name)
		}
		require.Empty(t, read[[]override](r, "overrides"), "%q", name)
	}
}

// readAs reads the JSON of a run that has --json.
func readAs[T any](r *runner, args ...string) (value T) {
	r.t.Helper()
	got := r.run(args...)
	require.NoError(r.t, jsonOf(got.out, &value), "%q: %s", args, got.errs)
	return value
}

// TestNamesThatReadAsFlags: who forgets -- gets an error, and changes nothing for anybody else.
func TestNamesThatReadAsFlags(t *testing.T) {
	t.Parallel()
	policies, r, _ := start(t)
	for _, name := range hostileClients {
		if !strings.HasPrefix(name, "-") || name == "- a" {
			continue
		}
		for _, args := range [][]string{{"status", "report", name}, {"slots", "report", name},
			{"block", "report", name, "1h", "-y"}, {"reset", "report", name, "-y"},
			{"override", "report", name, "prohibited", "--for", "1h", "-y"}, {"override", "report", name, "--end", "-y"},
			{"override", "report", name, "1/h, 2/m", "--for", "1h", "-y", "--note", "a"}} {
			require.Equal(t, exitUsage, r.run(args...).code, "%q", args)
		}
		require.Empty(t, read[[]override](r, "overrides"), "%q", name)
	}
	r.fails(exitUsage, "a client that begins with - comes after --", "status", "report", "-x")
	for _, name := range []string{"prohibited", "10/s", "unlimited", "4 in flight"} { // the client, and no limit
		r.ok("override", "report", name, "1/h", "--for", "1h", "-y")
		require.Equal(t, name, read[[]override](r, "overrides")[0].Client)
		r.ok("override", "report", name, "--end", "-y")
		r.fails(exitUsage, "accepts 3 arg(s), received 2", "override", "report", name, "--for", "1h", "-y")
	}
	for _, client := range []string{"other", "1h", "-y"} {
		require.True(t, testkit.Must(policies["report"].Peek(t.Context(), client)).Allowed)
	}
	r.fails(exitUsage, "the client is empty", "override", "report", "", "1/h", "--for", "1h", "-y")
	r.fails(exitUsage, "the client is empty", "override", "report", "", "--end", "-y")
}

// TestClientsInFiles are clients, whatever they read as. That all are meant has to be said.
func TestClientsInFiles(t *testing.T) {
	t.Parallel()
	_, r, _ := start(t)
	r.in = "- {policy: report, limits: 9/h, for: 1h}"
	r.fails(exitUsage, "line 1: want one of client and all: true", "apply", "-", "-y")
	r.in = "- {policy: report, client: a, all: true, limits: 9/h, for: 1h}"
	r.fails(exitUsage, "line 1: want one of client and all: true", "apply", "-", "-y")
	r.in = "- {policy: report, all: false, limits: 9/h, for: 1h}"
	r.fails(exitUsage, "line 1: all: want true, or a client", "apply", "-", "-y")
	r.in = "- {policy: report, client: , limits: 9/h, for: 1h}"
	r.fails(exitUsage, "line 1: client: want a text", "apply", "-", "-y")
	r.in = `- {policy: report, client: "", limits: 9/h, for: 1h}`
	r.fails(exitUsage, "line 1: client: it is empty; all: true is for all clients", "apply", "-", "-y")
	r.in = "- {policy: report, all: true, hash: true, limits: 9/h, for: 1h}"
	r.fails(exitUsage, "line 1: hash is without a client", "apply", "-", "-y")
	r.in = `- {policy: report, client: a, hash: maybe, limits: 9/h, for: 1h}`
	r.fails(exitUsage, "line 1: hash: want true or false", "apply", "-", "-y")
	var text strings.Builder
	for _, name := range []string{"prohibited", "10/s", `"all"`, "true", `"null"`, "0x10", `"- a"`, `"a\eb"`} {
		text.WriteString("- {policy: report, client: " + name + ", limits: 9/h, for: 1h}\n")
	}
	r.in = text.String()
	require.NotContains(t, r.ok("apply", "-", "-y"), "\x1b")
	var clients []string
	for _, o := range read[[]override](r, "overrides") {
		clients = append(clients, o.Client)
	}
	require.ElementsMatch(t, []string{"prohibited", "10/s", "all", "true", "null", "0x10", "- a", "a\x1bb"}, clients)
}

// shownBy returns what top shows of a policy's only client, as arguments.
func (r *runner) shownBy(policy string) (args []string) {
	r.t.Helper()
	require.True(r.t, testkit.BecomesTrue(nil, func() bool {
		lines := strings.Split(strings.TrimSpace(r.ok("top", policy)), "\n")
		words := strings.Fields(lines[len(lines)-1])
		args = words[:max(0, len(words)-2)]
		return len(lines) == 2 && lines[0] != ""
	}))
	for i := range args {
		args[i] = strings.Trim(args[i], "'")
	}
	return args
}

// reportDenials reports a denial of a client, as a process with a reporter does.
func reportDenials(t *testing.T, rdb *redis.Client, secret []byte, policy, client string) {
	opts := []top.Option{}
	if secret != nil {
		opts = append(opts, top.WithKeySecret(secret))
	}
	reporter := testkit.Must(top.New(rdb, opts...))
	reporter.Observe(t.Context(), ginlimit.Event{Name: policy, Outcome: ginlimit.OutcomeDenied}, client)
	require.NoError(t, reporter.Close())
}

// TestHashesThatTopShows can be given to the other commands, without the secret, and are the client's.
func TestHashesThatTopShows(t *testing.T) {
	t.Parallel()
	secret := []byte(strings.Repeat("s", 16))
	for name, opts := range map[string][]ginlimit.LimiterOption{"secret": {ginlimit.WithKeySecret(secret)}, "long": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policies, r, rdb := start(t, opts...)
			long := "é" + strings.Repeat("x", 100)
			stored := []byte(nil)
			if opts != nil {
				stored = secret
			}
			reportDenials(t, rdb, stored, "report", long)
			args := r.shownBy("report")
			require.Len(t, args, 2)
			require.Equal(t, "--hash", args[1])
			require.True(t, clientkey.IsHash(args[0]))
			with := func(before ...string) func(after ...string) []string {
				return func(after ...string) []string { return slices.Concat(before, args, after) }
			}
			report := policies["report"]
			require.Contains(t, r.ok(with("block", "report")("1h", "-y")...), "blocked client")
			require.False(t, testkit.Must(report.Peek(t.Context(), long)).Allowed)
			require.Equal(t, exitDenied, r.run(with("status", "report")()...).code)
			r.ok(with("reset", "report")("-y")...)
			require.True(t, testkit.Must(report.Peek(t.Context(), long)).Allowed)
			held := testkit.Must(report.Reserve(t.Context(), long, 1))
			defer held.Release()
			require.Len(t, read[[]operate.Holder](r, with("slots", "report")()...), 1)
			require.Equal(t, 99, readAs[shown](r, with("status", "report")("--json")...).Limits[0].Remaining)

			end := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
			override := with("override", "report")("9/h", "--until", end, "-y")
			r.in = fmt.Sprintf("- {policy: report, client: %q, hash: true, limits: 9/h, until: %s}", args[0], end)
			if opts == nil {
				const want = "has no WithKeySecret, so its overrides are of clients and not of hashes"
				r.fails(exitUsage, want, override...)
				r.fails(exitUsage, want, "apply", "-", "-y")
				r.ok("override", "report", long, "9/h", "--for", "1h", "-y")
			} else {
				r.ok(override...)
				require.Equal(t, "nothing changes\n", r.ok("apply", "-", "--prune", "--dry-run"))
			}
			require.Equal(t, ginlimit.PerHour(9), readAs[shown](r, with("status", "report")("--json")...).Limits[0].Limit)
			require.True(t, testkit.BecomesTrue(nil, func() bool {
				return testkit.Must(report.Peek(t.Context(), long)).Limit == ginlimit.PerHour(9)
			}))
			require.Equal(t, ginlimit.PerHour(100), testkit.Must(report.Peek(t.Context(), "other")).Limit)
		})
	}
}

// TestAClientNamedAsAHash: it is neither blocked in place of another, nor another in its place.
func TestAClientNamedAsAHash(t *testing.T) {
	t.Parallel()
	policies, r, rdb := start(t)
	victim := strings.Repeat("v", 100)
	hash := string(clientkey.Text{}.Append(nil, "report|", victim))
	for _, args := range [][]string{{"status", "report", hash}, {"slots", "report", hash},
		{"block", "report", hash, "1h", "-y"}, {"reset", "report", hash, "-y"},
		{"override", "report", hash, "1/h", "--for", "1h", "-y"}, {"override", "report", hash, "--end", "-y"}} {
		r.fails(exitUsage, hash+" may be a hash or a client of this name: give --hash if top shows it so, or --hash=false",
			args...)
	}
	r.in = `- {policy: report, client: "` + hash + `", limits: 9/h, for: 1h}`
	r.fails(exitUsage, "line 1: "+hash+" may be a hash", "apply", "-", "-y")
	reportDenials(t, rdb, nil, "report", hash)
	require.Equal(t, []string{hash, "--hash=false"}, r.shownBy("report"))
	allowed := func(client string) bool { return testkit.Must(policies["report"].Peek(t.Context(), client)).Allowed }
	r.ok("block", "report", hash, "--hash=false", "1h", "-y")
	require.True(t, allowed(victim))
	require.False(t, allowed(hash))
	r.ok("block", "report", hash, "--hash", "1h", "-y")
	r.ok("reset", "report", hash, "--hash=false", "-y")
	require.False(t, allowed(victim))
	require.True(t, allowed(hash))
	for _, no := range []string{"key", "#", hash[:43], hash + "A", hash[:43] + "\n", hash[:43] + "!",
		"#" + strings.Repeat("=", 43)} {
		r.fails(exitUsage, "is no hash as top shows it", "block", "--hash", "-y", "--", "report", no, "1h")
	}
	r.fails(exitUsage, "--tenant needs the client", "status", "share", hash, "--hash", "--tenant", "a")
	r.ok("reset", "share", hash, "--hash", "-y")
}

// TestWordsAreAsAShellReadsThem: what is shown of a client can be an argument.
func TestWordsAreAsAShellReadsThem(t *testing.T) {
	t.Parallel()
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not there")
	}
	for _, text := range append(slices.Clone(hostileClients), "", "\x7f", "é\xc3é", "203.0.113.7", "2001:db8::/64") {
		shown := word(text)
		require.NotRegexp(t, `[\x00-\x1f\x7f]`, shown)
		out, err := exec.Command(shell, "-c", "printf 'x%s' "+shown).Output()
		require.NoError(t, err, shown)
		require.Equal(t, "x"+text, string(out), shown)
	}
	require.Equal(t, "203.0.113.7", word("203.0.113.7"))
	require.Equal(t, "'a b'", word("a b"))
	require.Equal(t, `$'a\x1b[2J\'\\'`, word("a\x1b[2J'\\"))
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/top"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// ran is what one run of the tool said.
type ran struct {
	code      int
	out, errs string
}

// runner runs the tool against a Redis.
type runner struct {
	t        *testing.T
	env      map[string]string
	in       string
	terminal bool
}

func newRunner(t *testing.T, url string) *runner {
	return &runner{t: t, env: map[string]string{"REDIS_URL": url}}
}

func (r *runner) run(args ...string) ran {
	r.t.Helper()
	var out, errs bytes.Buffer
	t := &tool{in: strings.NewReader(r.in), out: &out, errs: &errs, terminal: r.terminal,
		env: func(name string) string { return r.env[name] }}
	code := t.run(r.t.Context(), args)
	return ran{code, out.String(), errs.String()}
}

// ok returns the output of a run that succeeds.
func (r *runner) ok(args ...string) string {
	r.t.Helper()
	got := r.run(args...)
	require.Equal(r.t, exitOK, got.code, "%s%s", got.errs, got.out)
	return got.out
}

// fails requires that a run fails, and what it says then.
func (r *runner) fails(code int, text string, args ...string) {
	r.t.Helper()
	got := r.run(args...)
	require.Equal(r.t, code, got.code, "%s%s", got.errs, got.out)
	require.Contains(r.t, got.errs, text)
}

// read reads the JSON of a run that succeeds.
func read[T any](r *runner, args ...string) (value T) {
	r.t.Helper()
	require.NoError(r.t, jsonOf(r.ok(append(args, "--json")...), &value))
	return value
}

// TestFlagsWithOneDash, as Go's own tools have them. What follows -- is no flag.
func TestFlagsWithOneDash(t *testing.T) {
	rdb, _ := testkit.NewMiniredis(t)
	application(t, rdb)
	r := newRunner(t, "redis://"+rdb.Options().Addr)
	require.Equal(t, r.ok("overrides", "--json", "--timeout=4s"), r.ok("overrides", "-json", "-timeout=4s"))
	require.Equal(t, r.ok("--help"), r.ok("-help"))
	r.fails(exitUsage, "unknown shorthand flag", "policies", "-jsom")
	root := (&tool{}).root()
	require.Equal(t, []string{"status", "-y", "--yes", "--", "-yes"},
		withTwoDashes(root, []string{"status", "-y", "-yes", "--", "-yes"}))
}

func jsonOf(text string, value any) error { return json.Unmarshal([]byte(text), value) }

// application returns a limiter that serves policies, all of which are published.
func application(t *testing.T, rdb redis.UniversalClient, opts ...ginlimit.LimiterOption) map[string]*ginlimit.Policy {
	t.Helper()
	reporter := testkit.Must(top.New(rdb, top.WithInterval(time.Second), top.WithUsage()))
	limiter := testkit.Must(ginlimit.NewLimiter(rdb, append([]ginlimit.LimiterOption{ginlimit.WithTimeout(testkit.Patience),
		ginlimit.WithLogger(slog.New(slog.DiscardHandler)), ginlimit.WithDenyCache(0),
		ginlimit.WithClientObserver(reporter.Observe)}, opts...)...))
	t.Cleanup(func() {
		require.NoError(t, limiter.Close())
		require.NoError(t, reporter.Close())
	})
	policies := map[string]*ginlimit.Policy{}
	for name, own := range map[string][]ginlimit.PolicyOption{
		"login":  {ginlimit.Per(5, 15*time.Minute)},
		"search": {ginlimit.PerMinute(20)},
		"ban":    {ginlimit.PerHour(1), ginlimit.WithBan(time.Hour, time.Hour), ginlimit.WithKey(ginlimit.ByHeader("X"))},
		"report": {ginlimit.PerHour(100), ginlimit.InFlight(3), ginlimit.WithKey(ginlimit.ByHeader("X"))},
		"plan": {ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
			return []ginlimit.Limit{ginlimit.PerHour(7)}, nil
		}), ginlimit.WithKey(ginlimit.ByHeader("X"))},
		"trial": {ginlimit.PerHour(1), ginlimit.WithDryRun()},
		"share": {ginlimit.PerMinute(60), ginlimit.WithShares(func(*gin.Context) (string, int) { return "a", 1 })},
		"lease": {ginlimit.PerSecond(100), ginlimit.WithLease(time.Second)},
		"busy":  {ginlimit.Per(100000, 100000*time.Hour)},
	} {
		p := testkit.Must(limiter.Policy(name, own...))
		p.Handler()
		if policies[name] = p; name == "share" {
			p = p.Share("a", 1)
		}
		r := testkit.Must(p.Reserve(t.Context(), "someone", 1))
		r.Release()
	}
	require.True(t, testkit.BecomesTrue(nil, func() bool {
		all, err := limiter.Policies(t.Context())
		return err == nil && len(all) == len(policies)
	}))
	return policies
}

// start returns an application on a Redis in this process, and the tool for it.
func start(t *testing.T, opts ...ginlimit.LimiterOption) (map[string]*ginlimit.Policy, *runner, *redis.Client) {
	rdb, _ := testkit.NewMiniredis(t)
	return application(t, rdb, opts...), newRunner(t, "redis://"+rdb.Options().Addr), rdb
}

// take takes a token of a client.
func take(t *testing.T, p *ginlimit.Policy, client string) ginlimit.Result {
	t.Helper()
	r := testkit.Must(p.Allow(t.Context(), client))
	return r
}

// TestBuiltTool: it is a program with these exit codes, and asks nobody where there is no terminal.
func TestBuiltTool(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "ginlimit")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	policies, r, _ := start(t)
	take(t, policies["ban"], "key")
	take(t, policies["ban"], "key")
	for code, args := range [][]string{{"policies"}, {"overrides", "--redis", testkit.RefusedAddr(t)},
		{"reset", "ban", "key"}, {"status", "ban", "key"}} {
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), "REDIS_URL="+r.env["REDIS_URL"])
		out, _ := cmd.CombinedOutput()
		require.Equal(t, code, cmd.ProcessState.ExitCode(), "%s", out)
	}
}

func TestMistakesOfUse(t *testing.T) {
	t.Parallel()
	r := newRunner(t, "redis://"+testkit.RefusedAddr(t))
	for text, args := range map[string][]string{
		`unknown command "nope"`:                     {"nope"},
		"give a POLICY":                              {"top"},
		"unknown flag: --nope":                       {"top", "p", "--nope"},
		"of Redis: want HOST, HOST:PORT or":          {"top", "p", "--redis", "redis://user:secret@[::1"},
		"in a password, write / as %2F":              {"top", "p", "--redis", "redis://user:secret/x@a"},
		"want a database number and no other":        {"top", "p", "--redis", "redis://user:secret@a/b"},
		"a unix socket has a path such as /run":      {"top", "p", "--redis", "unix://secret@"},
		"want the scheme redis, rediss or unix":      {"top", "p", "--redis", "http://x"},
		"need a URL that begins with rediss://":      {"top", "p", "--ca", "x"},
		"--ca /dev/null: no certificate":             {"top", "p", "--ca", "/dev/null", "--redis", "rediss://x"},
		"--cluster and --sentinel":                   {"top", "p", "--cluster", "--sentinel", "x"},
		"--timeout 0s":                               {"top", "p", "--timeout", "0"},
		"--key-secret-file: open /none":              {"policies", "--key-secret-file", "/none"},
		"--number -1: want at least 1":               {"top", "p", "-n", "-1"},
		`"soon" is no duration above 0`:              {"block", "p", "c", "soon"},
		"WithPrefix(\"{\")":                          {"policies", "--prefix", "{"},
		"open /none/file: no such file or directory": {"apply", "/none/file"},
	} {
		r.fails(exitUsage, text, args...)
		require.NotContains(t, r.run(args...).errs, "secret@")
	}
	r.fails(exitFailed, "connection refused", "top", "p")
	r.fails(exitFailed, "connection refused", "policies")
	require.Contains(t, r.ok(), "Usage:")
	require.Regexp(t, `(?m)^  reset, unblock +End a client's block`, r.ok("help"))
	require.Regexp(t, `(?m)^  override-all +Replace`, r.ok("help"))
	require.Contains(t, r.ok("completion", "bash"), "ginlimit")
	require.Contains(t, r.ok("--version"), "ginlimit version")
}

func TestAddressesOfRedis(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"a":                           {"a:6379"},
		"a:1,b:2":                     {"a:1", "b:2"},
		"redis://u:p@a,b:2/3":         {"a:6379", "b:2"},
		"rediss://:p,q@[::1]:1,[::2]": {"[::1]:1", "[::2]:6379"},
	} {
		one, addrs, err := parseURL(text)
		require.NoError(t, err, text)
		require.Equal(t, want, addrs)
		require.Equal(t, strings.HasPrefix(text, "rediss"), one.TLSConfig != nil)
	}
}

// TestReadme: it says what the commands say.
func TestReadme(t *testing.T) {
	t.Parallel()
	text := testkit.Must(os.ReadFile("README.md"))
	var rows []string
	for _, c := range (&tool{}).root().Commands() {
		rows = append(rows, rowOf(c))
	}
	_, list, _ := strings.Cut(string(text), "\n- `")
	list, _, _ = strings.Cut(list, "\n\n")
	require.ElementsMatch(t, rows, strings.Split("- `"+list, "\n"))
	require.Contains(t, strings.Join(strings.Fields(string(text)), " "), exitCodes)
	require.Less(t, len(strings.Fields(string(text))), 350)
}

func rowOf(c *cobra.Command) string {
	use := c.Use
	for _, alias := range c.Aliases {
		use += "`, `" + strings.Replace(c.Use, c.Name(), alias, 1)
	}
	return "- `" + use + "`: " + c.Short
}

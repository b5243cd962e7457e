package main

import (
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// incident returns the commands of an incident in docs/operations.md, each with the output there.
func incident(t *testing.T, title string) (commands [][2]string) {
	t.Helper()
	_, text, ok := strings.Cut(testkit.Read(t, "docs/operations.md"), "\n**"+title+".** ")
	require.True(t, ok, title)
	_, text, _ = strings.Cut(text, "```text\n")
	text, _, _ = strings.Cut(text, "```")
	for _, part := range strings.Split(text, "$ ginlimit ")[1:] {
		command, out, _ := strings.Cut(part, "\n")
		commands = append(commands, [2]string{command, out})
	}
	require.NotEmpty(t, commands)
	return commands
}

var (
	numbers = regexp.MustCompile(`\d+(\.\d+)?(ms|µs|s|m)?( MiB)?`)
	// mentioned is a command in the text of a document.
	mentioned = regexp.MustCompile("(?:`|\\$ )ginlimit ([^`\n]*)")
	words     = regexp.MustCompile(`"[^"]*"|\S+`)
)

// same makes numbers and widths of columns equal: these differ from run to run.
func same(line string) string {
	return strings.Join(strings.Fields(numbers.ReplaceAllString(line, "N")), " ")
}

// follow runs the commands of an incident. Each line that the document shows is in the output, in this order.
func (r *runner) follow(title string) {
	r.t.Helper()
	for _, step := range incident(r.t, title) {
		args := words.FindAllString(step[0], -1)
		for i := range args {
			args[i] = strings.Trim(args[i], `"`)
		}
		got := r.run(args...)
		require.Empty(r.t, got.errs, step[0])
		lines := strings.Split(got.out, "\n")
		for _, want := range strings.Split(strings.TrimSpace(step[1]), "\n") {
			for len(lines) > 0 && same(lines[0]) != same(want) {
				lines = lines[1:]
			}
			require.NotEmpty(r.t, lines, "ginlimit %s does not print\n%s\nbut\n%s", step[0], want, got.out)
		}
	}
}

// TestIncidents runs the incidents of docs/operations.md from the alert to the fix.
func TestIncidents(t *testing.T) {
	t.Parallel()
	t.Run("a flood", func(t *testing.T) {
		t.Parallel()
		policies, r, _ := start(t)
		const client = "198.51.100.7"
		for range 62 {
			take(t, policies["search"], client)
		}
		require.True(t, testkit.BecomesTrue(nil, func() bool { return len(read[[]ranked](r, "top", "search")) > 0 }))
		r.follow("A flood")
		require.Greater(t, take(t, policies["search"], client).RetryAfter.Minutes(), 50.0)
		r.ok("unblock", "search", client, "-y")
		r.ok("override-all", "search", "unlimited", "--for", "1h", "-y")
		require.True(t, testkit.BecomesTrue(nil, func() bool {
			return take(t, policies["search"], client).Limit == ginlimit.Unlimited()
		}))
	})
	t.Run("a customer", func(t *testing.T) {
		t.Parallel()
		policies, r, _ := start(t)
		for range 6 {
			take(t, policies["login"], "203.0.113.7")
		}
		r.follow("A customer is denied")
		require.True(t, testkit.BecomesTrue(nil, func() bool {
			return take(t, policies["login"], "203.0.113.7").Limit.Rate == 50
		}))
		require.Equal(t, 5, take(t, policies["login"], "203.0.113.8").Limit.Rate)
	})
	t.Run("a full Redis", func(t *testing.T) {
		t.Parallel()
		addr := testkit.StartRedis(t)
		rdb := testkit.Connect(t, addr)
		policies, r := application(t, rdb), newRunner(t, "redis://"+addr)
		require.NoError(t, rdb.Set(t.Context(), "filler", strings.Repeat("x", 1<<20), 0).Err())
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1mb").Err())
		require.Equal(t, ginlimit.FromLocal, take(t, policies["login"], "203.0.113.7").Source)
		r.follow("Redis is full")
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "2gb").Err())
		require.True(t, testkit.BecomesTrue(nil, func() bool {
			return take(t, policies["login"], "203.0.113.7").Source == ginlimit.FromRedis
		}))
		r.ok("doctor")
	})
}

// TestDocumentsNameCommandsThatAreThere, with flags that these have.
func TestDocumentsNameCommandsThatAreThere(t *testing.T) {
	t.Parallel()
	found := 0
	for _, document := range []string{"docs/operations.md", "docs/guide.md", "cmd/ginlimit/README.md",
		"contrib/top/README.md"} {
		for _, m := range mentioned.FindAllStringSubmatch(testkit.Read(t, document), -1) {
			found++
			root := (&tool{}).root()
			root.InitDefaultHelpCmd()
			c, args, err := root.Find(words.FindAllString(m[1], -1))
			require.NoError(t, err, m[0])
			require.True(t, c.HasParent(), m[0])
			require.NoError(t, c.ParseFlags(args), m[0])
		}
	}
	require.Greater(t, found, 12)
}

// TestOperatorsRights: what docs/operations.md grants to an operator is enough for overrides, and with what the
// application may do for the other commands.
func TestOperatorsRights(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t)
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	rdb := testkit.Connect(t, addr)
	policies := application(t, rdb)
	user := func(name string, more ...string) *runner {
		rule := []any{"ACL", "SETUSER", name}
		for _, word := range append(testkit.ACLBlock(t, "ACL SETUSER operator")[3:], more...) {
			rule = append(rule, word)
		}
		require.NoError(t, rdb.Do(t.Context(), rule...).Err())
		return newRunner(t, fmt.Sprintf("redis://%s:secret@127.0.0.1:%s", name, port))
	}
	r := user("operator")
	require.Len(t, read[[]published](r, "policies"), len(policies))
	r.ok("override-all", "search", "9/h", "--for", "1h", "-y") // the application may go by it a little longer
	require.Len(t, read[[]override](r, "overrides"), 1)
	r.in = "[{policy: search, all: true, limits: 8/h, for: 1h}]"
	r.ok("apply", "-", "-y", "--prune")
	r.ok("override-all", "search", "--end", "-y")
	r.fails(exitFailed, "NOPERM", "status", "login", "203.0.113.7")
	require.NoError(t, rdb.Do(t.Context(), "ACL", "LOG", "RESET").Err())

	more := []string{"~ginlimit:{*|*", "~ginlimit:denied:*", "%R~ginlimit:*", "+ping", "+info", "+randomkey"}
	for _, algorithm := range []string{"TokenBucket", "FixedWindow", "SlidingWindow"} {
		more = append(more, commandsOf(t, algorithm)...)
	}
	r = user("support", more...)
	for range 6 {
		take(t, policies["login"], "203.0.113.7")
	}
	require.Equal(t, exitDenied, r.run("status", "login", "203.0.113.7").code)
	r.ok("block", "login", "203.0.113.7", "1h", "-y")
	r.ok("reset", "login", "203.0.113.7", "-y")
	r.ok("slots", "report", "key")
	r.ok("top", "login")
	r.ok("doctor")
	testkit.RequireNothingDenied(t, addr)
}

// commandsOf returns the commands that docs/operations.md grants for an algorithm.
func commandsOf(t *testing.T, algorithm string) (commands []string) {
	m := regexp.MustCompile(`(?m)^# ` + algorithm + "\nACL SETUSER app (.*)$").FindStringSubmatch(
		testkit.Read(t, "docs/operations.md"))
	require.NotNil(t, m)
	for _, word := range strings.Fields(m[1]) {
		if strings.HasPrefix(word, "+") {
			commands = append(commands, word)
		}
	}
	return commands
}

//go:build integration

package ginlimit_test

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/harness"
)

// restrict makes a user who may do what docs/operations.md says that an algorithm needs, and more.
func restrict(t *testing.T, addr, algorithm string, more ...string) redis.Options {
	t.Helper()
	m := regexp.MustCompile(`(?m)^# ` + algorithm + "\nACL (SETUSER app .*)$").FindStringSubmatch(read(t, "docs/operations.md"))
	require.NotNil(t, m, "docs/operations.md has no line for %s", algorithm)
	rules := []any{"ACL"}
	for _, rule := range append(strings.Fields(m[1]), more...) {
		rules = append(rules, rule)
	}
	require.NoError(t, harness.Connect(t, addr).Do(t.Context(), rules...).Err())
	user := redis.Options{Addr: addr, Username: "app", Password: "secret"}
	rdb := redis.NewClient(&user)
	defer rdb.Close()
	require.ErrorContains(t, rdb.Time(t.Context()).Err(), "NOPERM")
	require.NoError(t, harness.Connect(t, addr).Do(t.Context(), "ACL", "LOG", "RESET").Err())
	return user
}

// privilegesOf returns the privileges in the sentence of docs/operations.md that begins so.
func privilegesOf(t *testing.T, begin string) []string {
	t.Helper()
	m := regexp.MustCompile(regexp.QuoteMeta(begin) + "\\s+`([^`]*)`").FindStringSubmatch(read(t, "docs/operations.md"))
	require.NotNil(t, m, begin)
	return strings.Fields(m[1])
}

// TestHashedTagIsFoundByTheDocumentedCommand runs the command of docs/operations.md that works out a slot tag.
func TestHashedTagIsFoundByTheDocumentedCommand(t *testing.T) {
	t.Parallel()
	bash := harness.Need(t, "bash")
	harness.Need(t, "openssl")
	m := regexp.MustCompile("(?s)```sh\n(printf %s '([^']*)' [^\n]*)\n```").FindStringSubmatch(read(t, "docs/operations.md"))
	require.NotNil(t, m)
	require.Equal(t, ginlimit.Key("h", "a{b}"), m[2], "the client that the document speaks of")
	tag, err := exec.CommandContext(t.Context(), bash, "-c", m[1]).Output()
	require.NoError(t, err)
	require.Equal(t, ginlimit.SlotText(m[2]), strings.TrimSpace(string(tag)))
}

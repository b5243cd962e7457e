package testkit

import (
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// RequireNothingDenied looks whether Redis has refused a user a command.
func RequireNothingDenied(t *testing.T, addr string) {
	t.Helper()
	refused, err := Connect(t, addr).Do(t.Context(), "ACL", "LOG").Slice()
	require.NoError(t, err)
	assert.Empty(t, refused)
}

// Restrict makes a user who may do what docs/operations.md says that an algorithm needs, and more.
func Restrict(t *testing.T, addr, algorithm string, more ...string) redis.Options {
	t.Helper()
	m := regexp.MustCompile(`(?m)^# ` + algorithm + "\nACL (SETUSER app .*)$").FindStringSubmatch(Read(t,
		"docs/operations.md"))
	require.NotNil(t, m, "docs/operations.md has no line for %s", algorithm)
	rules := []any{"ACL"}
	for _, rule := range append(strings.Fields(m[1]), more...) {
		rules = append(rules, rule)
	}
	require.NoError(t, Connect(t, addr).Do(t.Context(), rules...).Err())
	user := redis.Options{Addr: addr, Username: "app", Password: "secret"}
	rdb := redis.NewClient(&user)
	defer rdb.Close()
	require.ErrorContains(t, rdb.DBSize(t.Context()).Err(), "NOPERM")
	require.NoError(t, Connect(t, addr).Do(t.Context(), "ACL", "LOG", "RESET").Err())
	return user
}

// PrivilegesOf returns the privileges in the sentence of docs/operations.md that begins so.
func PrivilegesOf(t *testing.T, begin string) []string {
	t.Helper()
	m := regexp.MustCompile(regexp.QuoteMeta(begin) + "\\s+`([^`]*)`").FindStringSubmatch(Read(t, "docs/operations.md"))
	require.NotNil(t, m, begin)
	return strings.Fields(m[1])
}

// ACLBlock returns the words of the line in a block of docs/operations.md that begins so.
func ACLBlock(t *testing.T, begin string) []string {
	t.Helper()
	m := regexp.MustCompile("(?m)^" + regexp.QuoteMeta(begin) + ".*$").FindString(Read(t, "docs/operations.md"))
	require.NotEmpty(t, m, begin)
	return strings.Fields(m)
}

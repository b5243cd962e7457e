package docs_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestEveryPairIsTested: each row of two features in docs/reference.md is there once, with a sentence and at least one
// test, and each test that it names exists.
func TestEveryPairIsTested(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{}
	for _, file := range filesThatMatch(t, "_test.go") {
		for _, m := range regexp.MustCompile(
			`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`).FindAllStringSubmatch(testkit.Read(t, file), -1) {
			tests[m[1]] = true
		}
	}
	name := regexp.MustCompile("`(\\w+)`")
	seen := map[string]bool{}
	_, section, found := strings.Cut(testkit.Read(t, "docs/reference.md"), "## What two features do together\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "| ---") || strings.Contains(line, "| tests |") {
			continue
		}
		if !assert.Len(t, cells, 3, "want three cells: %s", line) {
			continue
		}
		pair := strings.TrimSpace(cells[0])
		assert.False(t, seen[pair], "%s is here twice", pair)
		seen[pair] = true
		assert.Regexp(t, `^\S+ \S+ .*\.$`, cells[1], "want a sentence about %s", pair)
		named := name.FindAllStringSubmatch(cells[2], -1)
		assert.NotEmpty(t, named, "no test holds %s", pair)
		for _, m := range named {
			assert.True(t, tests[m[1]], "%s: there is no %s", pair, m[1])
		}
	}
	require.NotEmpty(t, seen)
	require.LessOrEqual(t, len(seen), 40)
}

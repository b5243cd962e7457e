package docs_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestEveryPairIsTested: docs/pairs.md has each pair of features once, under the feature that comes
// first, with a sentence and at least one test, and each test that it names exists.
func TestEveryPairIsTested(t *testing.T) {
	t.Parallel()
	features := []string{
		"shares", "allof", "settle", "refund", "reserve", "lease", "slots", "queue", "ban", "floor", "calendar", "plan",
		"dry run", "deny cache", "faillocal", "cluster",
	}
	tests := map[string]bool{}
	for _, file := range filesThatMatch(t, "_test.go") {
		for _, m := range regexp.MustCompile(
			`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`).FindAllStringSubmatch(testkit.Read(t, file), -1) {
			tests[m[1]] = true
		}
	}
	name := regexp.MustCompile("`(\\w+)`")
	missing := map[[2]string]bool{}
	for i, first := range features {
		for _, second := range features[i+1:] {
			missing[[2]string{first, second}] = true
		}
	}
	require.Len(t, missing, 120)
	heading, headings := "", []string(nil)
	for line := range strings.Lines(testkit.Read(t, "docs/pairs.md")) {
		line = strings.TrimSpace(line)
		if after, ok := strings.CutPrefix(line, "## "); ok {
			heading = strings.ToLower(after)
			headings = append(headings, heading)
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if !strings.HasPrefix(line, "|") || slices.Contains([]string{"with", "---"}, cells[0]) {
			continue
		}
		if !assert.Len(t, cells, 3, "want three cells: %s", line) {
			continue
		}
		pair := [2]string{heading, strings.ToLower(cells[0])}
		assert.True(t, missing[pair], "a pair that is here twice, under the wrong heading, or none: %q", pair)
		delete(missing, pair)
		assert.Regexp(t, `^\S+ \S+ .*\.$`, cells[1], "want a sentence about %q", pair)
		named := name.FindAllStringSubmatch(cells[2], -1)
		assert.NotEmpty(t, named, "no test holds %q", pair)
		for _, m := range named {
			assert.True(t, tests[m[1]], "%q: there is no %s", pair, m[1])
		}
	}
	assert.Equal(t, features, headings)
	for pair := range missing {
		assert.Fail(t, "a pair is missing", "%q", pair)
	}
}

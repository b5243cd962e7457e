package docs_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestReasonsAreConstants: those that docs/operations.md lists, once each, and no other word is one.
func TestReasonsAreConstants(t *testing.T) {
	t.Parallel()
	words := func(pattern, text string) (all []string) {
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			all = append(all, match[1])
		}
		slices.Sort(all)
		return all
	}
	between := func(text, from, to string) string {
		_, text, found := strings.Cut(text, from)
		require.True(t, found, from)
		text, _, _ = strings.Cut(text, to)
		return text
	}
	constants := words(`"(\w+)"`, between(testkit.Read(t, "event.go"), "\ntype Reason string\n\nconst (", "\n)\n"))
	var documented []string
	for row := range strings.Lines(between(testkit.Read(t, "docs/operations.md"), "\n## Reasons\n", "\n## ")) {
		if columns := strings.Split(row, "|"); len(columns) > 2 {
			documented = append(documented, words("`(\\w+)`", columns[1])...)
		}
	}
	slices.Sort(documented)
	require.Equal(t, constants, documented)

	store := testkit.Read(t, "internal/redisstore/reason.go")
	made := append(words(`"([A-Z]+)"`, between(store, "var replyWords", "}")),
		words(`return "(\w+)"`, between(store, "\nfunc Word(", "\n}\n"))...)
	code := between(testkit.Read(t, "internal/engine/stats.go"), "\nfunc Reason(", "\n}\n")
	made = append(made, words(`return "(\w+)"`, code)...)
	require.NotEmpty(t, made)
	require.Subset(t, constants, made)
}

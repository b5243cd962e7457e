package scripts_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestScriptSources: each is another, and a script for a cluster's node says so in its first line.
func TestScriptSources(t *testing.T) {
	t.Parallel()
	s := testkit.ScriptSources(t)
	seen := map[string]bool{}
	for i, source := range s.Server {
		require.NotEmpty(t, source, i)
		require.False(t, seen[source], "script %d", i)
		require.False(t, strings.HasPrefix(source, "#!"), i)
		seen[source] = true
	}
	for i, source := range s.Node {
		require.True(t, strings.HasPrefix(source, "#!"), i)
		require.False(t, seen[source], "script %d of a node", i)
		seen[source] = true
	}
}

// TestScriptOf in a bubble, too.
func TestScriptOf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := testkit.ScriptOf(ginlimit.TokenBucket, ginlimit.PerSecond(7))
		require.NoError(t, err)
		require.Equal(t, []string{"ginlimit:{test|k}:s"}, s.Keys)
		require.Equal(t, []any{"take", "1", "1"}, s.Args[:3])
	})
}

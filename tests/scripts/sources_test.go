package scripts_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// TestScripts: each is another, and a script for a cluster's node says so in its first line.
func TestScripts(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for number := range wire.Count {
		source := testkit.ScriptSource(t, number)
		require.False(t, seen[source], "script %d", number)
		require.Equal(t, wire.Node <= number && number < wire.BanOrSlots, strings.HasPrefix(source, "#!"), number)
		seen[source] = true
	}
}

// TestScriptOf in a bubble, too.
func TestScriptOf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := testkit.ScriptOf(ginlimit.TokenBucket, ginlimit.PerSecond(7))
		require.NoError(t, err)
		require.Equal(t, testkit.ScriptSource(t, wire.Tokens), s.Source)
		require.Equal(t, []string{"ginlimit:{test|k}:s"}, s.Keys)
		require.Equal(t, []any{"take", "1", "1"}, s.Args[:3])
	})
}

package scripts_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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

//go:build integration

package scripts_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestScriptsInLua54 runs the tests of scripts on Lua 5.4: each script ends as in Redis, and no command or reply of it
// has a float. Dragonfly has this Lua.
func TestScriptsInLua54(t *testing.T) {
	t.Parallel()
	const slow = "^TestEveryWayToCall|^TestRunsOfTenants|Redis|Cluster|Flush|Loaded|FewProcesses|Lua54"
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.skip", slow, "-lua54", testkit.Need(t, "lua5.4"))
	cmd.Env = append(os.Environ(), ranOnLua54+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	for number := range testkit.Scripts(t) {
		source := testkit.ScriptSource(t, number)
		if first, isNode := strings.CutPrefix(source, "#!"); isNode { // a comment in these tests
			source = "--" + first
		}
		assert.Contains(t, string(out), ranOnLua54+" "+sha(source), "script %d", number)
	}
	for name, source := range furtherScripts(t) {
		assert.Contains(t, string(out), ranOnLua54+" "+sha(source), name)
	}
}

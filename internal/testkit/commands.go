package testkit

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// CommandCalls returns how often a server ran each command.
func CommandCalls(t *testing.T, rdb *redis.Client) map[string]string {
	t.Helper()
	stats, err := rdb.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	calls := map[string]string{}
	for _, m := range regexp.MustCompile(`cmdstat_([^:]+):calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
		calls[m[1]] = m[2]
	}
	return calls
}

// ScriptCalls returns how often the script was called.
func ScriptCalls(t *testing.T, rdb *redis.Client) int {
	t.Helper()
	calls, err := strconv.Atoi(CommandCalls(t, rdb)["evalsha"])
	require.NoError(t, err)
	return calls
}

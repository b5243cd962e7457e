//go:build integration

package ginlimit_test

import (
	"regexp"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// commandCalls returns how often a server ran each command.
func commandCalls(t *testing.T, rdb *redis.Client) map[string]string {
	t.Helper()
	stats, err := rdb.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	calls := map[string]string{}
	for _, m := range regexp.MustCompile(`cmdstat_([^:]+):calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
		calls[m[1]] = m[2]
	}
	return calls
}

package scripts_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// TestScriptsHaveTheConstantsOfGo once, and no part of a script twice.
func TestScriptsHaveTheConstantsOfGo(t *testing.T) {
	t.Parallel()
	constants := fmt.Sprintf("\nlocal exact, wrap, grace, life, whole = %d, %d, %d, '%d', %d\n",
		int64(1<<53-1), int64(1<<52), bucket.Grace,
		inflight.Life.Milliseconds(), wire.Whole)
	for i := range wire.Count {
		source := testkit.ScriptSource(t, i)
		for _, line := range []string{
			constants, "\nlocal withRecords, noBans, limitBans = 1, 0, 2\n",
			"\nlocal spans, maxTimes, ever, maxRewritten = 16, 48, 4503599627370496, 500\n",
		} {
			require.Equal(t, 1, strings.Count(source, line), "script %d: %s", i, line)
		}
		for _, begin := range []string{
			"-- The beginning of every script", "-- The token bucket: ", "-- The fixed window ", "-- The sliding window: ",
			"-- Token buckets and calendar periods that are charged together", "-- Token buckets: how", "-- Fixed windows and",
			"-- Sliding windows: how", "-- A decision on limits of any kinds",
			"-- Tenants that share token buckets", "-- Token buckets that tenants share", "-- A decision or a change on",
			"-- The slots of a client", "-- A decision on limits together", "-- A decision on token buckets",
		} {
			require.LessOrEqual(t, strings.Count(source, begin), 1, "script %d: %s", i, begin)
		}
	}
}

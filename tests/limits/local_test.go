package limits_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Guarantee 7, of this process: invented clients, of whom there are more than there is room for,
// are not all remembered.
func TestLocalMemoryIsBounded(t *testing.T) { // not parallel: it measures the heap
	limiter, err := ginlimit.NewLocal()
	require.NoError(t, err)
	limit := ginlimit.PerDay(5)
	const banned, invented = 64, ginlimit.LocalBuckets * 9 / 8
	for i := range banned {
		require.NoError(t, limiter.Block(t.Context(), fmt.Sprint("banned ", i), 100*24*time.Hour, limit))
	}
	before := testkit.HeapInUse()
	for i := range invented {
		if _, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), limit); err != nil {
			t.Fatal(err)
		}
	}
	perBucket := float64(testkit.HeapInUse()-before) / ginlimit.LocalBuckets
	t.Logf("%.0f bytes for each of %d buckets", perBucket, ginlimit.LocalBuckets)
	require.Less(t, perBucket, 400.0)
	kept := limiter.Stats().LocalBuckets
	require.LessOrEqual(t, kept, ginlimit.LocalBuckets)
	require.GreaterOrEqual(t, kept, ginlimit.LocalBuckets*9/10)
	for i := range banned {
		r, err := limiter.Peek(t.Context(), fmt.Sprint("banned ", i), limit)
		require.NoError(t, err)
		require.False(t, r.Allowed, "what takes longest to be full is forgotten last")
	}
}

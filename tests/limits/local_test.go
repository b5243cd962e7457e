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
	limiter := testkit.WithoutRedis(t)
	limit := ginlimit.PerDay(5)
	const room = 32_768 // buckets; internal/memory holds the number that is documented
	testkit.SetLocalBuckets(limiter.Limiter, room)
	const banned, invented = 64, room * 9 / 8
	for i := range banned {
		testkit.RequireMade(t, limiter.Block(t.Context(), fmt.Sprint("banned ", i), 100*24*time.Hour, limit))
	}
	before := testkit.HeapInUse()
	for i := range invented {
		if _, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i), limit); err != nil {
			t.Fatal(err)
		}
	}
	perBucket := float64(testkit.HeapInUse()-before) / room
	t.Logf("%.0f bytes for each of %d buckets", perBucket, room)
	require.Less(t, perBucket, 400.0)
	kept := limiter.Stats().LocalBuckets
	require.LessOrEqual(t, kept, room)
	require.GreaterOrEqual(t, kept, room*9/10)
	for i := range banned {
		r := testkit.Must(limiter.Peek(t.Context(), fmt.Sprint("banned ", i), limit))
		require.False(t, r.Allowed, "what takes longest to be full is forgotten last")
	}
}

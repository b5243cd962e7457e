package top

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestCountsAreBounded: however many policies and clients there are, and however long their keys.
func TestCountsAreBounded(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		r := start(t, b.Redis)
		for i := range maxPolicies + 50 {
			deny(r, fmt.Sprint("p", i), "a")
		}
		require.Len(t, *r.policies.Load(), maxPolicies)
		denyLong(r, "p0")
		time.Sleep(DefaultInterval + time.Millisecond)
		require.Len(t, denied(t, b.Redis, "p0"), counters)
		text := testkit.Must(b.Redis.HVals(t.Context(), "ginlimit:denied:{p0}").Result())
		require.Less(t, len(strings.Join(text, "")), 100*counters)
	})
}

// denyLong has a policy deny clients with long keys.
func denyLong(r *Reporter, policy string) {
	for i := range 500 {
		deny(r, policy, strings.Repeat("x", 1<<14)+fmt.Sprint(i), strings.Repeat("y", maxKey)[:maxKey-4]+fmt.Sprint(i))
	}
}

// TestMemoryIsBounded, which is measured beside no other test.
func TestMemoryIsBounded(t *testing.T) {
	rdb, _ := testkit.NewMiniredis(t)
	r := start(t, rdb)
	deny(r, "p", "a")
	before := testkit.HeapInUse()
	denyLong(r, "p")
	require.Less(t, testkit.HeapInUse()-before, int64(1<<20))
}

// TestSeenIsBounded: Redis knows the last processes of a policy.
func TestSeenIsBounded(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	for i := range 8 {
		process := fmt.Sprint("P", i%7) // P0 comes twice
		require.NoError(t, reportScript.Run(t.Context(), rdb, []string{"key"}, process, i, 0, summary{}.text(),
			minutes, counters, 3).Err())
	}
	seen := testkit.Must(rdb.HGet(t.Context(), "key", "seen").Result())
	require.Regexp(t, `^P5 5 \d+\nP6 6 \d+\nP0 7 \d+\n$`, seen)
}

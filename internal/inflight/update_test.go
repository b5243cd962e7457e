package inflight

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestChangesOfAllKeysTakeTurns, though keys that have just been reported change again at once.
func TestChangesOfAllKeysTakeTurns(t *testing.T) {
	t.Parallel()
	const keys, limit = 100, 20 // more than a shard has
	c := New(func(context.Context, []Update) []bool { return nil })
	c.reporter.running.Store(true) // no goroutine takes the changes
	change := func(key []byte) { c.End(key, c.Begin(key).Number, Local) }
	for i := range keys {
		change(fmt.Append(nil, i))
	}
	seen := map[string]bool{}
	for range 4 * keys / limit {
		updates := c.changes(nil, limit)
		require.Len(t, updates, limit)
		c.recordReport(updates, slices.Repeat([]bool{true}, limit), time.Now())
		for _, u := range updates {
			seen[u.Key] = true
			change([]byte(u.Key))
		}
	}
	require.Len(t, seen, keys)
}

package wire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestManyChangesAreSeveralCalls: the first is told of all, or there might be room for some alone. None is told of more
// texts than it sets.
func TestManyChangesAreSeveralCalls(t *testing.T) {
	t.Parallel()
	end := time.UnixMilli(7)
	all := OverrideChanges{Mark: "m", Limit: 9, Kept: 3, Changes: []OverrideChange{
		{"a", "A", end}, {"b", "", end}, {"c", "C", end}, {"d", "", end}, {"e", "E", end}}}
	require.Equal(t, [][]any{
		{"m", 9, 3, 2, "a", "A", int64(7), "b", "", int64(7), "c", "?", int64(7), "d", "", int64(7), "e", "?", int64(7)},
		{"m.2", unlimited, 3, 2, "c", "C", int64(7), "d", "", int64(7)},
		{"m.4", unlimited, 3, 1, "e", "E", int64(7)},
	}, all.Encode(2))
	require.Len(t, all.Encode(5), 1)
	require.Equal(t, "C", all.Changes[2].Text)
}

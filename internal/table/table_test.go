package table_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/table"
)

type entry struct {
	key  string
	at   int64
	kept bool
}

// TestATableHasRoom for as many entries as it is to have, and its size is a power of two.
func TestATableHasRoom(t *testing.T) {
	for entries, want := range map[int]int{1: 4, 4: 4, 5: 8, 8: 8, 9: 16, 4096: 4096, 1 << 16: 1 << 16} {
		all := table.New[entry](entries)
		require.Empty(t, all.All())
		require.Nil(t, all.Places(7))
		all.Grow()
		places := all.All()
		all.Grow()
		require.Same(t, &places[0], &all.All()[0], "once")
		assert.Len(t, places, want, entries)
		for hash := range uint64(2 * want) {
			of := all.Places(hash)
			require.Len(t, of, table.Ways)
			require.Same(t, &places[int(hash)*table.Ways%want], &of[0])
		}
	}
}

// TestTheEntryUsedLeastLatelyIsReplaced, unless there is a better place.
func TestTheEntryUsedLeastLatelyIsReplaced(t *testing.T) {
	for name, row := range map[string]struct {
		has  []*entry
		want int // the place; -1 is none
	}{
		"empty":             {[]*entry{nil, nil, nil, nil}, 0},
		"a free place":      {[]*entry{{"a", 1, false}, nil, {"b", 2, false}, nil}, 1},
		"the key's own":     {[]*entry{{"a", 1, false}, {"key", 9, true}, nil, nil}, 1},
		"the oldest":        {[]*entry{{"a", 3, false}, {"b", 2, false}, {"c", 4, false}, {"d", 2, false}}, 1},
		"none that is kept": {[]*entry{{"a", 1, true}, {"b", 2, true}, {"c", 4, false}, {"d", 3, false}}, 3},
		"all are kept":      {[]*entry{{"a", 1, true}, {"b", 2, true}, {"c", 3, true}, {"d", 4, true}}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			all := table.New[entry](table.Ways)
			all.Grow()
			places := all.Places(0)
			for i, e := range row.has {
				places[i].Store(e)
			}
			place, old := table.Choose(places, func(e *entry) bool { return e.key == "key" },
				func(e *entry) (int64, bool) { return e.at, e.kept })
			if row.want < 0 {
				require.Nil(t, place)
				require.Nil(t, old)
				return
			}
			require.Same(t, &places[row.want], place)
			require.Same(t, row.has[row.want], old)
		})
	}
}

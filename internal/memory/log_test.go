package memory

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMergedEntriesHaveAllTokensOfBoth, at the later time. An odd entry stays, and expired entries
// stay apart.
func TestMergedEntriesHaveAllTokensOfBoth(t *testing.T) {
	t.Parallel()
	entries := []logEntry{{10, 1}, {20, 2}, {30, 4}, {40, 8}, {50, 16}}
	for n, want := range [][]logEntry{
		1: {{10, 1}},
		2: {{20, 3}},
		3: {{20, 3}, {30, 4}},
		4: {{20, 3}, {40, 12}},
		5: {{20, 3}, {40, 12}, {50, 16}},
	} {
		for _, gone := range []int{0, 1, 3} {
			if n == 0 {
				continue
			}
			l := &log{entries: slices.Concat(make([]logEntry, gone), entries[:n]), expired: gone}
			require.Equal(t, want, l.merge(), "%d, %d gone", n, gone)
			require.Equal(t, want, l.live())
			require.Len(t, l.entries, gone+len(want))
		}
	}
}

// TestALogHasWhatWasAdded, whether it grows, shrinks, or reuses the room of expired entries.
func TestALogHasWhatWasAdded(t *testing.T) {
	t.Parallel()
	for _, room := range []int{2, 16, 100} {
		for gone := range room + 1 {
			t.Run(fmt.Sprintf("%d of %d gone", gone, room), func(t *testing.T) {
				t.Parallel()
				l := &log{entries: make([]logEntry, 0, room)}
				var want []logEntry
				for i := range int64(3 * room) {
					if i == int64(room) {
						l.expired, want = gone, want[gone:]
					}
					want = append(want, logEntry{i, 1 + i%3})
					l.add(want[len(want)-1])
					require.Equal(t, want, l.live())
				}
			})
		}
	}
}

// TestALogShrinks when most of its entries have expired.
func TestALogShrinks(t *testing.T) {
	t.Parallel()
	l := &log{entries: make([]logEntry, 1024), expired: 1020}
	l.add(logEntry{1, 1})
	require.Len(t, l.live(), 5)
	require.Less(t, cap(l.entries), 64)
}

// TestGivingBackToALog takes tokens from the newest entries or from the entry of a time. In a
// merged log, it takes them from the entry into which that entry was merged.
func TestGivingBackToALog(t *testing.T) {
	t.Parallel()
	const last = -1 // instead of a time
	for name, row := range map[string]struct {
		tokens, at int64
		merged     bool
		given      int64
		left       []logEntry // of 3 tokens at 20, 5 at 30 and 7 at 40
	}{
		"some of the newest":          {2, last, false, 2, []logEntry{{20, 3}, {30, 5}, {40, 5}}},
		"all of the newest":           {7, last, false, 7, []logEntry{{20, 3}, {30, 5}}},
		"more than the newest has":    {9, last, false, 9, []logEntry{{20, 3}, {30, 3}}},
		"all":                         {15, last, false, 15, []logEntry{}},
		"more than there are":         {16, last, false, 15, []logEntry{}},
		"some of a time":              {2, 30, false, 2, []logEntry{{20, 3}, {30, 3}, {40, 7}}},
		"all of a time":               {5, 30, false, 5, []logEntry{{20, 3}, {40, 7}}},
		"more than of a time":         {6, 30, false, 5, []logEntry{{20, 3}, {40, 7}}},
		"of the oldest":               {1, 20, false, 1, []logEntry{{20, 2}, {30, 5}, {40, 7}}},
		"of a time that has none":     {1, 25, false, 0, []logEntry{{20, 3}, {30, 5}, {40, 7}}},
		"of one that has left":        {1, 10, false, 0, []logEntry{{20, 3}, {30, 5}, {40, 7}}},
		"of one after the newest":     {1, 41, false, 0, []logEntry{{20, 3}, {30, 5}, {40, 7}}},
		"of one that was merged":      {1, 25, true, 1, []logEntry{{20, 3}, {30, 4}, {40, 7}}},
		"of the time of a merged one": {1, 30, true, 1, []logEntry{{20, 3}, {30, 4}, {40, 7}}},
		"after the newest merged one": {1, 41, true, 0, []logEntry{{20, 3}, {30, 5}, {40, 7}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &log{entries: []logEntry{{10, 9}, {20, 3}, {30, 5}, {40, 7}}, expired: 1, merged: row.merged}
			given := int64(0)
			if row.at == last {
				given = l.removeLast(row.tokens)
			} else {
				given = l.removeAt(row.tokens, row.at)
			}
			require.Equal(t, row.given, given)
			require.Equal(t, row.left, l.live())
		})
	}
}

// TestTheLongestLogIsMerged of the sample, without its expired entries.
func TestTheLongestLogIsMerged(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		now  int64
		left []logEntry // of a token each at 10, 20 … 60, for 100 ms
	}{
		"nothing has left":     {0, []logEntry{{20, 2}, {40, 2}, {60, 2}}},
		"some have left":       {120, []logEntry{{40, 2}, {60, 2}}},
		"an odd one stays":     {110, []logEntry{{30, 2}, {50, 2}, {60, 1}}},
		"one is not logged":    {150, nil},
		"two are one then":     {140, nil},
		"all have left":        {160, nil},
		"all left long before": {1000, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 20 { // in any order
				s := &shard{buckets: map[id]*entry{}}
				add := func(key string, w *entry) *entry {
					s.buckets[id{key: key}] = w
					s.logged += w.log.room()
					return w
				}
				for i := range sample - 2 {
					add(fmt.Sprint("short ", i), &entry{full: 1 << 40, value: 2,
						log: &log{entries: []logEntry{{1 << 39, 1}, {1 << 39, 1}}}})
				}
				add("without a log", &entry{full: 1 << 40, value: 1})
				long := &log{}
				for at := int64(10); at <= 60; at += 10 {
					long.entries = append(long.entries, logEntry{at, 1})
				}
				w := add("long", &entry{full: 160, value: 6, log: long})
				s.shrinkLogLocked(row.now)
				require.Equal(t, max(0, 6-max(0, row.now/10-10)), w.value)
				room := (sample - 2) * (2 + logRoom)
				if row.left == nil {
					require.Nil(t, w.log)
				} else {
					require.Equal(t, row.left, w.log.live())
					room += len(row.left) + logRoom
				}
				require.Equal(t, room, s.logged)
			}
		})
	}
}

package scripts_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// manySlots is the value of slots of which so many processes hold one each until 5 s, and as many others until 10 s.
func manySlots(processes int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "10000 5000 %d", 2*processes)
	for i := range 2 * processes {
		ends := 5000
		if i >= processes {
			ends = 10_000
		}
		fmt.Fprintf(&b, " P%d 1 1 1 %d ;", i, ends)
	}
	return b.String()
}

// TestACallRemovesFewProcesses of thousands that have died at once, so that no call holds Redis up. Those that it
// leaves count, and the next calls remove them, whether these are granted a slot or not.
func TestACallRemovesFewProcesses(t *testing.T) {
	t.Parallel()
	rdb, advance := testkit.NewMiniredis(t)
	g := &guardTrace{rdb: rdb}
	const processes, most = 2048, 256
	for _, capacity := range []int{1, 1_000_000} {
		require.NoError(t, rdb.Set(t.Context(), slotKey, manySlots(processes), 10*time.Second).Err())
		advance(5 * time.Second)
		for left, granted := 2*processes, 0; left > processes; granted++ {
			used := testkit.Must(g.eval(t, wire.BanOrSlots, []string{slotKey}, "take", 1, 1, "slots", "PX", 0, capacity,
				granted, granted, fmt.Sprint(granted+1, ","), 0))
			left = max(processes, left-most)
			if capacity == 1 {
				granted = -1 // every call is denied
			}
			require.EqualValues(t, left+max(0, granted), used[0])
			value := rdb.Get(t.Context(), slotKey).Val()
			require.Equal(t, left+min(1, granted+1), strings.Count(value, ";"))
		}
	}
}

// TestAReportRemovesFewProcesses of all its keys together.
func TestAReportRemovesFewProcesses(t *testing.T) {
	t.Parallel()
	rdb, advance := testkit.NewMiniredis(t)
	g := &guardTrace{rdb: rdb}
	keys, args := []string{}, []any{"PX"}
	for i := range 10 {
		keys, args = append(keys, fmt.Sprint(i)), append(args, 1, 1, 0)
		require.NoError(t, rdb.Set(t.Context(), keys[i], manySlots(100), 10*time.Second).Err())
	}
	advance(5 * time.Second)
	require.Empty(t, testkit.Must(g.eval(t, wire.Report, keys, args...)))
	entries := 0
	for _, key := range keys {
		entries += strings.Count(rdb.Get(t.Context(), key).Val(), ";")
	}
	require.Equal(t, 10*(2*100+1)-256, entries)
}

// turnsKey names who waits for one of four slots.
const turnsKey = slotKey + ":turns:4"

// awaits has a process look for one of four slots, and returns its place among those that wait.
func (g *guardTrace) awaits(t *testing.T, process string) (place int64) {
	t.Helper()
	reply := testkit.Must(g.eval(t, wire.BanOrSlots, []string{slotKey, turnsKey},
		"take", 1, 1, "slots", process, 1000, 4, 0, 0, "1,", 0))
	return reply[0] >> 21
}

// TestACallLooksAtFewOfALongLine and keeps its order: who comes again keeps its place, who is new comes last, and those
// that wait no more go as the first of the line are looked at.
func TestACallLooksAtFewOfALongLine(t *testing.T) {
	t.Parallel()
	rdb, advance := testkit.NewMiniredis(t)
	g := &guardTrace{rdb: rdb}
	names := func() (all []string) {
		for i, word := range strings.Fields(rdb.Get(t.Context(), turnsKey).Val()) {
			if i%2 == 1 {
				all = append(all, word)
			}
		}
		return all
	}
	require.NoError(t, rdb.Set(t.Context(), slotKey, "PH 4 4 ", 10*time.Second).Err())
	var want []string
	for i := range 400 {
		want = append(want, fmt.Sprintf("P%03d", i))
		place := g.awaits(t, want[i])
		require.GreaterOrEqual(t, place, int64(i+1))
		require.LessOrEqual(t, place, int64(3*i+1), "those that are not looked at are counted by their length")
	}
	require.Equal(t, want, names())
	for _, again := range []int{0, 64, 127, 128, 399} {
		require.GreaterOrEqual(t, g.awaits(t, want[again]), int64(again+1))
		require.Equal(t, want, names())
	}
	advance(900 * time.Millisecond)
	require.EqualValues(t, 400, min(400, g.awaits(t, "P399")))
	advance(100 * time.Millisecond)
	for left := 399; left > 0; left = max(0, left-128) { // all but the last wait no more
		require.Len(t, names(), left+1)
		g.awaits(t, "P399")
	}
	require.EqualValues(t, 1, g.awaits(t, "P399"))
	require.Equal(t, []string{"P399"}, names())
	require.NoError(t, rdb.Del(t.Context(), slotKey).Err())
	require.Zero(t, g.awaits(t, "P399"))
	require.Zero(t, rdb.Exists(t.Context(), turnsKey).Val(), "it has a slot")
}

// TestALineThatCannotBeRead is lost: an order alone is, and the next process that waits begins another.
func TestALineThatCannotBeRead(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	g := &guardTrace{rdb: rdb}
	require.NoError(t, rdb.Set(t.Context(), slotKey, "PH 4 4 ", 10*time.Second).Err())
	for _, spoil := range []func() error{
		func() error { return rdb.Set(t.Context(), turnsKey, "9000 PB 8000", 0).Err() },
		func() error { return rdb.Set(t.Context(), turnsKey, "what", time.Minute).Err() },
		func() error { return rdb.LPush(t.Context(), turnsKey, "what").Err() },
	} {
		require.NoError(t, rdb.Del(t.Context(), turnsKey).Err())
		require.NoError(t, spoil())
		require.EqualValues(t, 1, g.awaits(t, "PA"))
		require.EqualValues(t, 2, g.awaits(t, "PC"))
	}
}

package scripts_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// TestSlotsOfAKeyThatExpires while a script runs are free.
func TestSlotsOfAKeyThatExpires(t *testing.T) {
	t.Parallel()
	s := newScriptKeys(t, ginlimit.TokenBucket, ginlimit.PerHour(1000))
	g := &guardTrace{rdb: s.rdb}
	one, two := "P2 1 1 2,3,", "10000 5000 4 P3 1 1 1 5000 ; P2 1 1 3 10000 2,3,;"
	for _, value := range []string{one, two, "P1 7 1 "} {
		for _, left := range []int{0, -2} {
			for _, call := range []func() ([]int64, error){
				func() ([]int64, error) {
					return g.eval(t, wire.BanOrSlots, []string{slotKey}, "take", 1, 1, "slots", "P1", 0, 4, 7, 1, "8,", 0)
				},
				func() ([]int64, error) { return g.eval(t, wire.Report, []string{slotKey}, "P1", 7, 1, 0) },
			} {
				require.NoError(t, s.rdb.Del(t.Context(), slotKey).Err())
				want := testkit.Must(call())
				kept := s.state(t, slotKey)
				require.NotEqual(t, `"" -2ns`, kept)
				require.NoError(t, s.rdb.Set(t.Context(), slotKey, value, time.Minute).Err())
				s.expireDuring(slotKey, left)
				got, err := call()
				s.noFault()
				require.NoError(t, err)
				require.Equal(t, want, got, "%q, PTTL %d", value, left)
				require.Equal(t, kept, s.state(t, slotKey), "%q, PTTL %d", value, left)
			}
		}
	}
}

// TestSlotsThatAreNotKept as memory is full: the reply names their keys, and the others are kept.
func TestSlotsThatAreNotKept(t *testing.T) {
	t.Parallel()
	s := newScriptKeys(t, ginlimit.TokenBucket, ginlimit.PerHour(1000))
	g, keys := &guardTrace{rdb: s.rdb}, []string{"1", "2", "3", "4"}
	args := []any{"P1", 7, 1, 0, 7, 1, 0, 7, 1, 0, 7, 1, 0}
	for _, c := range []struct {
		refused string
		want    []int64
	}{{"1", []int64{1}}, {"3", []int64{3}}, {"", []int64{1, 2, 3, 4}}, {"5", nil}} {
		for _, known := range []bool{false, true} {
			require.NoError(t, s.rdb.Del(t.Context(), keys...).Err())
			before, kept := `"" -2ns`, `"P1 7 1 " 10s`
			if known { // it is only to live on
				for _, key := range keys {
					require.NoError(t, s.rdb.Set(t.Context(), key, "P1 7 1 ", time.Second).Err())
				}
				before = `"P1 7 1 " 1s`
			}
			s.refuse(c.refused, needMemory...)
			failed, err := g.eval(t, wire.Report, keys, args...)
			s.noFault()
			require.NoError(t, err)
			require.Equal(t, c.want, failed, "%q is refused", c.refused)
			for i, key := range keys {
				want := kept
				if slices.Contains(failed, int64(i+1)) {
					want = before
				}
				require.Equal(t, want, s.state(t, key), "%q is refused", c.refused)
			}
		}
	}
}

// TestSlotsOfAReportThatSaysNothingNew has the slots live on, or go if there are none, and leaves a
// key alone that is somebody else's.
func TestSlotsOfAReportThatSaysNothingNew(t *testing.T) {
	t.Parallel()
	s := newScriptKeys(t, ginlimit.TokenBucket, ginlimit.PerHour(1000))
	g := &guardTrace{rdb: s.rdb}
	for _, c := range []struct {
		value       string
		ttl         time.Duration
		held, doubt int
		want        string
	}{
		{"P1 7 2 ", time.Second, 2, 0, `"P1 7 2 " 10s`},
		{"P1 7 0 ", time.Second, 0, 1, `"P1 7 0 " 10s`},
		{"P1 7 0 ", time.Second, 0, 0, `"" -2ns`},
		{"P1 7 2 ", 0, 2, 0, `"P1 7 2 " -1ns`},
	} {
		require.NoError(t, s.rdb.Set(t.Context(), slotKey, c.value, c.ttl).Err())
		require.Empty(t, testkit.Must(g.eval(t, wire.Report, []string{slotKey}, "P1", 7, c.held, c.doubt)))
		require.Equal(t, c.want, s.state(t, slotKey), "%+v", c)
	}
}

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

// processOf reads the entry of a process in the list of a key.
func processOf(entry string) (name string, slots, until int) {
	f := strings.Fields(entry)
	return f[0], testkit.Must(strconv.Atoi(f[3])), testkit.Must(strconv.Atoi(f[4]))
}

// TestSlotsOfManyProcesses are what these have reported, in whatever order their entries are, and however long the
// list is: it is written in place while it is short.
func TestSlotsOfManyProcesses(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{3, 100, 800} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			t.Parallel()
			rdb, advance := testkit.NewMiniredis(t)
			g, r := &guardTrace{rdb: rdb}, rand.New(rand.NewPCG(uint64(processes), 1))
			type report struct{ held, until int }
			model, now, places := map[string]report{}, 0, 0
			var before []string
			for i := range processes + 600 {
				process, held, ended := fmt.Sprintf("P%04d", r.IntN(processes)), 1+r.IntN(9), 1_000_000+2*i
				if r.IntN(2) == 0 {
					used := testkit.Must(g.eval(t, wire.BanOrSlots, []string{slotKey}, "take", 1, 1, "slots", process, 0, int64(1<<40),
						ended, held, fmt.Sprint(ended+1, ","), 0))[0]
					others := 0
					for name, of := range model {
						if name != process && of.until > now {
							others += of.held
						}
					}
					require.EqualValues(t, others+held, used)
					held++
				} else {
					require.Empty(t, testkit.Must(g.eval(t, wire.Report, []string{slotKey}, process, ended, held, 0)))
				}
				model[process] = report{held, now + 10_000}
				value, ttl := rdb.Get(t.Context(), slotKey).Val(), int(rdb.PTTL(t.Context(), slotKey).Val().Milliseconds())
				found, names, total, listed := map[string]report{}, []string(nil), 0, strings.Split(value, ";")
				var ends, first, all int
				if _, err := fmt.Sscanf(value, "%d %d %d", &ends, &first, &all); err == nil {
					from := strings.IndexAny(value, ".~") + 1
					listed[0] = listed[0][from:]
					for _, entry := range listed[:len(listed)-1] {
						name, slots, until := processOf(entry)
						if until < first {
							t.Fatal(value)
						}
						found[name], total, names = report{slots, until - ends + ttl + now}, total+slots, append(names, name)
					}
					require.Equal(t, total, all)
				} else {
					found[process] = model[process]
				}
				want := map[string]report{}
				for name, of := range model {
					if of.until > now {
						want[name] = of
					}
				}
				if len(want) > 0 && len(found) > 256 { // what has ended may be removed later
					maps.DeleteFunc(found, func(_ string, of report) bool { return of.until <= now })
				}
				require.True(t, maps.Equal(want, found), "want %v\n got %v\n  in %s", want, found, value)
				if strings.Contains(value, "~") && slices.Equal(names, before) {
					places++
				}
				before = names
				step := r.IntN(40_000 / processes)
				advance(time.Duration(step) * time.Millisecond)
				now += step
			}
			require.Equal(t, processes == 100, places > processes, "%d are written in place", places)
		})
	}
}

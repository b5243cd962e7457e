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

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// TestSlotsOfAKeyThatExpires while a script runs are free.
func TestSlotsOfAKeyThatExpires(t *testing.T) {
	t.Parallel()
	s := newScriptKeys(t, ginlimit.TokenBucket, ginlimit.PerHour(1000))
	g := &guardTrace{rdb: s.rdb}
	for _, value := range [][]any{
		{"all", "10000 10000 3 1", "P2", "1 1 3 10000 2,3,"},
		{"all", "10000 5000 4 2", "P3", "1 1 1 5000 ", "P2", "1 1 3 10000 2,3,"},
		{"all", "10000 5000 2 2", "P3", "1 1 1 5000 ", "P1", "7 1 1 10000 "},
		{"all", "10000 10000 1 1", "P1", "7 1 1 10000 "},
	} {
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
				setSlots(t, s.rdb, slotKey, time.Minute, value...)
				s.expireDuring(slotKey, left)
				got, err := call()
				s.noFault()
				require.NoError(t, err)
				require.Equal(t, want, got, "%v, PTTL %d", value, left)
				require.Equal(t, kept, s.state(t, slotKey), "%v, PTTL %d", value, left)
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
			before, kept := `"" -2ns`, "map[P1:7 1 1 10000  all:10000 10000 1 1] 10s"
			if known { // it is only to live on
				for _, key := range keys {
					setSlots(t, s.rdb, key, time.Second, "all", "1000 1000 1 1", "P1", "7 1 1 1000 ")
				}
				before = "map[P1:7 1 1 1000  all:1000 1000 1 1] 1s"
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

// TestAReportOfANode leaves of each key what a report of it leaves, though its first key alone is declared. Of the
// others it also tells which cannot be read, as these may have left the node.
func TestAReportOfANode(t *testing.T) {
	t.Parallel()
	s := newScriptKeys(t, ginlimit.TokenBucket, ginlimit.PerHour(1000))
	updates := []inflight.Update{
		{Key: "1", Ended: 7, Held: 2}, {Key: "2", Ended: 3, Held: 1, Doubt: true}, {Key: "3", Ended: 9, Held: 4},
		{Key: "4", Ended: 8, Doubt: true}, {Key: "5", Ended: 5},
	}
	const prefix = "test:{"
	name := func(i int) string { return wire.SlotsName(prefix, updates[i].Key).String() }
	report := func(node bool) (failed []int64, states []string) {
		source := testkit.ScriptSource(t, wire.Report)
		if node {
			source = "--" + strings.TrimPrefix(testkit.ScriptSource(t, wire.ReportNode), "#!")
		}
		all, _ := wire.AppendReport(nil, updates, prefix, "P1", node)
		var keys []string
		for _, key := range all[1 : 1+all[0].(int)] {
			keys = append(keys, fmt.Sprint(key))
		}
		for _, one := range testkit.Must(eval(t.Context(), s.rdb, source, keys, all[1+len(keys):]...).Slice()) {
			failed = append(failed, one.(int64))
		}
		for i := range updates {
			states = append(states, s.state(t, name(i)))
		}
		return failed, states
	}
	for _, row := range []struct {
		about            string
		foreign, refused int // the key that is of another type, or for which there is no memory, or -1
		alone, node      []int64
	}{
		{"all can be written", -1, -1, nil, nil},
		{"another type", 2, -1, nil, []int64{3}},
		{"the first of another type", 0, -1, nil, nil},
		{"no memory", -1, 3, []int64{4}, []int64{4}},
		{"both", 1, 3, []int64{4}, []int64{2, 4}},
	} {
		var left [2][]string
		for i, want := range [][]int64{row.alone, row.node} {
			s.mini.FlushAll()
			setSlots(t, s.rdb, name(0), time.Second, "all", "1000 1000 3 2", "P1", "6 2 2 1000 7,", "P2", "1 1 1 1000 ")
			setSlots(t, s.rdb, name(4), time.Second, "all", "1000 1000 1 1", "P1", "4 1 1 1000 ")
			if row.foreign >= 0 {
				require.NoError(t, s.rdb.Set(t.Context(), name(row.foreign), "text", time.Minute).Err())
			}
			if row.refused >= 0 {
				s.refuse(name(row.refused), needMemory...)
			}
			var failed []int64
			failed, left[i] = report(i == 1)
			s.noFault()
			require.Equal(t, want, failed, row.about)
		}
		require.Equal(t, left[0], left[1], row.about)
	}
}

// TestSlotsOfAReportThatSaysNothingNew has the slots live on, or go if there are none, and leaves a
// key alone that is somebody else's.
func TestSlotsOfAReportThatSaysNothingNew(t *testing.T) {
	t.Parallel()
	s := newScriptKeys(t, ginlimit.TokenBucket, ginlimit.PerHour(1000))
	g := &guardTrace{rdb: s.rdb}
	for _, c := range []struct {
		held  int64
		ttl   time.Duration
		doubt int
		want  string
	}{
		{2, time.Second, 0, "map[P1:7 2 2 10000  all:10000 10000 2 1] 10s"},
		{0, time.Second, 1, "map[P1:7 0 0 10000  all:10000 10000 0 1] 10s"},
		{0, time.Second, 0, `"" -2ns`},
		{2, 0, 0, "map[P1:7 2 2 1000  all:1000 1000 2 1] -1ns"},
	} {
		setSlots(t, s.rdb, slotKey, c.ttl, "all", fmt.Sprintf("1000 1000 %d 1", c.held), "P1",
			fmt.Sprintf("7 %d %[1]d 1000 ", c.held))
		require.Empty(t, testkit.Must(g.eval(t, wire.Report, []string{slotKey}, "P1", 7, c.held, c.doubt)))
		require.Equal(t, c.want, s.state(t, slotKey), "%+v", c)
	}
}

// TestALateReportForgetsNothing that a later one said: an attempt that has ended stays so, and takes no slot that
// nobody would give back.
func TestALateReportForgetsNothing(t *testing.T) {
	t.Parallel()
	g := &guardTrace{rdb: newScriptKeys(t, ginlimit.TokenBucket, ginlimit.PerHour(1000)).rdb}
	report := func(ended, doubt int) {
		require.Empty(t, testkit.Must(g.eval(t, wire.Report, []string{slotKey}, "P1", ended, 0, doubt)))
	}
	report(2, 1) // attempt 2 was given up, and may still come
	report(1, 0) // was sent before that
	_, err := g.eval(t, wire.BanOrSlots, []string{slotKey}, "take", 1, 1, "slots", "P1", 0, 4, 1, 0, "2,", 0)
	require.NoError(t, err)
	require.Equal(t, "2 0 0 10000 ", g.rdb.HGet(t.Context(), slotKey, "P1").Val())
}

// setSlots has a key have these fields alone, for a while or for ever.
func setSlots(t *testing.T, rdb *redis.Client, key string, ttl time.Duration, fields ...any) {
	t.Helper()
	require.NoError(t, rdb.Del(t.Context(), key).Err())
	require.NoError(t, rdb.HSet(t.Context(), key, fields...).Err())
	if ttl > 0 {
		require.NoError(t, rdb.PExpire(t.Context(), key, ttl).Err())
	}
}

// turnsKey names who waits for one of four slots.
const turnsKey = slotKey + ":turns:4"

// awaits has a process look for one of four slots, and returns its place among those that wait.
func (g *guardTrace) awaits(t *testing.T, process string) (place int64) {
	t.Helper()
	reply := testkit.Must(g.eval(t, wire.BanOrSlots, []string{slotKey, turnsKey},
		"take", 1, 1, "slots", process, 1000, 4, 0, 0, "1,", 0))
	return reply[0] >> 21 & 1023
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
	setSlots(t, rdb, slotKey, 10*time.Second, "all", "10000 10000 4 1", "PH", "4 4 4 10000 ")
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
	setSlots(t, rdb, slotKey, 10*time.Second, "all", "10000 10000 4 1", "PH", "4 4 4 10000 ")
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

// TestSlotsOfManyProcesses are what these have reported, however many they are.
func TestSlotsOfManyProcesses(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{3, 100, 300} { // and 1,200 on Redis
		testkit.Run(t, fmt.Sprint(processes), func(t *testing.T) {
			rdb, advance := testkit.NewMiniredis(t)
			g, r := &guardTrace{rdb: rdb}, rand.New(rand.NewPCG(uint64(processes), 1))
			type report struct{ held, until int }
			model, now := map[string]report{}, 0
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
					require.EqualValues(t, others<<31+others+held, used)
					held++
				} else {
					require.Empty(t, testkit.Must(g.eval(t, wire.Report, []string{slotKey}, process, ended, held, 0)))
				}
				model[process] = report{held, now + 10_000}
				value, ttl := rdb.HGetAll(t.Context(), slotKey).Val(), int(rdb.PTTL(t.Context(), slotKey).Val().Milliseconds())
				var ends, first, all, count, total int
				testkit.Must(fmt.Sscan(value["all"], &ends, &first, &all, &count))
				delete(value, "all")
				found := map[string]report{}
				for name, entry := range value {
					f := strings.Fields(entry)
					slots, until := testkit.Must(strconv.Atoi(f[2])), testkit.Must(strconv.Atoi(f[3]))
					if until < first {
						require.Fail(t, "it ends before the first", "%d, first %d", until, first)
					}
					found[name], total = report{slots, until - ends + ttl + now}, total+slots
				}
				require.Equal(t, []int{total, len(found)}, []int{all, count})
				maps.DeleteFunc(model, func(_ string, of report) bool { return of.until <= now })
				maps.DeleteFunc(found, func(_ string, of report) bool { return of.until <= now })
				require.True(t, maps.Equal(model, found), "want %v\n got %v\n  in %s", model, found, value)
				step := r.IntN(40_000 / processes)
				advance(time.Duration(step) * time.Millisecond)
				now += step
			}
		})
	}
}

// TestAFreeSlotIsForWhoWaitsLongest: others that wait too come after it.
func TestAFreeSlotIsForWhoWaitsLongest(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	g := &guardTrace{rdb: rdb}
	setSlots(t, rdb, slotKey, 10*time.Second, "all", "10000 10000 4 1", "PH", "4 4 4 10000 ")
	require.EqualValues(t, 1, g.awaits(t, "PA"))
	require.Empty(t, testkit.Must(g.eval(t, wire.Report, []string{slotKey}, "PH", 5, 3, 0)))
	require.EqualValues(t, 2, g.awaits(t, "PB"))
	require.Zero(t, g.awaits(t, "PA"), "it has the slot")
	require.EqualValues(t, 1, g.awaits(t, "PB"))
}

// TestSlotsOfAProcessThatHasEndedWhereNothingCanBeWritten: a call is an error, and changes nothing.
func TestSlotsOfAProcessThatHasEndedWhereNothingCanBeWritten(t *testing.T) {
	t.Parallel()
	s := newScriptKeys(t, ginlimit.TokenBucket, ginlimit.PerHour(1000))
	g := &guardTrace{rdb: s.rdb}
	for name, refused := range map[string][]string{
		"memory is full": needMemory,
		"a replica":      append([]string{"HDEL", "UNLINK", "PEXPIRE"}, needMemory...),
	} {
		for _, left := range []time.Duration{5 * time.Second, 15 * time.Second} { // the clock may have been set back
			setSlots(t, s.rdb, slotKey, left, "all", "20000 2000 2 2", "P2", "1 1 1 20000 ", "P3", "1 1 1 2000 ")
			s.refuse(slotKey, refused...)
			_, err := g.eval(t, wire.BanOrSlots, []string{slotKey}, "take", 1, 1, "slots", "P1", 0, 4, 7, 1, "8,", 0)
			require.Error(t, err, name)
			denied, err := g.eval(t, wire.BanOrSlots, []string{slotKey}, "take", 1, 1, "slots", "P1", 0, 1, 0, 0, "8,", 0)
			require.NoError(t, err, name)
			require.Equal(t, []int64{1<<31 + 1}, denied, name)
			if name == "a replica" {
				require.Error(t, testkit.Err(g.eval(t, wire.Report, []string{slotKey}, "P2", 2, 0, 0)), name)
			}
			s.noFault()
			require.Equal(t, 3, int(s.rdb.HLen(t.Context(), slotKey).Val()), name)
			require.Equal(t, "20000 2000 2 2", s.rdb.HGet(t.Context(), slotKey, "all").Val(), name)
			require.Equal(t, []int64{1<<31 + 1}, testkit.Must(g.eval(t, wire.BanOrSlots, []string{slotKey},
				"take", 1, 1, "slots", "P1", 0, 1, 0, 0, "8,", 0)), name)
			require.Regexp(t, "^20000 20000 1 1$", s.rdb.HGet(t.Context(), slotKey, "all").Val(), name)
		}
	}
}

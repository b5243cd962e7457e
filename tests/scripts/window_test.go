package scripts_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestRepliesOfWindows: what was taken before; milliseconds until there is more, until one more
// charge fits if not all were made, and until nothing is left; and the mark.
func TestRepliesOfWindows(t *testing.T) {
	t.Parallel()
	fixed, sliding := newScriptKeys(t, ginlimit.FixedWindow, ginlimit.PerSecond(3)),
		newScriptKeys(t, ginlimit.SlidingWindow, ginlimit.PerSecond(3))
	for _, c := range []struct {
		at         int // milliseconds
		n, charges int
		fixed      []int64
		sliding    []int64
	}{
		{0, 1, 0, []int64{0, 0, 0, 0, 0}, []int64{0, 0, 0, 0, 0}},
		{0, 1, 1, []int64{0, 1000, 0, 0, 1000}, []int64{0, 1000, 0, 0, 0}},
		{400, 1, 1, []int64{1, 600, 0, 600, 600}, []int64{1, 600, 0, 600, 400}},
		{400, 1, 0, []int64{2, 600, 0, 600, 600}, []int64{2, 600, 0, 1000, 400}},
		{500, 1, 2, []int64{2, 500, 500, 500, 500}, []int64{2, 500, 500, 900, 500}},
		{600, 1, 1, []int64{3, 400, 400, 400, 400}, []int64{3, 400, 400, 900, 600}},
		{600, 4, 1, []int64{3, 400, 0, 400, 400}, []int64{3, 400, 0, 900, 600}}, // never fits
		{999, 1, 0, []int64{3, 1, 1, 1, 1}, []int64{3, 1, 1, 501, 999}},
		{1000, 1, 0, []int64{0, 0, 0, 0, 0}, []int64{2, 400, 0, 500, 1000}},
	} {
		for s, want := range map[*scriptKeys][]int64{fixed: c.fixed, sliding: c.sliding} {
			s.advance(time.Date(2026, 1, 1, 0, 0, 0, c.at*1e6, time.UTC).Sub(s.now))
			take := func(keys ...string) []int64 {
				reply := testkit.Must(s.call(t, "take", c.n, c.charges, keys))
				return reply
			}
			require.Equal(t, want, take("alone"), "%+v", c)
			each := []int64{-1}
			if c.charges > 0 {
				var err error
				each, err = s.call(t, "each", c.n, 0, []string{"each"}, c.charges)
				require.NoError(t, err)
			}
			if each[0] == -1 { // it is to be asked for alone
				each = take("each")
			}
			require.Equal(t, want, each, "%+v", c)
			limit := s.args
			s.args = append(limit[:3:3], limit...)
			require.Equal(t, append(want[:5:5], want...), take("one", "other"), "%+v", c)
			s.args = limit
		}
	}
}

// TestRepliesOfCalendarPeriods: what was taken before; milliseconds until the period ends if
// anything was taken, if nothing is left, and anyway; and the mark. A key lives an hour longer.
func TestRepliesOfCalendarPeriods(t *testing.T) {
	t.Parallel()
	s := newScriptKeys(t, ginlimit.FixedWindow, ginlimit.PerSecond(3))
	const grace = 3_600_000
	for _, c := range []struct {
		at         int // milliseconds; the period ends at 1000
		n, charges int
		want       []int64
	}{
		{0, 1, 0, []int64{0, 0, 0, 1000, 0}},
		{100, 1, 2, []int64{0, 900, 0, 900, grace + 900}},
		{400, 1, 0, []int64{2, 600, 0, 600, grace + 600}},
		{400, 2, 0, []int64{2, 600, 600, 600, grace + 600}},
		{500, 1, 2, []int64{2, 500, 500, 500, grace + 500}},
		{999, 1, 1, []int64{3, 1, 1, 1, grace + 1}},
	} {
		s.advance(time.Date(2026, 1, 1, 0, 0, 0, c.at*1e6, time.UTC).Sub(s.now))
		s.args = []any{1000 - c.at, "calendar", 3}
		require.Equal(t, c.want, testkit.Must(s.call(t, "take", c.n, c.charges, []string{"alone"})), "%+v", c)
		each := testkit.Must(s.call(t, "each", c.n, 0, []string{"each 1", "each 2"}, c.charges, c.charges))
		require.Equal(t, append(c.want[:5:5], c.want...), each, "%+v", c)
		two := testkit.Must(s.call(t, "take", c.n, c.charges, []string{"one", "other"}, s.args...))
		require.Equal(t, append(c.want[:5:5], c.want...), two, "%+v", c)
		for _, key := range []string{"each 1", "each 2", "one", "other"} {
			require.Equal(t, s.state(t, "alone"), s.state(t, key), "%+v", c)
		}
	}
}

// TestDebtEndsAtWhatCanBeCounted where twice the limit is more.
func TestDebtEndsAtWhatCanBeCounted(t *testing.T) {
	t.Parallel()
	const exact = 1<<53 - 1
	for a, c := range map[ginlimit.Algorithm]struct{ limit, most int64 }{
		ginlimit.TokenBucket:   {exact - 2_000_000, exact - 1_000_003}, // a drain less
		ginlimit.FixedWindow:   {exact, exact},
		ginlimit.SlidingWindow: {1<<52 - 10, 1<<52 - 1},
	} {
		s := newScriptKeys(t, a, ginlimit.PerSecond(1000))
		s.args = []any{1_000_003, s.args[1], c.limit}
		for _, tokens := range []int64{c.most - 3, 2, 4, 1} {
			testkit.Must(s.call(t, "charge", tokens, 0, []string{"k"}))
		}
		testkit.Must(s.call(t, "charge", c.most+1, 0, []string{"at once"}))
		for _, key := range []string{"k", "at once"} {
			require.EqualValues(t, c.most, testkit.Must(s.call(t, "give", 1, 0, []string{key}))[0], "%s", a)
		}
	}
}

// TestABlockOutlastsWhatIsReturned or given back, whether that is all or not.
func TestABlockOutlastsWhatIsReturned(t *testing.T) {
	t.Parallel()
	for _, a := range []ginlimit.Algorithm{ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		s := newScriptKeys(t, a, ginlimit.PerSecond(3))
		for _, verb := range []string{"give", "return"} {
			for back := 1; back <= 3; back++ {
				for block := 1; block <= 2; block++ {
					what := fmt.Sprintf("%s: %s %d, blocked for %d ms", a, verb, back, block)
					require.NoError(t, s.rdb.Del(t.Context(), "k").Err())
					taken := testkit.Must(s.call(t, "take", 2, 1, []string{"k"}))
					testkit.Must(s.call(t, "block", block, 0, []string{"k"}))
					testkit.Must(s.call(t, verb, back, 0, []string{"k"}, taken[4]))
					reply := testkit.Must(s.call(t, "take", 1, 1, []string{"k"}))
					require.Equal(t, []int64{3, int64(block)}, []int64{reply[0], reply[2]}, what)
					if back >= 2 && verb == "return" && a == ginlimit.FixedWindow {
						require.EqualValues(t, block, s.mini.TTL("k").Milliseconds(), what)
					}
					s.advance(time.Duration(block) * time.Millisecond)
					reply = testkit.Must(s.call(t, "take", 1, 0, []string{"k"}))
					require.EqualValues(t, max(0, 2-back), reply[0], what)
				}
			}
		}
	}
}

// logEntry is tokens taken from a sliding window of a second, at a millisecond.
type logEntry struct{ at, tokens int }

// takenLog is a log of entries, some of which may have left.
type takenLog struct {
	base    int // the total before the first entry
	entries []logEntry
}

// counted is the log without the entries that have left.
func (l takenLog) counted(now int) takenLog {
	for len(l.entries) > 0 && l.entries[0].at+1000 <= now {
		l.base, l.entries = l.base+l.entries[0].tokens, l.entries[1:]
	}
	return l
}

// leaves returns in how many milliseconds so many tokens have left: all if there are not as many.
func (l takenLog) leaves(now, tokens int) (ms int64) {
	for _, e := range l.entries {
		if ms = int64(e.at + 1000 - now); tokens <= e.tokens {
			break
		}
		tokens -= e.tokens
	}
	return ms
}

func (l takenLog) used() (n int) {
	for _, e := range l.entries {
		n += e.tokens
	}
	return n
}

// list is what a key holds of it.
func (l takenLog) list() []any {
	total, list := l.base, []any{""}
	for _, e := range l.entries {
		total += e.tokens
		list = append(list, e.at, total)
	}
	list[0] = fmt.Sprint(l.base, total, l.entries[len(l.entries)-1].at+1000)
	return list
}

// state is what scriptKeys.state tells of it.
func (l takenLog) state(now int) string {
	return fmt.Sprint(l.list(), time.Duration(l.leaves(now, l.used()))*time.Millisecond)
}

// stateWith is the state if only some entries are left. Without any the header stays, with a later time.
func (l takenLog) stateWith(base int, entries []logEntry, now int) string {
	if len(entries) > 0 {
		return takenLog{base, entries}.state(now)
	}
	total, left := l.base+l.used(), l.leaves(now, l.used())
	return fmt.Sprintf("[%d %d %d] %s", total, total, int64(now)+1+left, time.Duration(left)*time.Millisecond)
}

// eachLog makes keys of logs of up to 7 entries, some of which have left, in the millisecond in
// which an entry leaves and beside it.
func eachLog(t *testing.T, s *scriptKeys, test func(l takenLog, now int, restore func(keys ...string))) {
	for entries := 1; entries <= 7; entries += testkit.RaceShare {
		l := takenLog{base: 4}
		for i := range entries {
			l.entries = append(l.entries, logEntry{10 * i, 1 + i%2})
		}
		for gone := range entries {
			for now := 999 + 10*gone; now <= 1001+10*gone && now < 990+10*entries; now++ {
				require.NoError(t, s.rdb.Del(t.Context(), "saved").Err())
				require.NoError(t, s.rdb.RPush(t.Context(), "saved", l.list()...).Err())
				require.NoError(t, s.rdb.PExpire(t.Context(), "saved", time.Duration(990+10*entries-now)*time.Millisecond).Err())
				test(l.counted(now), now, func(keys ...string) {
					for _, key := range keys {
						require.NoError(t, s.rdb.Copy(t.Context(), "saved", key, 0, true).Err())
					}
				})
			}
		}
	}
}

// TestScriptsOfWindowsSearchLogs for what has left. Only where more tokens than those of the oldest
// entry must leave first, a key among many is left to a call of its own.
func TestScriptsOfWindowsSearchLogs(t *testing.T) {
	t.Parallel()
	const limit = 9 // some logs have debt
	s := newScriptKeys(t, ginlimit.SlidingWindow, ginlimit.PerSecond(limit))
	eachLog(t, s, func(l takenLog, now int, restore func(keys ...string)) {
		for _, c := range []faultCall{{"take", 1, 1, 0}, {"take", 2, 3, 0}, {"take", 8, 1, 0}, {"take", 1, 0, 0}} {
			what := fmt.Sprintf("%v at %d ms: %+v", l, now, c)
			restore("alone", "one", "other", "each")
			after, charged := l, max(0, min(c.charges, (limit-l.used())/c.n))
			if charged > 0 {
				after.entries = append(slices.Clone(l.entries), logEntry{now, charged * c.n})
			}
			want := []int64{int64(l.used()), after.leaves(now, max(1, after.used()-limit+1)),
				0, l.leaves(now, l.used()), int64(now)}
			if short := after.used() + c.n - limit; short > 0 {
				want[2] = after.leaves(now, short)
			}
			together := testkit.Must(s.try(t, c, "one", "other"))
			require.Equal(t, append(want[:5:5], want...), together, what)
			if charged == c.charges && charged > 0 {
				want[2] = 0 // all charges were made, so it is not said when one more fits
			}
			require.Equal(t, want, testkit.Must(s.try(t, c, "alone")), what)
			if charged > 0 {
				require.Equal(t, after.state(now), s.state(t, "one"), what)
				require.Equal(t, after.state(now), s.state(t, "alone"), what)
			}
			if c.charges > 0 {
				each := testkit.Must(s.try(t, faultCall{"each", c.n, 0, c.charges}, "each"))
				if want[2] > after.leaves(now, 1) {
					require.EqualValues(t, -1, each[0], what)
					require.Equal(t, s.state(t, "saved"), s.state(t, "each"), what)
					continue
				}
				require.Equal(t, want, each, what)
				require.Equal(t, s.state(t, "alone"), s.state(t, "each"), what)
			}
		}
	})
}

// TestScriptsOfWindowsRewriteLogs to give back tokens: those that were taken last, or those with a mark.
func TestScriptsOfWindowsRewriteLogs(t *testing.T) {
	t.Parallel()
	s := newScriptKeys(t, ginlimit.SlidingWindow, ginlimit.PerSecond(10))
	eachLog(t, s, func(l takenLog, now int, restore func(keys ...string)) {
		for n := 1; n <= 3; n++ {
			restore("k")
			testkit.Must(s.try(t, faultCall{"give", n, 0, 0}, "k"))
			var want []logEntry
			left := l.used() - n
			for _, e := range l.entries {
				if left > 0 {
					want = append(want, logEntry{e.at, min(e.tokens, left)})
				}
				left -= e.tokens
			}
			require.Equal(t, l.stateWith(l.base, want, now), s.state(t, "k"), "%v at %d ms: %d given back", l, now, n)
		}
		for at := 0; at <= 65; at += 5 {
			if slices.ContainsFunc(l.entries, func(e logEntry) bool { return e.at == at }) {
				continue // else nothing has the mark, or it has left
			}
			restore("k")
			testkit.Must(s.try(t, faultCall{"return", 1, 0, at}, "k"))
			require.Equal(t, s.state(t, "saved"), s.state(t, "k"), "%v at %d ms: returned with mark %d", l, now, at)
		}
		for n := 1; n <= 2; n++ {
			for i, e := range l.entries {
				restore("k")
				testkit.Must(s.try(t, faultCall{"return", n, 0, e.at}, "k"))
				want := takenLog{l.base, slices.Clone(l.entries)}
				if i < len(l.entries)-1-i { // the totals of the earlier ones rise
					want.base += min(n, e.tokens)
				}
				if want.entries[i].tokens -= n; want.entries[i].tokens <= 0 {
					want.entries = slices.Delete(want.entries, i, i+1)
				}
				require.Equal(t, l.stateWith(want.base, want.entries, now), s.state(t, "k"),
					"%v at %d ms: %d returned of entry %d", l, now, n, i)
			}
		}
	})
}

// TestScriptsOfWindowsRewriteFewEntries of a log to give back what was taken before or after them, or none if there are
// more on both sides.
func TestScriptsOfWindowsRewriteFewEntries(t *testing.T) {
	t.Parallel()
	s := newScriptKeys(t, ginlimit.SlidingWindow, ginlimit.Limit{Rate: 3000, Period: 2 * time.Second})
	const entries = 2*bucket.MaxRewritten + 3 // of 2 tokens, in a millisecond each
	// list has entries of which those up to one have a more in their totals, and those from there on b less.
	list := func(base, until, a, b int) []any {
		list := []any{fmt.Sprint(base, 2*entries-b, entries-1+2000)}
		for i := range entries {
			if i < until {
				list = append(list, i, 2*i+2+a)
			} else {
				list = append(list, i, 2*i+2-b)
			}
		}
		return list
	}
	for at, want := range map[int][]any{
		entries - 1: list(0, entries-1, 0, 1), bucket.MaxRewritten + 2: list(0, bucket.MaxRewritten+2, 0, 1),
		bucket.MaxRewritten + 1: list(1, 0, 0, 0), bucket.MaxRewritten: list(1, bucket.MaxRewritten, 1, 0),
		0: list(1, 0, 0, 0),
	} {
		require.NoError(t, s.rdb.Del(t.Context(), "k").Err())
		require.NoError(t, s.rdb.RPush(t.Context(), "k", list(0, 0, 0, 0)...).Err())
		require.NoError(t, s.rdb.PExpire(t.Context(), "k", 2*time.Second).Err())
		testkit.Must(s.try(t, faultCall{"return", 1, 0, at}, "k"))
		require.True(t, fmt.Sprint(want, 2*time.Second) == s.state(t, "k"), "entry %d", at)
	}
}

// TestScriptsOfWindowsCountBeyondTheWrap of totals, at 2^52.
func TestScriptsOfWindowsCountBeyondTheWrap(t *testing.T) {
	t.Parallel()
	s := newScriptKeys(t, ginlimit.SlidingWindow, ginlimit.PerSecond(6))
	for _, c := range []faultCall{{"take", 1, 1, 0}, {"each", 1, 1, 0}} {
		for _, keys := range [][]string{{"k"}, {"k", "other"}} {
			require.NoError(t, s.rdb.Del(t.Context(), "k", "other").Err())
			require.NoError(t, s.rdb.RPush(t.Context(), "k", "4503599627370493 2 1000", "0", "2").Err())
			require.NoError(t, s.rdb.PExpire(t.Context(), "k", time.Second).Err())
			for i, used := range []int64{5, 6, 6} {
				require.Equal(t, used, testkit.Must(s.try(t, c, keys...))[0], "%+v of %v, call %d", c, keys, i)
			}
			require.Equal(t, "[4503599627370493 3 1000 0 3] 1s", s.state(t, "k"))
		}
	}
}

// TestScriptsOfWindowsWithAClockSetBack to before a log began, as a blocked one without tokens
// shows: no mark is below 0.
func TestScriptsOfWindowsWithAClockSetBack(t *testing.T) {
	t.Parallel()
	s := newScriptKeys(t, ginlimit.SlidingWindow, ginlimit.PerSecond(3))
	testkit.Must(s.call(t, "block", time.Hour.Milliseconds(), 0, []string{"k"}))
	left := time.Hour + time.Second
	require.NoError(t, s.rdb.PExpire(t.Context(), "k", left).Err())
	reply := testkit.Must(s.call(t, "take", 1, 1, []string{"k"}))
	ms := left.Milliseconds()
	require.Equal(t, []int64{3, ms, ms, ms, 0}, reply)
}

// TestScriptsOfWindowsForgetTheLastEntryInItsLastMillisecond though the key lives on, for a block.
func TestScriptsOfWindowsForgetTheLastEntryInItsLastMillisecond(t *testing.T) {
	t.Parallel()
	s := newScriptKeys(t, ginlimit.SlidingWindow, ginlimit.PerSecond(7))
	for _, c := range []faultCall{{"charge", 2, 0, 0}, {"block", 1001, 0, 0}, {"charge", 14, 0, 1000}, {"take", 1, 0, 1}} {
		s.advance(time.Duration(c.more) * time.Millisecond)
		reply := testkit.Must(s.try(t, c, "k"))
		if c.verb == "take" {
			require.EqualValues(t, 14, reply[0], "as much debt as there may be")
		}
	}
}

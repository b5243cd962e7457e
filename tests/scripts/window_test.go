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

// TestABlockOutlastsWhatIsReturned or given back, all of it.
func TestABlockOutlastsWhatIsReturned(t *testing.T) {
	t.Parallel()
	for _, a := range testkit.WindowAlgorithms {
		for _, verb := range []string{"give", "return"} {
			s := newScriptKeys(t, a, ginlimit.PerSecond(3))
			taken := testkit.Must(s.call(t, "take", 2, 1, []string{"k"}))
			testkit.Must(s.call(t, "block", 2, 0, []string{"k"}))
			testkit.Must(s.call(t, verb, 2, 0, []string{"k"}, taken[4]))
			require.EqualValues(t, 3, testkit.Must(s.call(t, "take", 1, 1, []string{"k"}))[0], "%s, %s", a, verb)
			s.advance(2 * time.Millisecond)
			require.Zero(t, testkit.Must(s.call(t, "take", 1, 0, []string{"k"}))[0], "%s, %s", a, verb)
		}
	}
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
	test := func(n, at int, want []any) {
		require.NoError(t, s.rdb.Del(t.Context(), "k").Err())
		require.NoError(t, s.rdb.RPush(t.Context(), "k", list(0, 0, 0, 0)...).Err())
		require.NoError(t, s.rdb.PExpire(t.Context(), "k", 2*time.Second).Err())
		testkit.Must(s.try(t, faultCall{"return", n, 0, at}, "k"))
		require.True(t, fmt.Sprint(want, 2*time.Second) == s.state(t, "k"), "entry %d", at)
	}
	test(2, 1, slices.Delete(list(2, 2, 2, 0), 3, 5)) // all of an entry
	for at, want := range map[int][]any{
		entries - 1: list(0, entries-1, 0, 1), bucket.MaxRewritten + 2: list(0, bucket.MaxRewritten+2, 0, 1),
		bucket.MaxRewritten + 1: list(1, 0, 0, 0), bucket.MaxRewritten: list(1, bucket.MaxRewritten, 1, 0),
		0: list(1, 0, 0, 0),
	} {
		test(1, at, want)
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

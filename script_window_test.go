package ginlimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// TestRepliesOfWindows: what was taken before; milliseconds until there is more, until one more charge fits if not all were
// made, and until nothing is left; and the mark.
func TestRepliesOfWindows(t *testing.T) {
	t.Parallel()
	fixed, sliding := newScriptKeys(t, ginlimit.FixedWindow, ginlimit.PerSecond(3)), newScriptKeys(t, ginlimit.SlidingWindow, ginlimit.PerSecond(3))
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
				reply, err := s.call(t, "take", c.n, c.charges, keys)
				require.NoError(t, err)
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

// TestRepliesOfCalendarPeriods: what was taken before; milliseconds until the period ends if anything was taken, if nothing is
// left, and anyway; and the mark. A key lives an hour longer.
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
		s.args = []any{1000 - c.at, 0, 3}
		alone, err := s.call(t, "take", c.n, c.charges, []string{"alone"})
		require.NoError(t, err)
		require.Equal(t, c.want, alone, "%+v", c)
		each, err := s.call(t, "each", c.n, 0, []string{"each 1", "each 2"}, c.charges, c.charges)
		require.NoError(t, err)
		require.Equal(t, append(c.want[:5:5], c.want...), each, "%+v", c)
		two, err := s.call(t, "take", c.n, c.charges, []string{"one", "other"}, s.args...)
		require.NoError(t, err)
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
		s.args = []any{1_000_003, 1, c.limit}
		for _, tokens := range []int64{c.most - 3, 2, 4, 1} {
			_, err := s.call(t, "charge", tokens, 0, []string{"k"})
			require.NoError(t, err)
		}
		_, err := s.call(t, "charge", c.most+1, 0, []string{"at once"})
		require.NoError(t, err)
		for _, key := range []string{"k", "at once"} {
			reply, err := s.call(t, "give", 1, 0, []string{key})
			require.NoError(t, err)
			require.EqualValues(t, c.most, reply[0], "%s", a)
		}
	}
}

// TestABlockOutlastsWhatIsReturned, whether that is all or not.
func TestABlockOutlastsWhatIsReturned(t *testing.T) {
	t.Parallel()
	for _, a := range []ginlimit.Algorithm{ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		for _, back := range []int{1, 2, 3} {
			s := newScriptKeys(t, a, ginlimit.PerSecond(3))
			taken, err := s.call(t, "take", 2, 1, []string{"k"})
			require.NoError(t, err)
			for _, verb := range []string{"block", "return"} {
				_, err = s.call(t, verb, back, 0, []string{"k"}, taken[4])
				require.NoError(t, err)
			}
			reply, err := s.call(t, "take", 1, 1, []string{"k"})
			require.NoError(t, err)
			require.Equal(t, []int64{3, int64(back)}, []int64{reply[0], reply[2]}, "%s: it is blocked for so many milliseconds", a)
			s.advance(time.Duration(back) * time.Millisecond)
			reply, err = s.call(t, "take", 1, 0, []string{"k"})
			require.NoError(t, err)
			require.EqualValues(t, max(0, 2-back), reply[0], "%s", a)
		}
	}
}

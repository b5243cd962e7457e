package lease

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// newLease returns a lease of some tokens.
func newLease(life, end time.Duration, tokens int64) *lease {
	l := &lease{life: life, end: end}
	l.left.Store(tokens)
	return l
}

// TestUsableAndHeld: tokens are usable for 7/8 of the lease's life, and may be held for longer until its
// end, but not after a window.
func TestUsableAndHeld(t *testing.T) {
	t.Parallel()
	const long = time.Duration(math.MaxInt64)
	for name, row := range map[string]struct {
		life, end, age time.Duration
		usable, held   int64
	}{
		"at once":                         {8 * ms, long, 0, 5, 5},
		"before its call was sent":        {8 * ms, long, -1, 0, 5},
		"in its last moment of use":       {8 * ms, long, 7*ms - 1, 5, 5},
		"when it is used no more":         {8 * ms, long, 7 * ms, 0, 5},
		"in the last moment of its life":  {8 * ms, long, 8*ms - 1, 0, 5},
		"at the end of its life":          {8 * ms, long, 8 * ms, 0, 0},
		"in a window":                     {8 * ms, 9 * ms, 7*ms - 1, 5, 5},
		"before its window ends early":    {8 * ms, 3 * ms, 3*ms - 1, 5, 5},
		"when its window has ended early": {8 * ms, 3 * ms, 3 * ms, 0, 0},
		"of a window that has ended":      {8 * ms, 0, 0, 0, 0},
	} {
		l := newLease(row.life, row.end, 5)
		require.Equal(t, row.usable, l.usable(row.age), name)
		require.Equal(t, row.held, l.held(row.age), name)
	}
}

func TestTakeTakesAllOrNone(t *testing.T) {
	t.Parallel()
	l := newLease(5*ms, time.Hour, 5)
	for _, row := range []struct {
		age     time.Duration
		n, left int64
		ok      bool
	}{{0, 6, 0, false}, {0, 2, 3, true}, {5 * ms, 1, 0, false}, {-1, 1, 0, false}, {4 * ms, 4, 0, false}, {0, 3, 0, true},
		{0, 1, 0, false}} {
		taken, left := l.take(row.age, row.n, row.n)
		require.Equal(t, row.ok, taken == row.n, row)
		require.Equal(t, row.left, left, row)
	}
}

// TestWindowEnd is the first end of a window, a millisecond and a thousandth sooner than found.
func TestWindowEnd(t *testing.T) {
	t.Parallel()
	window, calendar := newBucket(t, bucket.FixedWindow, 9, 9, 5000), newBucket(t, bucket.FixedWindow, 9, 9, 86_400_000)
	calendar.Ends = 86_400_000
	token := newBucket(t, bucket.Token, 9, 9, 5000)
	for name, row := range map[string]struct {
		buckets []bucket.Bucket
		resets  []int64
		want    time.Duration
	}{
		"a window":              {[]bucket.Bucket{window}, []int64{1001}, 1000 * ms},
		"a thousandth":          {[]bucket.Bucket{window}, []int64{1025}, 1023 * ms},
		"several":               {[]bucket.Bucket{window}, []int64{2049}, 2046 * ms},
		"a millisecond is left": {[]bucket.Bucket{window}, []int64{1}, 0},
		"nothing is left":       {[]bucket.Bucket{window}, []int64{0}, 0},
		"the first of two":      {[]bucket.Bucket{window, calendar}, []int64{901, 501}, 500 * ms},
		"the other":             {[]bucket.Bucket{window, calendar}, []int64{401, 501}, 400 * ms},
		"of no window":          {[]bucket.Bucket{token}, []int64{0}, math.MaxInt64},
	} {
		states := make([]bucket.State, len(row.resets))
		for i := range states {
			states[i].Reset = row.resets[i]
		}
		require.Equal(t, row.want, windowEnd(row.buckets, states), name)
	}
}

// TestUsageAcrossSpans counts the previous span's tokens as if they had been asked for evenly.
func TestUsageAcrossSpans(t *testing.T) {
	t.Parallel()
	var u usage
	const life = 100 * ms
	u.rotate(1000*ms, life)
	u.add(80)
	for _, row := range []struct {
		at, add time.Duration
		want    int64
	}{
		{1000 * ms, 0, 80}, {1099 * ms, 0, 80}, {1100 * ms, 0, 80}, {1125 * ms, 0, 60}, {1175 * ms, 8, 28},
		{1200 * ms, 0, 8}, {1250 * ms, 0, 4}, {1500 * ms, 0, 0}, // long ago
		{1500 * ms, 5, 5}, {1700 * ms, 0, 0}, // a whole span ago
	} {
		u.add(int64(row.add))
		require.Equal(t, row.want, u.perLife(row.at, life), "%v", row)
	}
}

// TestHugeCharges neither overflow nor panic.
func TestHugeCharges(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.want(bucket.MaxUnits)
		for _, n := range []int64{1 << 31, 1 << 53, 1 << 62, math.MaxInt64} {
			trip := f.cache.Begin(f.s, 24*time.Hour, 1, n)
			f.end(&trip)
			require.False(t, f.take(n))
		}
		require.True(t, f.begin().TakesAhead())
	})
}

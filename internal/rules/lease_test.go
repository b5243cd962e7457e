package rules_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// token returns a token bucket.
func token(t *testing.T, rate, burst, period int64) bucket.Bucket {
	t.Helper()
	b, ok := bucket.New(bucket.Token, fmt.Sprint(period), rate, burst, period)
	require.True(t, ok)
	return b
}

// TestAllowLeases keeps 2h tokens of each burst, where h is a quarter of the smallest burst, or what the
// fastest limit regains in the life. The life is how long it takes to regain h, less what clocks may
// differ by.
func TestAllowLeases(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		limits []bucket.Bucket
		floor  int64
		d      time.Duration
		h      int64
		life   time.Duration
		lent   int // the limit whose rate the lease bucket has
	}{
		"a rate for a part of a second": {
			[]bucket.Bucket{token(t, 500, 500, second)},
			0, ms(200), 100, ms(198), 0,
		},
		"a thousandth of a long life": {
			[]bucket.Bucket{token(t, 60, 1000, minute)},
			0, time.Minute, 60, ms(59_940), 0,
		},
		"a small burst":                     {[]bucket.Bucket{token(t, 500, 40, second)}, 0, ms(200), 10, ms(18), 0},
		"a long life":                       {[]bucket.Bucket{token(t, 500, 500, second)}, 0, time.Hour, 125, ms(248), 0},
		"a short life":                      {[]bucket.Bucket{token(t, 1000, 500, second)}, 0, ms(8), 8, ms(6), 0},
		"the shortest life":                 {[]bucket.Bucket{token(t, 1000, 500, second)}, 0, ms(7), 7, ms(5), 0},
		"a life that is too short":          {[]bucket.Bucket{token(t, 1000, 500, second)}, 0, ms(6), 0, 0, 0},
		"a life of less than a millisecond": {[]bucket.Bucket{token(t, 50_000, 5000, second)}, 0, ms(1) - 1, 0, 0, 0},
		"many tokens in a short life": {
			[]bucket.Bucket{token(t, 50_000, 5000, second)},
			0, ms(8), 400, ms(6), 0,
		},
		"the smallest burst":               {[]bucket.Bucket{token(t, 10, 8, second)}, 0, time.Second, 2, ms(198), 0},
		"a burst that is too small":        {[]bucket.Bucket{token(t, 10, 7, second)}, 0, time.Second, 0, 0, 0},
		"a slow limit":                     {[]bucket.Bucket{token(t, 10, 100, second)}, 0, ms(200), 2, ms(198), 0},
		"a limit that is too slow":         {[]bucket.Bucket{token(t, 10, 100, second)}, 0, ms(199), 0, 0, 0},
		"a part of a token flows back too": {[]bucket.Bucket{token(t, 3, 100, second)}, 0, ms(999), 2, ms(664), 0},
		"no life":                          {[]bucket.Bucket{token(t, 500, 500, second)}, 0, 0, 0, 0, 0},
		"the fastest limit's rate": {
			[]bucket.Bucket{token(t, 500, 500, second), token(t, 6000, 6000, minute)},
			0, ms(200), 100, ms(198), 0,
		},
		"a later limit is the fastest": {
			[]bucket.Bucket{token(t, 100, 100, second), token(t, 12_000, 12_000, minute)},
			0, ms(200), 25, ms(123), 1,
		},
		"the smallest of the bursts": {
			[]bucket.Bucket{token(t, 500, 40, second), token(t, 6000, 6000, minute)},
			0, ms(200), 10, ms(18), 0,
		},
		"the first of equal rates": {
			[]bucket.Bucket{token(t, 100, 100, second), token(t, 6000, 6000, minute)},
			0, ms(100), 10, ms(98), 0,
		},
		"a floor leaves as much": {[]bucket.Bucket{token(t, 500, 500, second)}, 299, ms(200), 100, ms(198), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, before := newSet(row.limits...), newSet(row.limits...)
			require.Equal(t, -1, s.Leave(row.floor))
			require.Equal(t, -1, before.Leave(row.floor))
			require.Equal(t, -1, s.AllowLeases(row.d))
			require.Equal(t, row.life, s.Life)
			limits := before.Buckets(rules.Limits)
			for i := range limits {
				limits[i].Leave(2 * row.h)
				full := token(t, row.limits[i].Drain, row.limits[i].Burst, row.limits[i].Cost)
				require.Equal(t, ms(full.FillTime()), s.Window(i), "a burst is what it was")
			}
			require.Equal(t, limits, s.Buckets(rules.Limits))
			want := append([]bucket.Bucket{}, limits...)
			if row.h > 0 {
				want = append(want, bucket.NewAhead(&row.limits[row.lent], row.h))
				require.Less(t, s.Life, ms(row.h*row.limits[row.lent].Cost/row.limits[row.lent].Drain))
			}
			for range 2 {
				ahead, layout := s.Ahead()
				require.Equal(t, want, ahead)
				require.Equal(t, bucket.NewLayout(want), layout)
			}
			require.Equal(t, s.Burst, limits[least(limits)].Burst)
		})
	}
}

// least returns the index of the bucket with the smallest burst.
func least(buckets []bucket.Bucket) (least int) {
	for i := range buckets {
		if buckets[i].Burst < buckets[least].Burst {
			least = i
		}
	}
	return least
}

// TestReserved is of the whole burst, whatever floor there is, so that policies of one name agree: With may
// give them any floor.
func TestReserved(t *testing.T) {
	t.Parallel()
	for _, floor := range []int64{0, 1, 299} {
		s := newSet(token(t, 500, 500, second))
		require.Equal(t, -1, s.Leave(floor))
		require.Equal(t, -1, s.AllowLeases(ms(200)))
		require.EqualValues(t, 500-floor-200, s.Burst, floor)
		require.Equal(t, ms(198), s.Life, floor)
	}
	for _, floor := range []int64{300, 499} { // others may use no more than 300
		s := newSet(token(t, 900, 900, second), token(t, 500, 500, second))
		require.Equal(t, -1, s.Leave(floor))
		require.Equal(t, 1, s.AllowLeases(ms(200)))
		require.True(t, s.Prohibits())
		require.Zero(t, s.Life)
	}
	small := newSet(token(t, 500, 7, second))
	small.AllowLeases(ms(200))
	require.EqualValues(t, 7, small.Burst)
}

// TestLendOfWindows keeps nothing, and needs no bucket.
func TestLendOfWindows(t *testing.T) {
	t.Parallel()
	s := newSet(newBucket(t, bucket.FixedWindow, "w", 100, second), newBucket(t, bucket.FixedWindow, "v", 900, minute))
	before := s.Buckets(rules.Limits)
	s.AllowLeases(ms(200))
	require.Equal(t, ms(200), s.Life)
	require.Equal(t, before, ahead(s))
	require.EqualValues(t, 100, s.Burst)
	quota := new(rules.Set)
	require.True(t, quota.AddCalendar(daily, 100))
	quota.AllowLeases(time.Hour)
	require.Equal(t, time.Hour, quota.Life)
	require.EqualValues(t, 100, quota.Burst)
	require.Len(t, ahead(quota), 1)
}

// TestMayLease: tokens of some sets are not taken ahead, and AllowLeases changes nothing.
func TestMayLease(t *testing.T) {
	t.Parallel()
	tokens, window := newBucket(t, bucket.Token, "t", 100, second), newBucket(t, bucket.FixedWindow, "w", 100, second)
	sliding := newBucket(t, bucket.SlidingWindow, "s", 100, second)
	ban, slots := bucket.NewBan(100, 1000), bucket.NewSlots(3)
	guarded := func(ban, slots *bucket.Bucket) *rules.Set {
		s := newSet(tokens)
		s.Guard(ban, slots)
		return s
	}
	mixed, prohibits := newSet(window), newSet(tokens)
	require.True(t, mixed.AddCalendar(daily, 100))
	prohibits.Prohibit(none)
	for name, row := range map[string]struct {
		s    *rules.Set
		want bool
	}{
		"no limit":                 {new(rules.Set), false},
		"a token bucket":           {newSet(tokens), true},
		"token buckets":            {newSet(tokens, tokens), true},
		"windows":                  {newSet(window, window), true},
		"a sliding window":         {newSet(sliding), false},
		"limits of two kinds":      {newSet(tokens, window), false},
		"of two kinds in turn":     {newSet(window, tokens), false},
		"a calendar beside others": {mixed, false},
		"a ban":                    {guarded(&ban, nil), false},
		"slots":                    {guarded(nil, &slots), false},
		"a limit of 0":             {prohibits, false},
	} {
		require.Equal(t, row.want, row.s.MayLease(), name)
		before := row.s.Buckets(rules.All)
		row.s.AllowLeases(ms(200))
		require.Equal(t, row.want, row.s.Life > 0, name)
		if !row.want {
			require.Equal(t, before, row.s.Buckets(rules.All), name)
			require.Equal(t, row.s.Buckets(rules.Limits), ahead(row.s), name)
		}
	}
}

// TestAShareHasNoLeases, and the part of what is kept for them stays a reserve.
func TestAShareHasNoLeases(t *testing.T) {
	t.Parallel()
	s := newSet(token(t, 500, 500, second))
	s.AllowLeases(ms(200))
	share := s.Share(2)
	require.Zero(t, share.Life)
	require.Len(t, ahead(share), 1)
	require.EqualValues(t, 150, share.Burst)
	require.Equal(t, ms(198), s.Life, "of the set itself")
	require.Same(t, s, s.Share(1))
	s.KeepShare()
	require.Zero(t, s.Share(2).Life)
}

// ahead returns the buckets of a call that takes tokens ahead.
func ahead(s *rules.Set) []bucket.Bucket {
	all, _ := s.Ahead()
	return all
}

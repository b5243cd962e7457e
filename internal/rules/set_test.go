package rules_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/calendar"
	"github.com/ginlimit/ginlimit/internal/rules"
)

const second, minute = 1000, 60_000

var (
	daily   = calendar.Rule{Unit: calendar.Day, Zone: time.UTC}
	monthly = calendar.Rule{Unit: calendar.Month, First: 1, Zone: time.UTC}
	none    calendar.Rule
)

// newBucket returns the bucket of n per period.
func newBucket(t *testing.T, kind bucket.Kind, id string, n, period int64) bucket.Bucket {
	t.Helper()
	b, ok := bucket.New(kind, id, n, n, period)
	require.True(t, ok)
	return b
}

// newSet returns the set of some limits.
func newSet(limits ...bucket.Bucket) *rules.Set {
	s := new(rules.Set)
	for _, b := range limits {
		s.Add(b)
	}
	return s
}

// ids returns the IDs of buckets.
func ids(buckets []bucket.Bucket) []string {
	all := []string{}
	for _, b := range buckets {
		all = append(all, b.ID)
	}
	return all
}

func TestScopeIsTheFirstResources(t *testing.T) {
	t.Parallel()
	a, b := newBucket(t, bucket.Token, "a", 10, second), newBucket(t, bucket.FixedWindow, "b", 5, minute)
	ban, slots := bucket.NewBan(100, 1000), bucket.NewSlots(3)
	for name, row := range map[string]struct {
		limits     []bucket.Bucket
		ban, slots *bucket.Bucket
		all        []string
		tokens     int // how many of them the scope Tokens has
		slotsAt    int
	}{
		"nothing":           {nil, nil, nil, []string{}, 0, -1},
		"limits":            {[]bucket.Bucket{a, b}, nil, nil, []string{"a", "b"}, 2, -1},
		"a ban":             {nil, &ban, nil, []string{"ban"}, 1, -1},
		"slots":             {nil, nil, &slots, []string{"slots"}, 0, 0},
		"a limit and a ban": {[]bucket.Bucket{a}, &ban, nil, []string{"a", "ban"}, 2, -1},
		"a limit and slots": {[]bucket.Bucket{a}, nil, &slots, []string{"a", "slots"}, 1, 1},
		"a ban and slots":   {nil, &ban, &slots, []string{"ban", "slots"}, 1, 1},
		"a limit with both": {[]bucket.Bucket{b}, &ban, &slots, []string{"b", "ban", "slots"}, 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSet(row.limits...)
			s.Guard(row.ban, row.slots)
			limits := len(row.limits)
			for scope, n := range map[rules.Scope]int{rules.Limits: limits, rules.Tokens: row.tokens, rules.All: len(row.all)} {
				assert.Equal(t, row.all[:n], ids(s.Buckets(scope)), "scope %d", scope)
				assert.Equal(t, n > 0, s.Counts(scope), "scope %d", scope)
			}
			_ = append(append(s.Buckets(rules.Limits), a), a)
			_ = append(append(s.Buckets(rules.Tokens), a), a)
			assert.Equal(t, row.all, ids(s.Buckets(rules.All)), "appending to a scope does not change the set")
			assert.Equal(t, row.slotsAt, s.Slots())
			assert.Equal(t, row.ban != nil || row.slots != nil, s.Guarded())
			assert.Equal(t, row.ban != nil, s.Bans())
		})
	}
}

func TestQuotaThatCannotBeCountedIsNotAdded(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		n  int64
		ok bool
	}{"the largest": {bucket.MaxUnits, true}, "one more": {bucket.MaxUnits + 1, false}} {
		s := new(rules.Set)
		require.Equal(t, row.ok, s.AddCalendar(daily, row.n), name)
		require.Equal(t, row.ok, s.Counts(rules.Limits), name)
		require.Equal(t, row.ok, s.Ends() > 0, name)
		if !row.ok {
			require.Equal(t, new(rules.Set), s, name)
		}
	}
}

func TestCalendarQuotaIsOfThePresentPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(36 * time.Hour)
		s := new(rules.Set)
		require.True(t, s.AddCalendar(daily, 10))
		got := s.Buckets(rules.Limits)[0]
		require.Equal(t, "day:2000-01-02", got.ID)
		require.Equal(t, bucket.FixedWindow, got.Kind)
		require.EqualValues(t, 10, got.Burst)
		require.EqualValues(t, 24*60*minute, got.Period)
		require.Equal(t, time.Now().Add(12*time.Hour).UnixMilli(), got.Ends)
		require.Equal(t, got.Ends, s.Ends())
	})
}

func TestReservedTokensStayAndALimitWithoutOthersProhibits(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		limits   []int64 // tokens of each
		floor    int64
		first    int
		bursts   []int64 // afterwards; nil if the set prohibits
		reserved int64
	}{
		"no limit":                   {nil, 5, -1, []int64{}, 0},
		"nothing":                    {[]int64{10}, 0, -1, []int64{10}, 0},
		"one of two":                 {[]int64{2}, 1, -1, []int64{1}, 1},
		"as many as there are":       {[]int64{5}, 5, 0, nil, 0},
		"more than there are":        {[]int64{5}, 6, 0, nil, 0},
		"of several limits":          {[]int64{10, 20}, 9, -1, []int64{1, 11}, 9},
		"too many of the second one": {[]int64{20, 10, 5}, 10, 1, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var limits []bucket.Bucket
			for _, n := range row.limits {
				limits = append(limits, newBucket(t, bucket.Token, "a", n, n*second))
			}
			s, slots := newSet(limits...), bucket.NewSlots(3)
			require.Equal(t, row.first, s.Leave(row.floor))
			require.Equal(t, row.bursts == nil, s.Prohibits())
			if row.bursts == nil {
				s.Guard(nil, &slots)
				require.False(t, s.Counts(rules.All), "it counts nothing and gets no slots")
				require.Empty(t, s.Buckets(rules.Limits))
				require.EqualValues(t, int64(math.MaxInt64), s.Burst())
				require.Zero(t, s.ProhibitedWindow())
				require.Equal(t, -1, s.Leave(row.floor), "it has no limit left")
				return
			}
			bursts := []int64{}
			for _, b := range s.Buckets(rules.Limits) {
				bursts = append(bursts, b.Burst)
				require.Equal(t, row.reserved*b.Cost, b.Floor)
			}
			require.Equal(t, row.bursts, bursts)
		})
	}
}

func TestProhibitingSetReservesNothing(t *testing.T) {
	t.Parallel()
	s := newSet(newBucket(t, bucket.Token, "a", 10, second))
	s.Prohibit(none)
	require.True(t, s.Prohibits())
	require.Zero(t, s.Ends())
	require.Equal(t, -1, s.Leave(20))
	require.EqualValues(t, 10, s.Burst(), "it is as it was")
}

func TestProhibitingSetIsNotGuarded(t *testing.T) {
	t.Parallel()
	s, ban, slots := new(rules.Set), bucket.NewBan(100, 1000), bucket.NewSlots(3)
	s.Prohibit(none)
	s.Guard(&ban, &slots)
	require.False(t, s.Guarded())
	require.False(t, s.Bans())
	require.Equal(t, -1, s.Slots())
}

func TestLastLimitIsNotTakenForSlots(t *testing.T) {
	t.Parallel()
	slots := bucket.NewSlots(1)
	s := newSet(newBucket(t, bucket.Token, "a", 10, second), newBucket(t, bucket.SlidingWindow, "b", 10, second))
	require.Equal(t, -1, s.Slots())
	s.Guard(nil, &slots)
	require.Equal(t, 2, s.Slots())
}

func TestShareIsOfEachResource(t *testing.T) {
	t.Parallel()
	a, ban, slots := newBucket(t, bucket.Token, "a", 12, second), bucket.NewBan(100, 1000), bucket.NewSlots(6)
	s := newSet(a)
	s.Guard(&ban, &slots)
	for processes, want := range map[int64][]bucket.Bucket{
		-1: {a, ban, slots}, 0: {a, ban, slots}, 1: {a, ban, slots},
		2: {a.Share(2), ban, slots.Share(2)}, 3: {a.Share(3), ban, slots.Share(3)},
	} {
		share := s.Share(processes)
		require.Equal(t, want, share.Buckets(rules.All), processes)
		require.Equal(t, processes <= 1, share == s, processes)
		require.Equal(t, 1, len(share.Buckets(rules.Limits)), processes)
		require.Equal(t, []bucket.Bucket{a, ban, slots}, s.Buckets(rules.All), "the set is as it was")
	}
}

func TestASetKeepsItsLatestShare(t *testing.T) {
	t.Parallel()
	s := newSet(newBucket(t, bucket.Token, "a", 12, second))
	require.NotSame(t, s.Share(3), s.Share(3))
	s.KeepShare()
	for range 2 {
		three := s.Share(3)
		require.Same(t, three, s.Share(3))
		require.EqualValues(t, 4, three.Burst())
		require.Same(t, s, s.Share(1))
		require.Same(t, three, s.Share(3), "a whole set replaces no share")
		require.EqualValues(t, 6, s.Share(2).Burst(), "it is not the share of a share")
		require.Same(t, s.Share(2), s.Share(2))
	}
	require.NotSame(t, s.Share(3).Share(2), s.Share(3).Share(2), "a share keeps none")
}

func TestBurstIsThatOfTheSmallestLimit(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		limits []int64
		want   int64
	}{
		"no limit":           {nil, math.MaxInt64},
		"one":                {[]int64{7}, 7},
		"the first of two":   {[]int64{3, 7}, 3},
		"the last of three":  {[]int64{9, 7, 3}, 3},
		"the second of them": {[]int64{9, 3, 7}, 3},
	} {
		var limits []bucket.Bucket
		for _, n := range row.limits {
			limits = append(limits, newBucket(t, bucket.FixedWindow, "a", n, minute))
		}
		s, slots := newSet(limits...), bucket.NewSlots(2)
		require.Equal(t, row.want, s.Burst(), name)
		s.Guard(nil, &slots)
		require.Equal(t, row.want, s.Burst(), "%s, with slots", name)
	}
}

func TestSetsOfOneBucketIDShare(t *testing.T) {
	t.Parallel()
	of := func(ids ...string) *rules.Set {
		s := new(rules.Set)
		for _, id := range ids {
			s.Add(newBucket(t, bucket.Token, id, 10, second))
		}
		return s
	}
	ban, slots := bucket.NewBan(100, 1000), bucket.NewSlots(2)
	banned, slotted := of("a"), of("b")
	banned.Guard(&ban, nil)
	slotted.Guard(nil, &slots)
	both := of("c")
	both.Guard(&ban, &slots)
	for name, row := range map[string]struct {
		a, b *rules.Set
		want bool
	}{
		"none and none":      {of(), of(), false},
		"none and one":       {of(), of("a"), false},
		"the same":           {of("a"), of("a"), true},
		"others":             {of("a", "b"), of("c", "d"), false},
		"first and last":     {of("a", "b"), of("c", "a"), true},
		"their bans":         {banned, both, true},
		"their slots":        {slotted, both, true},
		"a ban and slots":    {banned, slotted, false},
		"a ban and no guard": {banned, of("b"), false},
	} {
		require.Equal(t, row.want, row.a.Shares(row.b), name)
		require.Equal(t, row.want, row.b.Shares(row.a), name)
	}
}

// sharedSet returns the set of a limit that tenants share.
func sharedSet(t *testing.T) *rules.Set {
	t.Helper()
	var s rules.Set
	b, ok := bucket.New(bucket.Token, "1s", 10, 10, 1000)
	require.True(t, ok)
	s.Add(b)
	s.Divide()
	return &s
}

// TestDividedSet has what tenants hold behind the limit, and nothing else.
func TestDividedSet(t *testing.T) {
	t.Parallel()
	s := sharedSet(t)
	for _, scope := range []rules.Scope{rules.Limits, rules.Tokens, rules.All} {
		buckets := s.Buckets(scope)
		require.Len(t, buckets, 2)
		require.Equal(t, bucket.Token, buckets[0].Kind)
		require.Equal(t, bucket.Tenants, buckets[1].Kind)
		require.Equal(t, "1s:tenants", buckets[1].ID)
	}
	require.True(t, s.Divided())
	require.False(t, s.Guarded())
	require.Equal(t, -1, s.Ban())
	require.Equal(t, -1, s.Slots())
	require.False(t, s.MayLease())

	share := s.Share(2)
	require.EqualValues(t, 5, share.Buckets(rules.Limits)[0].Burst)
	require.EqualValues(t, 5, share.Buckets(rules.Limits)[1].Burst, "of the share")
	require.Equal(t, bucket.Tenants, share.Buckets(rules.Limits)[1].Kind)

	var none rules.Set
	none.Divide()
	require.False(t, none.Divided(), "nothing is counted")
}

// TestVerdictOnAShare is of the limit and what the tenant holds of it together.
func TestVerdictOnAShare(t *testing.T) {
	t.Parallel()
	s := sharedSet(t)
	full := bucket.State{Level: 500, Wait: 70, Shares: &bucket.Shares{ // it holds 5 of 10
		Sum: 5 * bucket.Parts, Weights: 1, Finish: 5 * bucket.Parts, Held: 1, Weight: 1,
	}}
	none := bucket.State{Shares: &bucket.Shares{Finish: bucket.NoFinish, Weight: 1}}
	op := bucket.Op{Verb: bucket.Take, Charges: 1, N: 1}
	v, rows := s.Judge(rules.All, []bucket.State{{Level: 500}, full}, op, rules.ReportFull, nil)
	require.Equal(t, rules.Verdict{
		Shared: true, RetryAfter: 70 * time.Millisecond, ResetAfter: 500 * time.Millisecond,
	}, v)
	require.Len(t, rows, 1)
	require.True(t, rows[0].Denies)
	require.True(t, rows[0].Shared)
	require.Equal(t, 70*time.Millisecond, rows[0].Retry)
	require.Zero(t, rows[0].Remaining)

	lacks := full
	lacks.Wait = 20
	v, _ = s.Judge(rules.All, []bucket.State{{Level: 1000}, lacks}, op, rules.ReportNone, nil)
	require.False(t, v.Shared, "the limit has no token for longer")
	require.Equal(t, 100*time.Millisecond, v.RetryAfter)

	v, _ = s.Judge(rules.All, []bucket.State{{}, none}, op, rules.ReportNone, nil)
	require.True(t, v.Allowed)
	require.EqualValues(t, 4, v.Remaining, "5 are its share, alone")
}

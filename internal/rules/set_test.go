package rules_test

import (
	"math"
	"testing"
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
			assert.Equal(t, row.ban != nil || row.slots != nil, s.Guarded)
			assert.Equal(t, row.ban != nil, s.Bans())
		})
	}
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
				require.EqualValues(t, int64(math.MaxInt64), s.Burst)
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

func TestASetKeepsItsLatestShare(t *testing.T) {
	t.Parallel()
	s := newSet(newBucket(t, bucket.Token, "a", 12, second))
	require.NotSame(t, s.Share(3), s.Share(3))
	s.KeepShare()
	for range 2 {
		three := s.Share(3)
		require.Same(t, three, s.Share(3))
		require.EqualValues(t, 4, three.Burst)
		require.Same(t, s, s.Share(1))
		require.Same(t, three, s.Share(3), "a whole set replaces no share")
		require.EqualValues(t, 6, s.Share(2).Burst, "it is not the share of a share")
		require.Same(t, s.Share(2), s.Share(2))
	}
	require.NotSame(t, s.Share(3).Share(2), s.Share(3).Share(2), "a share keeps none")
}

// TestVerdictOnAShare is of the limit and what the tenant holds of it together.
func TestVerdictOnAShare(t *testing.T) {
	t.Parallel()
	s := newSet(newBucket(t, bucket.Token, "1s", 10, second))
	s.Divide()
	full := bucket.State{Level: 500, Wait: 70, Shares: &bucket.Shares{ // it holds 5 of 10
		Sum: 5 * bucket.Parts, Weights: 1, Finish: 5 * bucket.Parts, Held: 1, Weight: 1,
	}}
	none := bucket.State{Shares: &bucket.Shares{Finish: bucket.NoFinish, Weight: 1}}
	op := bucket.Op{Verb: bucket.Take, Charges: 1, N: 1}
	v, rows := judge(s, []bucket.State{{Level: 500}, full}, op, rules.ReportFull, nil)
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
	v, _ = judge(s, []bucket.State{{Level: 1000}, lacks}, op, rules.ReportNone, nil)
	require.False(t, v.Shared, "the limit has no token for longer")
	require.Equal(t, 100*time.Millisecond, v.RetryAfter)

	v, _ = judge(s, []bucket.State{{}, none}, op, rules.ReportNone, nil)
	require.True(t, v.Allowed)
	require.EqualValues(t, 4, v.Remaining, "5 are its share, alone")
}

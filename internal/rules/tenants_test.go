package rules_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// sharedSet returns the set of two limits that tenants share, with a ban and slots.
func sharedSet(t *testing.T) *rules.Set {
	t.Helper()
	var s rules.Set
	for _, row := range []struct{ burst, period int64 }{{10, 1000}, {100, 60_000}} {
		b, ok := bucket.New(bucket.Token, time.Duration(row.period*1e6).String(), row.burst, row.burst, row.period)
		require.True(t, ok)
		s.Add(b)
	}
	ban, slots := bucket.NewBan(100, 100), bucket.NewSlots(3)
	s.Divide()
	s.Guard(&ban, &slots)
	return &s
}

// TestDividedSet has what tenants hold of each limit behind the limits, and before all else.
func TestDividedSet(t *testing.T) {
	t.Parallel()
	s := sharedSet(t)
	kinds := func(scope rules.Scope) (all []bucket.Kind) {
		for _, b := range s.Buckets(scope) {
			all = append(all, b.Kind)
		}
		return all
	}
	limits := []bucket.Kind{bucket.Token, bucket.Token, bucket.Tenants, bucket.Tenants}
	require.Equal(t, limits, kinds(rules.Limits))
	require.Equal(t, append(limits, bucket.Ban), kinds(rules.Tokens))
	require.Equal(t, append(limits, bucket.Ban, bucket.Slots), kinds(rules.All))
	require.True(t, s.Divided())
	require.True(t, s.Guarded())
	require.Equal(t, 4, s.Ban())
	require.Equal(t, 5, s.Slots())
	require.False(t, s.MayLease())
	require.Equal(t, "1s:tenants", s.Buckets(rules.Limits)[2].ID)

	share := s.Share(2)
	require.EqualValues(t, 5, share.Buckets(rules.Limits)[0].Burst)
	require.EqualValues(t, 5, share.Buckets(rules.Limits)[2].Burst, "of the share")
	require.Equal(t, bucket.Tenants, share.Buckets(rules.Limits)[2].Kind)
}

// TestVerdictOnAShare is of the limit and what the tenant holds of it together.
func TestVerdictOnAShare(t *testing.T) {
	t.Parallel()
	s := sharedSet(t)
	full := bucket.State{Level: 500, Wait: 70, Shares: &bucket.Shares{ // it holds 5 of 10
		Sum: 5 * bucket.Parts, Weights: 1, Finish: 5 * bucket.Parts, Held: 1, Weight: 1,
	}}
	none := bucket.State{Shares: &bucket.Shares{Finish: bucket.NoFinish, Weight: 1}}
	found := []bucket.State{{Level: 500}, {}, full, none, {}, {}}
	op := bucket.Op{Verb: bucket.Take, Charges: 1, N: 1}
	v, rows := s.Judge(rules.All, found, op, rules.ReportFull, nil)
	require.Equal(t, rules.Verdict{
		Shared: true, RetryAfter: 70 * time.Millisecond, ResetAfter: 500 * time.Millisecond,
	}, v)
	require.Len(t, rows, 3, "the limits and the slots")
	require.True(t, rows[0].Denies)
	require.True(t, rows[0].Shared)
	require.Equal(t, 70*time.Millisecond, rows[0].Retry)
	require.Zero(t, rows[0].Remaining)
	require.False(t, rows[1].Denies)
	require.EqualValues(t, 50, rows[1].Remaining, "half of the burst, alone")

	blocked := full
	blocked.Shares = &bucket.Shares{Finish: bucket.NoFinish, Weight: 1, Block: 70}
	v, _ = s.Judge(rules.All, []bucket.State{{}, {}, blocked, none, {}, {}}, op, rules.ReportNone, nil)
	require.False(t, v.Allowed)
	require.False(t, v.Shared, "it is blocked")
	require.Equal(t, 70*time.Millisecond, v.RetryAfter)

	lacks := full
	lacks.Wait = 20
	v, _ = s.Judge(rules.All, []bucket.State{{Level: 1000}, {}, lacks, none, {}, {}}, op, rules.ReportNone, nil)
	require.False(t, v.Shared, "the limit has no token for longer")
	require.Equal(t, 100*time.Millisecond, v.RetryAfter)

	v, _ = s.Judge(rules.All, []bucket.State{{}, {}, none, none, {}, {}}, op, rules.ReportNone, nil)
	require.True(t, v.Allowed)
	require.EqualValues(t, 4, v.Remaining, "5 are its share, alone")
}

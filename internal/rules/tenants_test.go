package rules_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/rules"
)

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

package engine

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

const (
	timeout = 50 * time.Millisecond
	// late is how many milliseconds late Redis may be: a reset so long before a charge voids it too.
	late = 100
)

// ms returns milliseconds as a duration.
func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// newBucket returns the bucket of n per period.
func newBucket(t *testing.T, kind bucket.Kind, id string, n, period int64) bucket.Bucket {
	t.Helper()
	b, ok := bucket.New(kind, id, n, n, period)
	require.True(t, ok)
	return b
}

func TestClaimSaysWhenTheChargeWasMade(t *testing.T) {
	for name, row := range map[string]struct {
		took, since int64 // milliseconds: the charge, and since it was answered
		age         int64 // the store's clock may be faster by one part in 1024
		made        int64
		resets      int64
	}{
		"at once":             {0, 0, 0, 0, late},
		"a millisecond ago":   {0, 1, 2, 0, 2 + late},
		"two of them ago":     {0, 2, 3, 1, 3 + late},
		"1024 ms ago":         {0, 1024, 1025, 1023, 1025 + late},
		"with a slow answer":  {1000, 24, 1025, 23, 1025 + late},
		"with the answer now": {1024, 0, 1025, 0, 1025 + late},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				buckets := []bucket.Bucket{newBucket(t, bucket.FixedWindow, "a", 10, 60_000)}
				sent := time.Now()
				time.Sleep(ms(row.took))
				r := newReceipt(timeout, sent, []bucket.State{{Level: 4, Mark: 9, Era: 2}})
				time.Sleep(ms(row.since))
				want := bucket.Claim{Mark: 9, Era: 2, Sure: 3, Behind: 3, Age: row.age, Made: row.made, Resets: row.resets}
				require.Equal(t, []bucket.Claim{want}, r.claims(buckets, 3, false))
			})
		})
	}
}

// TestClaimOfTokensIsVoidForAsLongAsRedisMayBeLate after a reset, however short the period.
func TestClaimOfTokensIsVoidForAsLongAsRedisMayBeLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceipt(3*time.Second, time.Now(), make([]bucket.State, 2))
		claims := r.claims([]bucket.Bucket{
			newBucket(t, bucket.Token, "a", 10, 1000), newBucket(t, bucket.FixedWindow, "b", 10, 1000),
		}, 1, false)
		require.EqualValues(t, 6000, claims[0].Resets)
		require.EqualValues(t, 500, claims[1].Resets, "half of the window")
	})
}

func TestClaimIsOfWhatHasNotFlowedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A token of 10 per second weighs 100 units, of which one flows back per millisecond.
		buckets := []bucket.Bucket{
			newBucket(t, bucket.Token, "a", 10, 1000), newBucket(t, bucket.Token, "b", 20, 1000),
			newBucket(t, bucket.SlidingWindow, "c", 10, 60_000),
		}
		found := []bucket.State{{Level: 500}, {Level: 70}, {Level: 4, Mark: 9}}
		r := newReceipt(timeout, time.Now(), found)
		clear(found)
		time.Sleep(ms(250))
		claims := r.claims(buckets, 3, false)
		for i, want := range []struct{ sure, behind, mark int64 }{{49, 549, 0}, {0, 0, 0}, {3, 3, 9}} {
			require.Equal(t, want.sure, claims[i].Sure, i)
			require.Equal(t, want.behind, claims[i].Behind, i)
			require.Equal(t, want.mark, claims[i].Mark, i)
		}
		for i, want := range []int64{300, 150, 3} {
			claims[i].Sure, claims[i].Behind = want, want
		}
		require.Equal(t, claims, r.claimsAtOnce(buckets, 3, false), "all that was taken at once is left")
	})
}

func TestMarkOfAWindowServesUntilTheWindowMayBeOver(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	for name, row := range map[string]struct {
		timeout time.Duration // Redis may be late by two of them, at most half the window or 100 ms
		period  int64
		until   time.Duration // the age at which it may be over
	}{
		"late by two timeouts":   {50 * time.Millisecond, 1125, ms(1024)},
		"late by half a window":  {time.Minute, 2050, ms(1024)},
		"late by 100 ms":         {time.Minute, 150, 49951220},
		"as short as it is late": {50 * time.Millisecond, 100, 0},
		"of more than a century": {50 * time.Millisecond, math.MaxInt64, century},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, kind := range []bucket.Kind{bucket.FixedWindow, bucket.SlidingWindow} {
					window := newBucket(t, kind, "a", 10, row.period)
					quota, ok := bucket.NewCalendar("b", 10, row.period, time.Now().UnixMilli()+row.period)
					require.True(t, ok)
					buckets := []bucket.Bucket{window, quota, newBucket(t, bucket.Token, "c", 10, 1000)}
					r := newReceipt(row.timeout, time.Now(), []bucket.State{{Mark: 9}, {Mark: 8}, {Mark: 7}})
					hold := func(mark int64) {
						t.Helper()
						require.Equal(t, []int64{mark, 8, 7}, marks(r.claims(buckets, 3, false)))
						require.Equal(t, []int64{9, 8, 7}, marks(r.claims(buckets, 3, true)), "a store of this process knows")
					}
					switch {
					case row.until == century:
						time.Sleep(century)
						hold(9)
						continue
					case row.until > 0:
						hold(9)
						time.Sleep(row.until - 1)
						hold(9)
						time.Sleep(time.Nanosecond)
					}
					hold(bucket.NoMark)
				}
			})
		})
	}
}

// marks returns the marks of claims.
func marks(claims []bucket.Claim) (all []int64) {
	for _, c := range claims {
		all = append(all, c.Mark)
	}
	return all
}

func TestMarkOfMoreThanTheShareHoldsServesOnlyInRedis(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		n    int64
		own  bool
		want int64
	}{
		"fewer tokens":                 {9, true, 9},
		"as many as it holds":          {10, true, 9},
		"more, in this process":        {11, true, bucket.NoMark},
		"as many as it holds in Redis": {10, false, 9},
		"more, in Redis":               {11, false, 9},
	} {
		share := newBucket(t, bucket.FixedWindow, "a", 10, 60_000)
		share.Whole = 20
		token := newBucket(t, bucket.Token, "b", 10, 60_000)
		r := newReceipt(timeout, time.Now(), []bucket.State{{Mark: 9}, {Mark: 8}})
		require.Equal(t, []int64{row.want, 8}, marks(r.claims([]bucket.Bucket{share, token}, row.n, row.own)), name)
	}
}

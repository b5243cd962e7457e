package receipt_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/receipt"
)

const (
	timeout = 50 * time.Millisecond
	key     = 7 // its hash
	here    = "redis"
	// reach is for how many milliseconds before a charge that took none a reset may have been.
	reach = 20 + 2
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

// filled returns the receipt of a charge that found nothing taken, was sent now and is answered at
// once.
func filled(resets *receipt.Resets, buckets ...bucket.Bucket) *receipt.Receipt {
	r := receipt.New(timeout)
	r.Begin(resets, key, "")
	r.Fill(time.Now(), make([]bucket.State, len(buckets)))
	return r
}

func TestClaimSaysWhenTheChargeWasMade(t *testing.T) {
	for name, row := range map[string]struct {
		took, since int64 // milliseconds: the charge, and since it was answered
		age         int64 // the store's clock may be faster by one part in 1024
		made        int64
		resets      int64
	}{
		"at once":             {0, 0, 0, 0, reach},
		"a millisecond ago":   {0, 1, 2, 0, 2 + reach},
		"two of them ago":     {0, 2, 3, 1, 3 + reach},
		"1024 ms ago":         {0, 1024, 1025, 1023, 1025 + reach},
		"with a slow answer":  {1000, 24, 1025, 23, 1025 + 1000 + reach},
		"with the answer now": {1024, 0, 1025, 0, 1025 + 1024 + reach},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				buckets := []bucket.Bucket{newBucket(t, bucket.FixedWindow, "a", 10, 60_000)}
				r, sent := receipt.New(timeout), time.Now()
				r.Begin(new(receipt.Resets), key, "")
				time.Sleep(ms(row.took))
				r.Fill(sent, []bucket.State{{Level: 4, Mark: 9}})
				time.Sleep(ms(row.since))
				want := bucket.Claim{Mark: 9, Sure: 3, Behind: 3, Age: row.age, Made: row.made, Resets: row.resets}
				require.Equal(t, []bucket.Claim{want}, r.Claims(buckets, 3, false, here))
			})
		})
	}
}

func TestClaimIsOfWhatHasNotFlowedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A token of 10 per second weighs 100 units, of which one flows back per millisecond.
		buckets := []bucket.Bucket{
			newBucket(t, bucket.Token, "a", 10, 1000), newBucket(t, bucket.Token, "b", 20, 1000),
			newBucket(t, bucket.SlidingWindow, "c", 10, 60_000),
		}
		r, found := receipt.New(timeout), []bucket.State{{Level: 500}, {Level: 70}, {Level: 4, Mark: 9}}
		r.Fill(time.Now(), found)
		clear(found)
		time.Sleep(ms(250))
		claims := r.Claims(buckets, 3, false, here)
		for i, want := range []struct{ sure, behind, mark int64 }{{49, 549, 0}, {0, 0, 0}, {3, 3, 9}} {
			require.Equal(t, want.sure, claims[i].Sure, i)
			require.Equal(t, want.behind, claims[i].Behind, i)
			require.Equal(t, want.mark, claims[i].Mark, i)
		}
		for i, want := range []int64{300, 150, 3} {
			claims[i].Sure, claims[i].Behind = want, want
		}
		require.Equal(t, claims, r.ClaimsAtOnce(buckets, 3, false, here), "all that was taken at once is left")
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
					r := receipt.New(row.timeout)
					r.Fill(time.Now(), []bucket.State{{Mark: 9}, {Mark: 8}, {Mark: 7}})
					hold := func(mark int64) {
						t.Helper()
						require.Equal(t, []int64{mark, 8, 7}, marks(r.Claims(buckets, 3, false, here)))
						require.Equal(t, []int64{9, 8, 7}, marks(r.Claims(buckets, 3, true, "")), "a store of this process knows")
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
		r := receipt.New(timeout)
		r.Fill(time.Now(), []bucket.State{{Mark: 9}, {Mark: 8}})
		require.Equal(t, []int64{row.want, 8}, marks(r.Claims([]bucket.Bucket{share, token}, row.n, row.own, here)), name)
	}
}

func TestResetsBeforeAChargeAreKnown(t *testing.T) {
	type reset struct {
		began, ended time.Duration // before the charge
		where        string
		hash         uint64
		levels       [2]int64 // found of a and b
	}
	in := func(began, ended time.Duration) reset { return reset{began, ended, here, key, [2]int64{1, 1}} }
	other := func(began, ended time.Duration) reset { return reset{began, ended, "local", key, [2]int64{1, 1}} }
	for name, row := range map[string]struct {
		resets []reset // the earliest first
		known  [2]int64
		since  int64 // in how many milliseconds before the charge a and b may have been reset
	}{
		"none":                        {nil, [2]int64{}, reach},
		"one":                         {[]reset{in(ms(10), ms(5))}, [2]int64{1, 1}, reach},
		"one that ended now":          {[]reset{in(ms(3), 0)}, [2]int64{1, 1}, reach},
		"one that began before":       {[]reset{in(ms(30), ms(5))}, [2]int64{1, 1}, 30 + 2},
		"one that may seem later":     {[]reset{in(ms(30), ms(24))}, [2]int64{1, 1}, 30 + 2},
		"one that cannot seem so":     {[]reset{in(ms(30), ms(24)+1)}, [2]int64{}, reach},
		"two":                         {[]reset{in(ms(10), ms(10)), in(ms(5), ms(5))}, [2]int64{2, 2}, reach},
		"one after another":           {[]reset{in(ms(50), ms(44)), in(ms(40), ms(10))}, [2]int64{2, 2}, 50 + 2},
		"one long before another":     {[]reset{in(ms(50), ms(44)+1), in(ms(40), ms(10))}, [2]int64{1, 1}, 40 + 2},
		"of one of the buckets":       {[]reset{{ms(9), ms(5), here, key, [2]int64{1, 0}}}, [2]int64{1, 0}, reach},
		"of the other one":            {[]reset{{ms(9), ms(5), here, key, [2]int64{0, 900}}}, [2]int64{0, 1}, reach},
		"of full buckets":             {[]reset{{ms(9), ms(5), here, key, [2]int64{0, 0}}}, [2]int64{}, reach},
		"of another store":            {[]reset{other(ms(9), ms(5))}, [2]int64{}, reach},
		"of a key of another stripe":  {[]reset{{ms(9), ms(5), here, key + 1, [2]int64{1, 1}}}, [2]int64{}, reach},
		"of a key of the same stripe": {[]reset{{ms(9), ms(5), here, key + 1024, [2]int64{1, 1}}}, [2]int64{1, 1}, reach},
		"of another store before it":  {[]reset{other(ms(30), ms(9)), in(ms(9), ms(5))}, [2]int64{1, 1}, reach},
		"of another store after it":   {[]reset{in(ms(9), ms(5)), other(ms(5), ms(3))}, [2]int64{1, 1}, reach},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ban, buckets := bucket.NewBan(100, 1000), []bucket.Bucket{
					newBucket(t, bucket.FixedWindow, "a", 10, 60_000), newBucket(t, bucket.Token, "b", 10, 1000),
				}
				charge, resets := time.Now().Add(time.Minute), new(receipt.Resets)
				for _, one := range row.resets {
					time.Sleep(time.Until(charge.Add(-one.ended)))
					found := []bucket.State{{Level: one.levels[0]}, {Level: one.levels[1]}, {Level: 5}}
					resets.Add(one.hash, charge.Add(-one.began), one.where, append(buckets[:2:2], ban), found)
				}
				time.Sleep(time.Until(charge))
				claims := filled(resets, buckets...).Claims(buckets, 1, false, here)
				for i := range buckets {
					require.Equal(t, row.known[i], claims[i].Known, i)
					require.Equal(t, row.since, claims[i].Resets, i)
				}
			})
		})
	}
}

func TestResetOfABanIsNoneOfALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ban, limit, resets := bucket.NewBan(100, 1000), newBucket(t, bucket.Token, "ban", 10, 1000), new(receipt.Resets)
		resets.Add(key, time.Now(), here, []bucket.Bucket{ban}, []bucket.State{{Level: 5}})
		require.Zero(t, filled(resets, limit).Claims([]bucket.Bucket{limit}, 1, false, here)[0].Known)
	})
}

func TestResetsAfterAChargeBeganAreNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		buckets := []bucket.Bucket{newBucket(t, bucket.Token, "a", 10, 1000)}
		taken, resets := []bucket.State{{Level: 1}}, new(receipt.Resets)
		resets.Add(key, time.Now(), here, buckets, taken)
		r := receipt.New(timeout)
		r.Begin(resets, key, "")
		resets.Add(key, time.Now(), here, buckets, taken)
		r.Fill(time.Now(), taken)
		resets.Add(key, time.Now(), here, buckets, taken)
		require.EqualValues(t, 1, r.Claims(buckets, 1, false, here)[0].Known)
	})
}

func TestLatest64ResetsOfAStripeAreRemembered(t *testing.T) {
	for name, row := range map[string]struct{ resets, known int64 }{
		"fewer": {63, 63}, "as many": {64, 64}, "one more": {65, 64}, "two more": {66, 64}, "many": {300, 64},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				buckets := []bucket.Bucket{newBucket(t, bucket.Token, "a", 10, 1000)}
				resets := new(receipt.Resets)
				for range row.resets {
					time.Sleep(ms(1))
					resets.Add(key, time.Now(), here, buckets, []bucket.State{{Level: 1}})
				}
				claim := filled(resets, buckets...).Claims(buckets, 1, false, here)[0]
				require.Equal(t, row.known, claim.Known)
				require.Equal(t, row.known-1+2, claim.Resets, "since the first of these")
			})
		})
	}
}

func TestNoReceiptKeepsNothing(t *testing.T) {
	t.Parallel()
	var r *receipt.Receipt
	require.NotPanics(t, func() {
		r.Begin(new(receipt.Resets), key, "")
		r.Fill(time.Now(), []bucket.State{{}})
	})
}

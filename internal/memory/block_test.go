package memory

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

var allKinds = map[string]bucket.Kind{"token": bucket.Token, "fixed": bucket.FixedWindow,
	"sliding": bucket.SlidingWindow}

// onEachKind runs a test in a bubble on a bucket of 10 a second of each kind, some time after the
// store's start.
func onEachKind(t *testing.T, test func(t *testing.T, b bucket.Bucket, do func(op bucket.Op) bucket.State)) {
	for name, kind := range allKinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := clientsOf(New(1000))
				time.Sleep(12_345 * time.Millisecond)
				b := newBucket(t, kind, 10, time.Second)
				test(t, b, func(op bucket.Op) bucket.State { return c.do(0, b, op) })
			})
		})
	}
}

func take(n int64) bucket.Op { return bucket.Op{Verb: bucket.Take, Charges: 1, N: n} }

// TestABlockStays as long as it lasts, whatever is charged or given back meanwhile.
func TestABlockStays(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]bucket.Op{
		"nothing":          bucket.Peek(1),
		"a charge":         {Verb: bucket.Charge, N: 3},
		"a give":           {Verb: bucket.Give, N: 3},
		"a give of all":    {Verb: bucket.Give, N: bucket.MaxUnits},
		"a return":         {Verb: bucket.Return, N: 2, Claims: []bucket.Claim{{Mark: bucket.NoMark}}},
		"a shorter block":  {Verb: bucket.Block, N: 700},
		"a block as long":  {Verb: bucket.Block, N: 4000},
		"a take in vain":   take(1),
		"a peek at others": bucket.Peek(5),
	} {
		t.Run(name, func(t *testing.T) {
			onEachKind(t, func(t *testing.T, b bucket.Bucket, do func(bucket.Op) bucket.State) {
				do(take(4))
				do(bucket.Op{Verb: bucket.Block, N: 5000})
				time.Sleep(time.Second)
				do(op)
				for range 4 {
					found := do(take(1))
					require.Zero(t, b.Fit(found.Level, 1, 1))
					require.Positive(t, b.RetryAfter(found, 1))
					time.Sleep(999 * time.Millisecond)
				}
				found := do(bucket.Peek(1))
				require.EqualValues(t, 4, b.RetryAfter(found, 1))
				require.GreaterOrEqual(t, b.MoreAfter(found), int64(4))
				time.Sleep(3 * time.Millisecond)
				require.Zero(t, b.Fit(do(take(1)).Level, 1, 1))
				time.Sleep(time.Millisecond)
				require.EqualValues(t, 1, b.Fit(do(take(1)).Level, 1, 1))
			})
		})
	}
}

func TestTheZeroOpLooks(t *testing.T) {
	t.Parallel()
	onEachKind(t, func(t *testing.T, b bucket.Bucket, do func(bucket.Op) bucket.State) {
		do(take(4))
		require.Equal(t, do(bucket.Peek(1)), do(bucket.Op{}))
	})
}

// TestChargeWithoutABucket makes one, and goes into debt up to a burst. Further charges change
// nothing.
func TestChargeWithoutABucket(t *testing.T) {
	t.Parallel()
	onEachKind(t, func(t *testing.T, b bucket.Bucket, do func(bucket.Op) bucket.State) {
		level := func() int64 { return do(bucket.Peek(1)).Level / b.Cost }
		do(bucket.Op{Verb: bucket.Charge, N: 1})
		do(bucket.Op{Verb: bucket.Charge, N: 2})
		require.EqualValues(t, 3, level())
		do(bucket.Op{Verb: bucket.Charge, N: 14})
		require.EqualValues(t, 17, level())
		do(bucket.Op{Verb: bucket.Charge, N: 9})
		require.EqualValues(t, 20, level())
		do(bucket.Op{Verb: bucket.Charge, N: 1})
		require.EqualValues(t, 20, level())
		reset := b.ResetAfter(do(bucket.Peek(1)))
		if b.Kind == bucket.Token {
			require.EqualValues(t, 2000, reset)
		} else {
			require.EqualValues(t, 1000, reset)
		}
		time.Sleep(time.Duration(reset) * time.Millisecond)
		require.Zero(t, level())
	})
}

// TestGivingBackEndsAtTheBlock gives back what was charged on top of a block, or before it, and no
// more.
func TestGivingBackEndsAtTheBlock(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{false, true} {
		onEachKind(t, func(t *testing.T, b bucket.Bucket, do func(bucket.Op) bucket.State) {
			do(bucket.Op{Verb: bucket.Give, N: 1}) // from nothing
			ops := []bucket.Op{{Verb: bucket.Block, N: 100}, {Verb: bucket.Block, N: 250}, {Verb: bucket.Block, N: 200},
				{Verb: bucket.Charge, N: 15}}
			if before {
				slices.Reverse(ops)
			}
			for _, op := range ops {
				do(op)
			}
			do(bucket.Op{Verb: bucket.Give, N: 3})
			do(bucket.Op{Verb: bucket.Give, N: 30})
			if b.Kind == bucket.Token {
				require.Equal(t, b.BlockLevel(250), do(bucket.Peek(1)).Level)
			}
			require.EqualValues(t, 250, b.RetryAfter(do(bucket.Peek(1)), 1))
			time.Sleep(250 * time.Millisecond)
			do(bucket.Op{Verb: bucket.Give, N: 30})
			require.Zero(t, do(bucket.Peek(1)).Level)
			do(take(4))
			do(bucket.Op{Verb: bucket.Give, N: 3})
			require.Equal(t, b.Cost, do(bucket.Peek(1)).Level)
		})
	}
}

// TestTheLastUnitIsGivenBack, and then the entry is gone.
func TestTheLastUnitIsGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, b := clientsOf(New(MaxBuckets)), newBucket(t, bucket.Token, 10, time.Second)
		c.take(0, b)
		time.Sleep(99 * time.Millisecond)
		require.EqualValues(t, 1, c.do(0, b, bucket.Peek(1)).Level)
		c.do(0, b, bucket.Op{Verb: bucket.Give, N: 1})
		require.Zero(t, c.do(0, b, bucket.Peek(1)).Level)
		require.Zero(t, c.store.Len())

		daily := newBucket(t, bucket.Token, 1, 24*time.Hour)
		for _, n := range []int64{bucket.MaxUnits, 1 << 62} {
			c.take(0, daily)
			c.do(0, daily, bucket.Op{Verb: bucket.Give, N: n})
			require.Zero(t, c.do(0, daily, bucket.Peek(1)).Level)
		}
	})
}

// TestTheRestOfAnotherLimit is not counted: the rounding rest of 7 per second may exceed the drain
// of 3 per second.
func TestTheRestOfAnotherLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, seven, three := clientsOf(New(MaxBuckets)), newBucket(t, bucket.Token, 7, time.Second),
			newBucket(t, bucket.Token, 3, time.Second)
		for i, n := range []int64{1, 2, 3, 5} { // the rest is n units
			c.do(i, seven, take(n))
			require.Equal(t, 1000*n, c.do(i, seven, bucket.Peek(1)).Level)
			want := bucket.CeilDiv(1000*n, 7) * 3
			if n < 3 {
				want -= n
			}
			require.Equal(t, want, c.do(i, three, bucket.Peek(1)).Level)
		}
		time.Sleep(143 * time.Millisecond) // a token is back a part of a millisecond earlier
		require.Zero(t, c.do(0, seven, bucket.Peek(1)).Level)
	})
}

// TestALevelThatCannotBeCounted under a larger limit is left alone: the smaller limit can still
// count it.
func TestALevelThatCannotBeCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, small, large := clientsOf(New(MaxBuckets)), newBucket(t, bucket.Token, 1, time.Second),
			newBucket(t, bucket.Token, 999, time.Second)
		c.do(0, small, bucket.Op{Verb: bucket.Block, N: 1 << 50})
		require.EqualValues(t, int64(bucket.MaxUnits), c.do(0, large, bucket.Peek(1)).Level)
		c.do(0, large, bucket.Op{Verb: bucket.Give, N: 1})
		found := c.do(0, small, bucket.Op{Verb: bucket.Give, N: 1}) // not a Take, which finds a block by its end
		require.Equal(t, small.BlockLevel(1<<50), found.Level)
	})
}

// TestAChargeWithNoRoomForDebt under a limit that cannot count such a level leaves it alone:
// another limit can.
func TestAChargeWithNoRoomForDebt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const day = 86_400_000
		slow, ok := bucket.New(bucket.Token, "d", 1, 1_000_000, day)
		require.True(t, ok)
		fast, ok := bucket.New(bucket.Token, "d", 1_000_003, 10, day)
		require.True(t, ok)
		c := clientsOf(New(MaxBuckets))
		c.do(0, slow, take(1_000_000))
		c.do(0, fast, bucket.Op{Verb: bucket.Charge, N: 1})
		require.EqualValues(t, int64(1_000_000*day), c.do(0, slow, bucket.Peek(1)).Level)
	})
}

// TestMoreThanAShareHolds is taken when the share is full, and counts for longer in proportion.
func TestMoreThanAShareHolds(t *testing.T) {
	t.Parallel()
	for name, kind := range allKinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, whole := clientsOf(New(MaxBuckets)), newBucket(t, kind, 100, time.Second)
				b := whole.Share(10)
				require.EqualValues(t, 10, b.Burst)
				found := c.do(0, b, take(35))
				require.EqualValues(t, 1, b.Fit(found.Level, 1, 35))
				found = c.do(0, b, bucket.Peek(1))
				require.Zero(t, b.Fit(found.Level, 1, 1))
				wait := b.RetryAfter(found, 1)
				want := map[bucket.Kind]int64{bucket.Token: 2600, bucket.FixedWindow: 4000,
					bucket.SlidingWindow: 4000}[kind]
				require.Equal(t, want, wait)
				time.Sleep(time.Duration(wait-1) * time.Millisecond)
				_, taken := c.take(0, b)
				require.False(t, taken)
				time.Sleep(time.Millisecond)
				_, taken = c.take(0, b)
				require.True(t, taken)
			})
		})
	}
}

// TestShareOfACalendarPeriod holds no more than its part: the next period would not repay the rest.
func TestShareOfACalendarPeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ends := time.Now().Add(time.Hour)
		whole, ok := bucket.NewCalendar("day", 100, (24 * time.Hour).Milliseconds(), ends.UnixMilli())
		require.True(t, ok)
		c, b := clientsOf(New(MaxBuckets)), whole.Share(10)
		require.Zero(t, b.Fit(c.do(0, b, take(11)).Level, 1, 11))
		require.EqualValues(t, 1, b.Fit(c.do(0, b, take(10)).Level, 1, 10))
		found := c.do(0, b, bucket.Peek(1))
		require.EqualValues(t, time.Hour.Milliseconds(), b.RetryAfter(found, 1))
		time.Sleep(time.Hour - time.Millisecond)
		require.Zero(t, b.Fit(c.do(0, b, take(1)).Level, 1, 1))
	})
}

// TestReturnToTheWindowThatWasCharged, and to no other.
func TestReturnToTheWindowThatWasCharged(t *testing.T) {
	t.Parallel()
	onEachKind(t, func(t *testing.T, b bucket.Bucket, do func(bucket.Op) bucket.State) {
		if b.Kind == bucket.Token {
			return
		}
		do(take(2))
		charged := do(take(3))
		back := bucket.Op{Verb: bucket.Return, N: 2, Claims: []bucket.Claim{{Mark: charged.Mark}}}
		do(back)
		require.EqualValues(t, 3, do(bucket.Peek(1)).Level)
		wrong := back
		wrong.Claims = []bucket.Claim{{Mark: charged.Mark + 1}}
		do(wrong)
		require.EqualValues(t, 3, do(bucket.Peek(1)).Level)
		time.Sleep(time.Second)
		do(take(4))
		do(back)
		require.EqualValues(t, 4, do(bucket.Peek(1)).Level)
	})
}

// banned is a client of two tokens a second and of one slot, with a ban of 10 s at first and 50 s
// at most.
type banned struct {
	*clients
	buckets []bucket.Bucket
	inUse   int64 // slots
}

func newBanned(t *testing.T) *banned {
	b := &banned{clients: clientsOf(New(1000))}
	b.buckets = []bucket.Bucket{newBucket(t, bucket.Token, 2, time.Second), bucket.NewBan(10_000, 50_000),
		bucket.NewSlots(1)}
	time.Sleep(12_345 * time.Millisecond)
	return b
}

// ask returns the state of the ban.
func (b *banned) ask(op bucket.Op) bucket.State {
	states := []bucket.State{{}, {Level: 7, Wait: 7}, {Level: b.inUse}}
	b.store.Do(b.key(0), b.buckets, op, states)
	return states[1]
}

func TestWhichDenialsBan(t *testing.T) {
	t.Parallel()
	denial := func(bans bucket.Bans) bucket.Op { return bucket.Op{Verb: bucket.Take, Charges: 1, N: 3, Bans: bans} }
	for name, row := range map[string]struct {
		op    bucket.Op
		inUse int64
		bans  bool
	}{
		"a grant":                        {bucket.Op{Verb: bucket.Take, Charges: 1, N: 1, Bans: bucket.AllBans}, 0, false},
		"a look":                         {bucket.Op{Verb: bucket.Take, N: 3, Bans: bucket.AllBans}, 0, false},
		"a denial":                       {denial(bucket.AllBans), 0, true},
		"without a ban":                  {denial(bucket.NoBans), 0, false},
		"by a limit":                     {denial(bucket.LimitBans), 0, true},
		"by a limit, and without a slot": {denial(bucket.LimitBans), 1, false},
		"without a slot":                 {bucket.Op{Verb: bucket.Take, Charges: 1, N: 1, Bans: bucket.LimitBans}, 1, false},
		"without a slot, where that bans": {bucket.Op{Verb: bucket.Take, Charges: 1, N: 1, Bans: bucket.AllBans}, 1,
			true},
		"a part, for want of a slot": {bucket.Op{Verb: bucket.Take, Charges: 2, N: 1, Bans: bucket.LimitBans},
			0, false},
		"a part, where that bans": {bucket.Op{Verb: bucket.Take, Charges: 2, N: 1, Bans: bucket.AllBans}, 0,
			true},
		"a charge": {bucket.Op{Verb: bucket.Charge, Charges: 1, N: 3, Bans: bucket.AllBans}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBanned(t)
				b.inUse = row.inUse
				var want bucket.State
				if row.bans {
					want.Wait = 10_000
				}
				require.Equal(t, want, b.ask(row.op))
				want.Level = want.Wait
				require.Equal(t, want, b.ask(bucket.Peek(1)))
				time.Sleep(10_001 * time.Millisecond)
				require.Equal(t, bucket.State{}, b.ask(bucket.Peek(1)), "it has ended")
			})
		})
	}
}

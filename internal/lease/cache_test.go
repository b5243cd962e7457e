package lease

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// TestTake counts down the usable tokens, and sets the states as far as this process knows them.
func TestTake(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.lend(105)
		require.EqualValues(t, 100, f.leased(), "what may be taken ahead at once")
		states := make([]bucket.State, 1)
		left, ok := f.cache.takeAll(f.s, 2, false, states)
		require.True(t, ok)
		require.EqualValues(t, 98, left)
		require.EqualValues(t, 101, states[0].Level)
		time.Sleep(10 * ms)
		left, ok = f.cache.takeAll(f.s, 1, false, states)
		require.True(t, ok)
		require.EqualValues(t, 97, left)
		require.EqualValues(t, 91, states[0].Level)
		_, ok = f.cache.takeAll(f.s, 98, false, states)
		require.False(t, ok)
		require.Equal(t, Stats{1, 2}, f.cache.Stats())
		time.Sleep(90 * ms)
		require.False(t, f.take(1))
		require.Equal(t, Stats{0, 2}, f.cache.Stats())

		f.lend(5)
		other := f.s
		other.Buckets = []bucket.Bucket{newBucket(t, bucket.Token, 999, 1000, 1000)}
		_, ok = f.cache.takeAll(other, 1, false, states)
		require.False(t, ok, "of other limits")
		other = f.s
		other.Key = []byte("another of the same hash")
		_, ok = f.cache.takeAll(other, 1, false, states)
		require.False(t, ok)
		require.True(t, f.take(1))
	})
}

// TestWhatIsAskedForIsCountedOnce, also if it is denied, and not if a caller tries again.
func TestWhatIsAskedForIsCountedOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		for want, again := range []bool{true, false, true, false} {
			f.cache.takeAll(f.s, 1, again, make([]bucket.State, 1))
			require.EqualValues(t, (want+1)/2, f.entry().usage.perLife(f.cache.now(), f.life))
		}
	})
}

// TestEnd ends the lease while a change is in flight, and for good.
func TestEnd(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.lend(5)
		done := f.cache.End(f.s.Hash)
		require.False(t, f.take(1))
		require.Zero(t, f.cache.Stats().Keys)
		time.Sleep(ms)
		second := f.cache.End(f.s.Hash)
		done(false)
		f.lend(5)
		require.False(t, f.take(1), "another change is in flight")
		second(false)
		require.False(t, f.take(1), "sent before the change was over")
		time.Sleep(time.Nanosecond)
		f.lend(5)
		require.True(t, f.take(1))
		f.cache.End(f.s.Hash + 1)
		require.True(t, f.take(1), "a change of another stripe")
		f.cache.End(f.s.Hash)
		require.False(t, f.take(1), "one more change")
	})
}

// TestAFailedChange may still be made for a second. A change in between does not shorten that.
func TestAFailedChange(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.cache.End(f.s.Hash)(true)
		time.Sleep(failedLife / 2)
		f.cache.End(f.s.Hash)(false)
		time.Sleep(failedLife / 2)
		f.lend(5)
		require.False(t, f.take(1))
		time.Sleep(time.Nanosecond)
		f.lend(5)
		require.True(t, f.take(1))
	})
}

// TestAnEndOutlivesTheEntry of its key.
func TestAnEndOutlivesTheEntry(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		done := f.cache.End(f.s.Hash)
		f.cache.Drain()
		f.cache.add(&f.s)
		f.lend(5)
		require.False(t, f.take(1))
		done(false)
		require.False(t, f.take(1))
	})
}

// TestLose ends all leases, and those of calls sent before. Their tokens are not lost.
func TestLose(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.lend(5)
		f.want(9)
		trip := f.begin()
		f.cache.Lose()
		require.False(t, f.take(1))
		f.end(trip)
		require.False(t, f.take(1))
		require.EqualValues(t, 5, f.returns()[0].Tokens)
		all := f.cache.Drain()
		require.EqualValues(t, 4, all[0].Tokens)
	})
}

// TestWhatALeaseLeavesIsGivenBack half a life after its end, once.
func TestWhatALeaseLeavesIsGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.lend(5)
		require.True(t, f.take(2))
		time.Sleep(f.life - 1)
		synctest.Wait()
		require.Empty(t, f.returns())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.EqualValues(t, 3, f.given())
		require.Equal(t, f.s.Key, f.returns()[0].Key)
		require.Equal(t, f.s.Hash, f.returns()[0].Hash)
		time.Sleep(time.Hour)
		require.Len(t, f.returns(), 1)
		require.Empty(t, f.cache.Drain())
	})
}

// TestNothingIsGivenBack if a lease leaves nothing.
func TestNothingIsGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.lend(5)
		require.True(t, f.take(5))
		time.Sleep(time.Hour)
		require.Empty(t, f.returns())
	})
}

// TestTheNextCallKeepsWhatALeaseLeaves, if it has not ended. Then its time begins anew.
func TestTheNextCallKeepsWhatALeaseLeaves(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.lend(5)
		time.Sleep(f.life - 1)
		f.want(5)
		f.end(f.begin())
		require.EqualValues(t, 5, f.leased())
		time.Sleep(f.life - 1)
		synctest.Wait()
		require.Empty(t, f.returns())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.EqualValues(t, 5, f.given())
	})
}

// TestATimerThatIsLate leaves a lease that has not ended.
func TestATimerThatIsLate(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.lend(5)
		require.True(t, f.take(1))
		time.Sleep(f.life - 1)
		require.Empty(t, f.cache.reclaim(f.entry(), true))
		f.entry().ending.Stop()
		time.Sleep(time.Nanosecond)
		all := f.cache.reclaim(f.entry(), true)
		require.Len(t, all, 1)
		require.EqualValues(t, 4, all[0].Tokens)
	})
}

// TestWhatACallIsAboutToKeep is given back if the call takes too long, and not kept then.
func TestWhatACallIsAboutToKeep(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.lend(5)
		f.want(5)
		trip, sent := f.begin(), time.Now()
		require.EqualValues(t, 5, trip.Op().Held)
		time.Sleep(2 * f.life)
		synctest.Wait()
		require.EqualValues(t, 5, f.given())
		trip.End(f.s, f.decide(trip), sent, time.Now())
		require.Zero(t, f.entry().lease.Load().left.Load())
		require.EqualValues(t, 5, f.given())
	})
}

// TestDrainReturnsAllTokens, once, also those of a lease that has ended.
func TestDrainReturnsAllTokens(t *testing.T) {
	for _, ended := range []bool{false, true} {
		inBubbleRun(t, ended, func(t *testing.T) {
			f := newFixture(t)
			start := time.Now()
			f.lend(9)
			require.True(t, f.take(2))
			if ended {
				time.Sleep(f.life - 1)
			}
			all := f.cache.Drain()
			require.Len(t, all, 1)
			require.Equal(t, Subject{f.s.Key, f.s.Hash, f.s.Buckets, nil}, all[0].Subject)
			require.EqualValues(t, 7, all[0].Tokens)
			claim := f.s.Buckets[0].NewClaim(10-7, 7, int64(time.Since(start)+ms), int64(ms)) // 1 and 9 were taken
			claim.Made = max(0, time.Since(start).Milliseconds()-1)
			claim.Mark = 500 - time.Since(start).Milliseconds()
			require.Equal(t, bucket.Op{
				Verb: bucket.Return, N: 7, Claims: []bucket.Claim{claim}, Records: bucket.WithRecords,
			}, all[0].Op(ms))
			require.False(t, f.take(1))
			require.Empty(t, f.cache.Drain())
			require.Zero(t, f.cache.Stats().Keys)
			time.Sleep(time.Hour)
			require.Empty(t, f.returns())
		})
	}
}

// TestWhatIsLeftOfAWindow is given back to this window alone: its mark says how long it goes on, at
// most. A window that begins later goes on for longer.
func TestWhatIsLeftOfAWindow(t *testing.T) {
	for age, want := range map[time.Duration][]int64{
		0: {500}, ms: {499}, 400*ms - 1: {101}, 498 * ms: {2}, 499 * ms: nil, time.Hour: nil,
	} {
		inBubbleRun(t, age, func(t *testing.T) {
			f := newWindow(t)
			f.life = time.Hour
			f.lend(4)
			time.Sleep(age)
			all := f.cache.Drain()
			if want == nil {
				require.Empty(t, all)
				return
			}
			require.EqualValues(t, 4, all[0].Tokens)
			require.Equal(t, want, all[0].marks)
			require.Equal(t, want[0], all[0].Op(ms).Claims[0].Mark)
		})
	}
}

// TestAMarkLastsAsLongAsAWindow may by a clock of Redis that is slower by a thousandth.
func TestAMarkLastsAsLongAsAWindow(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newWindow(t)
		l := newLease(time.Hour, time.Hour, 4)
		l.after, l.sent, l.received = []bucket.State{{Mark: 100_000, Reset: 1 << 40}}, time.Now(), time.Now()
		time.Sleep(90_000 * ms)
		require.Equal(t, []int64{10_000 + 90_000/1024}, f.entry().unused(1, l)[0].marks)
		time.Sleep(time.Hour)
		require.Equal(t, []int64{0}, f.entry().unused(1, l)[0].marks)
		l.after[0].Mark = bucket.NoMark
		require.Equal(t, []int64{bucket.NoMark}, f.entry().unused(1, l)[0].marks)
	})
}

// TestAnEmptyCache has no leases.
func TestAnEmptyCache(t *testing.T) {
	t.Parallel()
	c := New(nil)
	_, ok := c.takeAll(subject(t, 1), 1, false, make([]bucket.State, 1))
	require.False(t, ok)
	require.Zero(t, c.Stats())
	require.Empty(t, c.Drain())
}

// TestNoTokenIsUsedTwice by many goroutines, by calls that hold tokens for longer, and by Drain.
func TestNoTokenIsUsedTwice(t *testing.T) {
	t.Parallel()
	for range 20 {
		const tokens = 1000
		var used atomic.Int64
		var lock sync.Mutex
		f := unwatched(t, 1)
		f.cache = New(func(u Unused) { used.Add(u.Tokens) })
		f.life = time.Hour
		*f.s.Ahead = bucket.NewAhead(&f.s.Buckets[0], 1<<40)
		f.cache.add(&f.s)
		f.lend(tokens)
		granted := f.leased()
		var all sync.WaitGroup
		for i := range int64(8) {
			all.Go(func() {
				for range tokens {
					if f.take(1 + i%2) {
						used.Add(1 + i%2)
					}
				}
			})
		}
		all.Go(func() {
			for range 100 {
				lock.Lock()
				if trip := f.begin(); trip.TakesAhead() {
					trip.op.Ahead = 0
					f.end(trip)
				}
				lock.Unlock()
			}
		})
		all.Wait()
		for _, u := range f.cache.Drain() {
			used.Add(u.Tokens)
		}
		require.Equal(t, granted, used.Load())
	}
}

// TestWhatHasFlowedBackIsNotClaimed: 1 token and 20 ahead were taken on top of 100, and one flows
// back per millisecond. Redis' clock may be a little faster.
func TestWhatHasFlowedBackIsNotClaimed(t *testing.T) {
	for age, want := range map[time.Duration]bucket.Claim{
		0:        {Sure: 9, Behind: 110, Age: 11},
		15 * ms:  {Sure: 0, Behind: 95, Age: 26, Made: 14},
		100 * ms: {Sure: 0, Behind: 10, Age: 111, Made: 99},
	} {
		inBubbleRun(t, age, func(t *testing.T) {
			f := newFixture(t)
			f.want(20)
			f.level = 100
			f.end(f.begin())
			u := f.cache.Drain()[0]
			time.Sleep(age)
			claim := u.Op(10 * ms).Claims[0]
			want.Resets, want.Mark = want.Age+1, claim.Mark
			require.Equal(t, want, claim)
		})
	}
}

// TestAWindowThatHasEnded gets nothing back, but a longer one of the same set does.
func TestAWindowThatHasEnded(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newWindow(t)
		e := f.entry()
		e.buckets = append(e.buckets, newBucket(t, bucket.FixedWindow, 9000, 9000, 60_000))
		l := newLease(time.Hour, time.Hour, 4)
		l.after, l.sent, l.received = []bucket.State{{Mark: 100, Reset: 100}, {Mark: 900, Reset: 900}}, time.Now(), time.Now()
		time.Sleep(200 * ms)
		u := e.unused(4, l)[0]
		require.EqualValues(t, 4, u.Tokens)
		require.Equal(t, []int64{bucket.NoMark, 700}, u.marks)
	})
}

// TestUsageOfAWindow counts what is used, and not what is denied.
func TestUsageOfAWindow(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newWindow(t)
		f.lend(4)
		f.want(0)
		f.cache.takeAll(f.s, 1<<40, false, make([]bucket.State, 1))
		require.Zero(t, f.entry().usage.perLife(f.cache.now(), f.life))
		require.True(t, f.take(3))
		require.EqualValues(t, 3, f.entry().usage.perLife(f.cache.now(), f.life))
	})
}

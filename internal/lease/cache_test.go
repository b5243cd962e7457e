package lease

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clocktrust"
)

// lend charges tokens of an untouched bucket, and leases some on top.
func (f *fixture) lend(tokens, charged int64) {
	f.level = 0
	trip := f.cache.Begin(f.s, f.life, charged, 1)
	trip.ahead = tokens
	f.end(&trip)
}

func newLender(t *testing.T) *fixture {
	f := newFixture(t)
	f.entry().usage.current.Store(0)
	return f
}

// TestTake counts down the usable tokens, and sets the states as far as this process knows them.
func TestTake(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newLender(t)
		sent := time.Now()
		f.lend(5, 100)
		states := make([]bucket.State, 1)
		left, when, ok := f.cache.Take(f.s, 2, states)
		require.True(t, ok)
		require.EqualValues(t, 3, left)
		require.Equal(t, sent, when)
		require.EqualValues(t, 105, states[0].Level)
		time.Sleep(10 * ms)
		left, _, ok = f.cache.Take(f.s, 1, states)
		require.True(t, ok)
		require.EqualValues(t, 2, left)
		require.EqualValues(t, 95, states[0].Level)
		require.Equal(t, Stats{1, 2}, f.cache.Stats())
		time.Sleep(90 * ms)
		require.False(t, f.take(1))
		require.Equal(t, Stats{0, 2}, f.cache.Stats())

		other := f.s
		other.Buckets = []bucket.Bucket{newBucket(t, bucket.Token, 999, 1000, 1000)}
		f.lend(5, 100)
		_, _, ok = f.cache.Take(other, 1, states)
		require.False(t, ok, "of other limits")
		other = subject(t, 1)
		other.Key = []byte("another of the same hash")
		_, _, ok = f.cache.Take(other, 1, states)
		require.False(t, ok)
		require.True(t, f.take(1))
	})
}

// TestASecondLease includes the tokens of the first that are not void.
func TestASecondLease(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newLender(t)
		f.lend(5, 100)
		more := f.begin()
		more.ahead = 7
		f.end(&more)
		require.EqualValues(t, 12, f.leased())
		f.level = 3 // others have given back tokens that were not theirs
		more = f.begin()
		more.ahead = 7
		f.end(&more)
		require.EqualValues(t, 10, f.leased())
		require.True(t, f.take(9))
		time.Sleep(f.life)
		f.lend(7, 100)
		require.EqualValues(t, 7, f.leased(), "the life of what was left is over")
	})
}

// TestOwn is what is left of the process' own charges: others' charges on top and below do not
// count.
func TestOwn(t *testing.T) {
	const drain = 10 * ms // of ten tokens
	for name, row := range map[string]struct {
		before, charged, ahead int64
		pause, late            time.Duration
		want                   int64
	}{
		"at once":                         {0, 1, 20, 0, 0, 20},
		"one of two flowed out":           {0, 1, 20, 1, 0, 20},
		"half of it":                      {0, 1, 20, drain, 0, 10},
		"after a charge before":           {50, 1, 20, drain, 0, 20},
		"that has nearly flowed out":      {5, 1, 20, drain, 0, 15},
		"with a long way":                 {0, 1, 20, 0, drain, 10},
		"with a long way, after a charge": {50, 1, 20, 0, drain, 20},
		"with a longer way":               {0, 1, 20, 0, 50 * ms, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				f := newLender(t)
				time.Sleep(time.Minute) // the usage that made it watched has passed
				if f.level = 500; row.before > 0 {
					trip := f.cache.Begin(f.s, f.life, row.before, 1)
					trip.ahead = 0
					f.end(&trip)
				}
				trip, sent := f.cache.Begin(f.s, f.life, row.charged, 1), time.Now()
				trip.ahead = row.ahead
				found := []bucket.State{{Level: f.level}}
				time.Sleep(row.late)
				trip.End(f.s, trip.Charges(), found, sent, time.Now())
				f.level = 900 // of others
				time.Sleep(row.pause)
				require.Equal(t, row.want, f.leased())
			})
		})
	}
}

// TestALateAnswer comes after the answer to a later call. Its tokens are void as far as its own
// charge has drained, whatever was charged later. A window's tokens are all void, as the window may
// be another one.
func TestALateAnswer(t *testing.T) {
	for name, row := range map[string]struct {
		kind bucket.Kind
		rate int64
		late time.Duration
		want int64
	}{
		"at once":     {bucket.Token, 1000, 0, 20},
		"later":       {bucket.Token, 1000, 10 * ms, 10},
		"later, slow": {bucket.Token, 500, 10 * ms, 15},
		"much later":  {bucket.Token, 1000, 90 * ms, 0},
		"a window":    {bucket.FixedWindow, 1000, 10 * ms, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c, s := New(clocktrust.New(true)), subject(t, 1)
				s.Buckets[0] = newBucket(t, row.kind, row.rate, row.rate, 1000)
				e := c.add(&s)
				first, sent := c.Begin(s, time.Second, 1, 1), time.Now()
				first.ahead = 20
				time.Sleep(time.Nanosecond)
				second, now := c.Begin(s, time.Second, 300, 1), time.Now()
				second.End(s, 300, []bucket.State{{Level: 21, Reset: 500}}, now, now)
				time.Sleep(row.late)
				first.End(s, 21, []bucket.State{{Reset: 500}}, sent, time.Now())
				require.Equal(t, row.want, c.usable(e))
				require.Equal(t, now, e.lease.Load().sent, "it is as of the later call")
			})
		})
	}
}

// TestForget voids the leases while a change is in flight, and the tokens of calls sent before its
// end.
func TestForget(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newLender(t)
		f.lend(5, 100)
		done := f.cache.Forget(f.s.Hash)
		require.False(t, f.take(1))
		require.Zero(t, f.cache.Stats().Keys)
		time.Sleep(ms)
		before := f.begin()
		sent := time.Now()
		time.Sleep(ms)
		second := f.cache.Forget(f.s.Hash)
		done(false)
		require.False(t, f.take(1), "another change is on its way")
		second(false)
		require.False(t, f.take(1), "for good")

		before.ahead = 9 // as if it had begun before
		before.End(f.s, 10, []bucket.State{{Level: 100}}, sent, time.Now())
		require.False(t, f.take(1), "asked for before the change was over")
		time.Sleep(time.Nanosecond)
		require.Positive(t, f.ask(1))
		require.True(t, f.take(1))
		f.used(5)
		require.Positive(t, f.ask(1))
		f.cache.Forget(f.s.Hash)
		require.False(t, f.take(1), "one more change")
	})
}

// TestForgetOutlivesTheEntry of its key.
func TestForgetOutlivesTheEntry(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newLender(t)
		done := f.cache.Forget(f.s.Hash)
		failed := f.begin()
		failed.Fail()
		require.Nil(t, f.entry())
		require.Zero(t, f.ask(2))
		require.NotNil(t, f.entry())
		require.Zero(t, f.ask(1))
		done(false)
		require.Zero(t, f.ask(1), "in the same moment")
		time.Sleep(time.Nanosecond)
		require.Positive(t, f.ask(1))
	})
}

// TestAFailedChange may still be made for a second. A change in between does not shorten that.
func TestAFailedChange(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newLender(t)
		f.cache.Forget(f.s.Hash)(true)
		time.Sleep(failedLife / 2)
		f.cache.Forget(f.s.Hash)(false)
		for range 10 {
			f.used(5)
			require.Zero(t, f.ask(1))
			time.Sleep(failedLife / 20)
		}
		f.cache.changes[f.s.Hash%stripes].repeated.Store(0)
		time.Sleep(time.Nanosecond)
		f.used(5)
		require.Positive(t, f.ask(1))
	})
}

// TestLose voids all leases, and the tokens of calls sent before.
func TestLose(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newLender(t)
		f.lend(5, 100)
		f.cache.Lose()
		require.False(t, f.take(1))
		f.used(5)
		trip := f.begin()
		require.Positive(t, trip.ahead)
		f.cache.Lose()
		f.end(&trip)
		require.False(t, f.take(1))
		require.Positive(t, f.ask(1))
		require.True(t, f.take(1))
		f.cache.Lose()
		require.Empty(t, f.cache.Drain(0))
	})
}

// TestAFailedTrip may have charged without an answer: its key begins anew.
func TestAFailedTrip(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newLender(t)
		f.lend(5, 100)
		trip := f.begin()
		trip.Fail()
		require.False(t, f.take(1))
		require.Nil(t, f.entry())
		require.Zero(t, f.ask(1), "it was visited lately")
		require.Positive(t, f.ask(1))
	})
}

// TestDrainGivesBackToWindows the tokens that are still usable when they arrive, once, with the
// windows' marks.
func TestDrainGivesBackToWindows(t *testing.T) {
	for within, want := range map[time.Duration]int64{0: 4, 27 * ms: 4, 28 * ms: 0, time.Hour: 0} {
		inBubbleRun(t, within, func(t *testing.T) {
			c, s := New(clocktrust.New(true)), subject(t, 1)
			s.Buckets = []bucket.Bucket{newBucket(t, bucket.FixedWindow, 10, 10, 1000),
				newBucket(t, bucket.FixedWindow, 90, 90, 9000)}
			l := c.add(&s).hold(4, bucket.State{Reset: 30, Mark: 7}, bucket.State{Reset: 9000, Mark: 8})
			time.Sleep(ms)
			all := c.Drain(within)
			if want == 0 {
				require.Empty(t, all)
			} else {
				require.Equal(t, []Unused{{s, want, []int64{7, 8}, ms + within}}, all)
			}
			_, _, ok := c.Take(s, 1, make([]bucket.State, 2))
			require.False(t, ok)
			require.Zero(t, l.left.Load())
			require.Empty(t, c.Drain(0))
			require.Zero(t, c.Stats().Keys)
		})
	}
}

// TestDrainGivesBackToTokenBuckets the tokens that are not void when they arrive, once.
func TestDrainGivesBackToTokenBuckets(t *testing.T) {
	for within, want := range map[time.Duration]int64{0: 20, 4 * ms: 16, 19 * ms: 1, time.Minute: 0} {
		inBubbleRun(t, within, func(t *testing.T) {
			f := newLender(t)
			time.Sleep(time.Minute)
			f.lend(20, 1)
			all := f.cache.Drain(within)
			if want == 0 {
				require.Empty(t, all)
			} else {
				require.Len(t, all, 1)
				require.Equal(t, Unused{f.s, want, nil, all[0].Age}, all[0])
			}
			require.Empty(t, f.cache.Drain(0))
			require.Zero(t, f.cache.Stats().Keys)
		})
	}
}

// TestEviction: a key replaces the entry of its set whose last decision is oldest, never one with
// usable tokens.
func TestEviction(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := New(clocktrust.New(true))
		var all []*fixture
		for i := range uint64(ways) {
			f := &fixture{c, subject(t, 1+i*sets), 100 * ms, 0}
			time.Sleep(ms)
			require.NotNil(t, c.add(&f.s))
			all = append(all, f)
		}
		require.Same(t, all[1].entry(), c.add(&all[1].s), "it is there")
		all[0].entry().hold(1, bucket.State{Level: 500})
		other := &fixture{c, subject(t, 1+ways*sets), 100 * ms, 0}
		require.NotNil(t, c.add(&other.s))
		require.NotNil(t, all[0].entry(), "it holds tokens")
		require.Nil(t, all[1].entry(), "the oldest")
		for _, f := range append(all[2:], other) {
			f.entry().hold(5, bucket.State{Level: 500})
		}
		require.Nil(t, c.add(&all[1].s), "all hold tokens")
		require.EqualValues(t, 1, all[0].use())
		require.NotNil(t, c.add(&all[1].s))
		require.Nil(t, all[0].entry())
		time.Sleep(time.Minute) // the others' lives are over
		require.NotNil(t, c.add(&all[0].s))
	})
}

// TestMaxKeys: however many keys there are, no more are watched.
func TestMaxKeys(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := New(clocktrust.New(true))
		s := subject(t, 0)
		for i := range uint64(3 * MaxKeys) {
			s.Hash = i * 0x9E3779B97F4A7C15
			c.add(&s)
		}
		n := 0
		for i := range c.table.Load() {
			if c.table.Load()[i].Load() != nil {
				n++
			}
		}
		require.Greater(t, n, MaxKeys/2)
		require.LessOrEqual(t, n, MaxKeys)
	})
}

// TestNilCache has no leases.
func TestNilCache(t *testing.T) {
	var c *Cache
	_, _, ok := c.Take(subject(t, 1), 1, make([]bucket.State, 1))
	require.False(t, ok)
	c.Forget(1)(true)
	c.Lose()
	require.Empty(t, c.Drain(0))
	require.Zero(t, c.Stats())
	require.Zero(t, New(clocktrust.New(true)).Stats())
	require.Empty(t, New(clocktrust.New(true)).Drain(0))
}

// TestNoTokenIsUsedTwice by many goroutines, and one that drains.
func TestNoTokenIsUsedTwice(t *testing.T) {
	t.Parallel()
	for range 50 {
		const tokens = 1000
		c, s := New(clocktrust.New(true)), subject(t, 1)
		s.Buckets = []bucket.Bucket{newBucket(t, bucket.FixedWindow, 10_000, 10_000, 86_400_000)}
		c.add(&s).hold(tokens, bucket.State{Reset: 86_400_000})
		var used atomic.Int64
		var all sync.WaitGroup
		for i := range int64(8) {
			all.Go(func() {
				for range tokens {
					if _, _, ok := c.Take(s, 1+i%2, make([]bucket.State, 1)); ok {
						used.Add(1 + i%2)
					}
				}
			})
		}
		all.Go(func() {
			for used.Load() < tokens/2 {
			}
			for _, u := range c.Drain(0) {
				used.Add(u.Tokens)
			}
		})
		all.Wait()
		require.EqualValues(t, tokens, used.Load())
	}
}

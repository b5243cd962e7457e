package lease

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clocktrust"
)

// fixture is a process and a key's bucket on a server that answers at once. Nothing flows back.
type fixture struct {
	cache *Cache
	s     Subject
	life  time.Duration
	level int64
}

// newFixture watches a key with a bucket of 1,000 tokens that regains one per millisecond.
func newFixture(t *testing.T) *fixture {
	f := &fixture{New(clocktrust.New(true)), subject(t, 1), 100 * ms, 0}
	time.Sleep(ms)
	f.ask(2)
	require.NotNil(t, f.entry())
	return f
}

func subject(t testing.TB, hash uint64) Subject {
	key := make([]byte, 8)
	for i := range key {
		key[i] = byte(hash >> (8 * i))
	}
	return Subject{key, hash, []bucket.Bucket{newBucket(t, bucket.Token, 1000, 1000, 1000)}}
}

func (f *fixture) entry() *entry { return f.cache.find(&f.s) }

func (f *fixture) begin() Trip { return f.cache.Begin(f.s, f.life, 1, 1) }

// end makes the server decide and answer at once.
func (f *fixture) end(t *Trip) {
	now, found := time.Now(), []bucket.State{{Level: f.level}}
	f.level += f.s.Buckets[0].Fit(f.level, t.Charges(), t.n) * t.n
	t.End(f.s, t.Charges(), found, now, now)
}

// ask makes calls that each go to Redis, and returns the tokens that the last one has taken ahead.
func (f *fixture) ask(calls int) (ahead int64) {
	for range calls {
		t := f.begin()
		f.end(&t)
		ahead = t.ahead
	}
	return ahead
}

func (f *fixture) take(n int64) bool {
	_, _, ok := f.cache.Take(f.s, n, make([]bucket.State, 1))
	return ok
}

// used simulates tokens used now.
func (f *fixture) used(n int64) {
	u := &f.entry().usage
	u.rotate(f.cache.now(), f.life)
	u.add(n)
}

// use uses leased tokens one by one until none is left.
func (f *fixture) use() (n int64) {
	for f.take(1) {
		n++
	}
	return n
}

func (f *fixture) leased() int64 { return f.cache.usable(f.entry()) }

// hold gives an entry a lease of buckets in these states, all charged by the process.
func (e *entry) hold(tokens int64, after ...bucket.State) *lease {
	l := newLease(time.Minute, tokens, after...)
	l.sent, l.received = time.Now(), time.Now()
	e.lease.Store(l)
	return l
}

// TestAKeyIsWatchedFromItsSecondVisit, and has a lease from the next one on.
func TestAKeyIsWatchedFromItsSecondVisit(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := &fixture{New(clocktrust.New(true)), subject(t, 1), 100 * ms, 0}
		time.Sleep(time.Hour)
		require.Zero(t, f.ask(1))
		require.Nil(t, f.entry())
		require.Zero(t, f.ask(1))
		require.NotNil(t, f.entry())
		require.False(t, f.take(1))
		require.EqualValues(t, 1, f.ask(1))
		require.Equal(t, 1, f.cache.Stats().Keys)
		require.True(t, f.take(1))
		require.False(t, f.take(1))
		require.EqualValues(t, 3, f.ask(1))
	})
}

// TestManyKeysAreNotWatched that are visited once each: they would evict those that matter.
func TestManyKeysAreNotWatched(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		for i := range uint64(10_000) {
			other := &fixture{f.cache, subject(t, 2+i<<20), f.life, 0}
			other.ask(1)
			require.Nil(t, other.entry())
		}
		require.NotNil(t, f.entry())
	})
}

// TestAsManyKeysAsVisitorsAreToldApart that are visited in turn.
func TestAsManyKeysAsVisitorsAreToldApart(t *testing.T) {
	t.Parallel()
	c := New(clocktrust.New(true))
	for _, again := range []bool{false, true} {
		for i := range uint64(visitors) {
			require.Equal(t, again, c.visited(1+i<<20), i)
		}
	}
}

// changes makes two changes, one a time after the other.
func (f *fixture) changes(apart time.Duration) {
	f.cache.Forget(f.s.Hash)(false)
	time.Sleep(apart)
	f.cache.Forget(f.s.Hash)(false)
}

// TestChargesAhead is how many tokens a call takes ahead.
func TestChargesAhead(t *testing.T) {
	for name, row := range map[string]struct {
		prepare func(f *fixture)
		want    int64
	}{
		"as many as were used":          {func(f *fixture) { f.used(9) }, 10}, // and one by ask
		"what is leased is enough":      {func(f *fixture) { f.used(9); f.ask(1) }, 1},
		"at most what flows back":       {func(f *fixture) { f.used(500) }, 100},
		"at most half of what is left":  {func(f *fixture) { f.used(90); f.entry().room.Store(41) }, 20},
		"half of nothing":               {func(f *fixture) { f.used(90); f.entry().room.Store(2) }, 0},
		"while another asks":            {func(f *fixture) { f.used(90); f.begin() }, 0},
		"another never ends, after 2 s": {func(f *fixture) { f.begin(); time.Sleep(prefetchTime); f.used(9) }, 9},
		"another has failed": {func(f *fixture) {
			other := f.begin()
			other.Fail()
		}, 0}, // the key is no longer watched
		"while the key is changed": {func(f *fixture) { f.cache.Forget(f.s.Hash) }, 0},
		"at once after a change":   {func(f *fixture) { f.cache.Forget(f.s.Hash)(false) }, 0},
		"after a change": {func(f *fixture) { f.cache.Forget(f.s.Hash)(false); time.Sleep(time.Nanosecond) },
			1},
		"after a failed change": {func(f *fixture) { f.cache.Forget(f.s.Hash)(true); time.Sleep(failedLife) }, 0},
		"after that": {func(f *fixture) {
			f.cache.Forget(f.s.Hash)(true)
			time.Sleep(failedLife +
				1)
			f.used(4)
		}, 4},
		"many changes": {func(f *fixture) { f.changes(quietTime - 1); time.Sleep(quietTime - 1); f.used(4) },
			0},
		"many, and then none": {func(f *fixture) { f.changes(quietTime - 1); time.Sleep(quietTime); f.used(4) }, 4},
		"few changes": {func(f *fixture) { f.changes(quietTime); time.Sleep(time.Nanosecond); f.used(4) },
			4},
		"no trust":               {func(f *fixture) { f.cache.clock = clocktrust.New(false) }, 0},
		"a life of a nanosecond": {func(f *fixture) { f.life = 1 }, 0},
		"one token flows back":   {func(f *fixture) { f.life = ms }, 0},
		"two do":                 {func(f *fixture) { f.life = 2 * ms }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				f := newFixture(t)
				row.prepare(f)
				trip := f.begin()
				require.Equal(t, row.want, trip.ahead)
				require.Equal(t, 1+row.want, trip.Charges())
			})
		})
	}
}

// TestChargesOfSeveralTokens are taken ahead whole.
func TestChargesOfSeveralTokens(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.used(9)
		f.entry().lease.Store(nil)
		trip := f.cache.Begin(f.s, f.life, 1, 4)
		require.EqualValues(t, 2, trip.ahead, "of 4, as 10 were used")
		f.end(&trip)
		require.EqualValues(t, 14, f.entry().usage.current.Load())
		require.EqualValues(t, 8, f.leased())
		require.False(t, f.take(9))
		require.True(t, f.take(3))
		require.EqualValues(t, 5, f.use())
	})
}

// TestHalfOfWhatIsLeft after the caller's charge.
func TestHalfOfWhatIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.used(90)
		f.entry().room.Store(19)
		trip := f.cache.Begin(f.s, f.life, 1, 4)
		require.EqualValues(t, 1, trip.ahead, "of 4, as 7 is half of 15")

		full := newFixture(t)
		full.level = 1000
		require.Zero(t, full.ask(2))
		full.used(90)
		require.Zero(t, full.ask(1), "half of nothing")
	})
}

// TestAnAnswerFromBeforeAChange adds nothing to what was leased after it.
func TestAnAnswerFromBeforeAChange(t *testing.T) {
	for name, change := range map[string]func(c *Cache){"a refund": func(c *Cache) { c.Forget(1)(false) },
		"Redis was lost": (*Cache).Lose} {
		inBubbleRun(t, name, func(t *testing.T) {
			f := newLender(t)
			late, sent := f.begin(), time.Now()
			late.ahead = 9
			time.Sleep(ms)
			change(f.cache)
			time.Sleep(time.Nanosecond)
			f.lend(5, 100)
			late.End(f.s, 10, []bucket.State{{Level: 100}}, sent, time.Now())
			require.EqualValues(t, 5, f.leased())
		})
	}
}

// TestAChargeRenewsALease, and a denial does not.
func TestAChargeRenewsALease(t *testing.T) {
	for _, granted := range []int64{0, 1} {
		inBubbleRun(t, granted, func(t *testing.T) {
			f := newLender(t)
			f.lend(5, 200)
			time.Sleep(60 * ms)
			f.level = 1000 - granted
			trip, before := f.begin(), f.entry().lease.Load()
			trip.ahead = 0
			f.end(&trip)
			time.Sleep(60 * ms)
			require.Equal(t, 5*granted, f.leased())
			require.Equal(t, 5-5*granted, before.left.Load(), "nobody else can take what the new one has")
		})
	}
}

// TestWhatIsLeftIsNoMoreThanWasFound, in whole tokens: others have given back tokens that were not
// theirs.
func TestWhatIsLeftIsNoMoreThanWasFound(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newLender(t)
		f.s.Buckets[0] = newBucket(t, bucket.Token, 500, 500, 1000)
		f.ask(2)
		f.lend(5, 100)
		f.level = 3 // a token and a half
		trip := f.begin()
		trip.ahead = 0
		f.end(&trip)
		require.EqualValues(t, 1, f.leased())
	})
}

// TestAKeyThatIsAskedAboutStays when another is evicted.
func TestAKeyThatIsAskedAboutStays(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := New(clocktrust.New(true))
		var all []*fixture
		for i := range uint64(ways) {
			f := &fixture{c, subject(t, 1+i*sets), 1 * ms, 0}
			time.Sleep(ms)
			require.NotNil(t, c.add(&f.s))
			all = append(all, f)
		}
		time.Sleep(ms)
		all[0].life = 100 * ms
		all[0].ask(1)
		time.Sleep(time.Minute)
		s := subject(t, 1+ways*sets)
		require.NotNil(t, c.add(&s))
		require.NotNil(t, all[0].entry())
		require.Nil(t, all[1].entry())
	})
}

// TestNotWatched is a key that gains nothing, or whose places all hold usable tokens.
func TestNotWatched(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := New(clocktrust.New(true))
		short := &fixture{c, subject(t, 1), 1, 0}
		require.Zero(t, short.ask(3))
		require.Nil(t, short.entry())
		for i := range uint64(ways) {
			s := subject(t, 1+i*sets)
			c.add(&s).hold(5, bucket.State{Level: 500})
		}
		other := &fixture{c, subject(t, 1+ways*sets), 100 * ms, 0}
		require.Zero(t, other.ask(3))
		require.Nil(t, other.entry())
	})
}

// TestAnOvertakenPrefetch does not let a third one begin beside the second.
func TestAnOvertakenPrefetch(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		first := f.begin()
		time.Sleep(prefetchTime)
		f.used(9)
		second := f.begin()
		require.Positive(t, second.ahead)
		first.endPrefetch()
		third := f.begin()
		require.Zero(t, third.ahead)
	})
}

// TestUsageAcrossSpans counts the previous span's tokens as if they had been used evenly.
func TestUsageAcrossSpans(t *testing.T) {
	var u usage
	const life = 100 * ms
	u.rotate(1000*ms, life)
	u.add(80)
	require.EqualValues(t, 80, u.perLife(1000*ms, life))
	require.EqualValues(t, 80, u.perLife(1099*ms, life))
	require.EqualValues(t, 80, u.perLife(1100*ms, life))
	require.EqualValues(t, 60, u.perLife(1125*ms, life))
	u.add(8)
	require.EqualValues(t, 28, u.perLife(1175*ms, life))
	require.EqualValues(t, 8, u.perLife(1200*ms, life))
	require.EqualValues(t, 4, u.perLife(1250*ms, life))
	require.EqualValues(t, 0, u.perLife(1500*ms, life), "long ago")
	u.add(5)
	require.EqualValues(t, 0, u.perLife(1700*ms, life), "a whole span ago")
}

// TestAPartOfWhatWasAskedFor is granted, to the caller first.
func TestAPartOfWhatWasAskedFor(t *testing.T) {
	for granted, want := range map[int64]int64{0: 0, 1: 0, 3: 0, 4: 1, 8: 5, 11: 8} {
		inBubbleRun(t, granted, func(t *testing.T) {
			f := newFixture(t)
			f.used(8)
			trip := f.cache.Begin(f.s, f.life, 3, 1)
			require.EqualValues(t, 9, trip.ahead)
			f.level = 1000 - granted
			f.end(&trip)
			require.EqualValues(t, want, f.leased())
		})
	}
}

// TestNoMoreIsLeasedThanWasAskedFor, though more was to be had in the end.
func TestNoMoreIsLeasedThanWasAskedFor(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.used(8)
		trip := f.begin()
		now := time.Now()
		trip.End(f.s, 4, []bucket.State{{}}, now, now)
		require.EqualValues(t, 3, f.leased())
	})
}

// TestHugeCharges neither overflow nor panic.
func TestHugeCharges(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		for _, n := range []int64{1 << 31, 1 << 53, 1 << 62, math.MaxInt64} {
			trip := f.cache.Begin(f.s, 24*time.Hour, 1, n)
			f.end(&trip)
			require.False(t, f.take(n))
		}
		require.Positive(t, f.ask(1))
	})
}

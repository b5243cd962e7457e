package lease

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// fixture is a process and a key's buckets on a server that answers at once. Nothing flows back.
type fixture struct {
	cache *Cache
	s     Subject
	life  time.Duration
	level int64 // of the limit's bucket
	lent  int64 // of the lease bucket
	mu    sync.Mutex
	backs []Unused // what was given back; mu guards it
}

// newFixture watches a key with a bucket of 1,000 tokens of which one flows back per millisecond. 100
// tokens may be taken ahead at once, and 200 be held.
func newFixture(t testing.TB) *fixture {
	f := unwatched(t, 1)
	time.Sleep(ms)
	require.NotNil(t, f.cache.add(&f.s))
	return f
}

func unwatched(t testing.TB, hash uint64) *fixture {
	f := &fixture{s: subject(t, hash), life: 100 * ms}
	f.cache = New(func(u Unused) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.backs = append(f.backs, u)
	})
	return f
}

// newWindow watches a key with a window of 1,000 tokens.
func newWindow(t testing.TB) *fixture {
	f := unwatched(t, 1)
	f.s.Buckets, f.s.Ahead = []bucket.Bucket{newBucket(t, bucket.FixedWindow, 1000, 1000, 1000)}, nil
	require.NotNil(t, f.cache.add(&f.s))
	f.entry().room.Store(1000)
	return f
}

func subject(t testing.TB, hash uint64) Subject {
	key := make([]byte, 8)
	for i := range key {
		key[i] = byte(hash >> (8 * i))
	}
	b := newBucket(t, bucket.Token, 1000, 1000, 1000)
	ahead := bucket.NewAhead(&b, 100)
	b.Leave(200)
	return Subject{Key: key, Hash: hash, Buckets: []bucket.Bucket{b}, Ahead: &ahead}
}

func (f *fixture) entry() *entry { return f.cache.find(&f.s) }

func (f *fixture) begin() *Trip {
	t := f.cache.Begin(f.s, f.life, 1, 1)
	return &t
}

// decide is the server's (see lease.lua).
func (f *fixture) decide(t *Trip) []bucket.State {
	found := []bucket.State{{Level: f.level, Reset: 500, Mark: 500}}
	ahead, held := t.op.Ahead, t.op.Held
	if t.TakesAhead() && f.s.Ahead != nil {
		found = append(found, bucket.State{Level: f.lent})
		if f.level > f.s.Buckets[0].Capacity {
			held = 0
		}
		held = min(held, f.s.Ahead.Capacity-f.lent)
		ahead = min(ahead, (f.s.Ahead.Capacity-f.lent-held)/t.op.N)
	}
	charges := f.s.Buckets[0].Fits(bucket.State{Level: f.level}, t.op.Charges+ahead, t.op.N)
	f.level += charges * t.op.N
	f.lent += held + max(0, charges-t.op.Charges)*t.op.N
	return found
}

// end makes the server decide and answer at once.
func (f *fixture) end(t *Trip) (short []bucket.State) {
	now := time.Now()
	if after, short := t.End(f.s, f.decide(t), now, now); short {
		return after
	}
	return nil
}

// lend has the key's lease hold tokens for a life from now on.
func (f *fixture) lend(tokens int64) *lease {
	f.want(tokens)
	t := f.begin()
	t.op.Ahead, t.op.Held = tokens, 0
	f.level, f.lent = 0, 0
	f.end(t)
	return f.entry().lease.Load()
}

// want has the process have asked for tokens within the last life, and for no others but the next
// call's own.
func (f *fixture) want(tokens int64) {
	if bucket.Tokens(f.s.Buckets) {
		tokens++
	}
	u := &f.entry().usage
	u.previous.Store(0)
	u.began.Store(int64(f.cache.now()))
	u.current.Store(tokens)
}

// takeAll uses n leased tokens, all or none.
func (c *Cache) takeAll(s Subject, n int64, again bool, states []bucket.State) (left int64, ok bool) {
	taken, left := c.Take(s, n, n, again, states)
	return left, taken == n
}

func (f *fixture) take(n int64) bool {
	_, ok := f.cache.takeAll(f.s, n, true, make([]bucket.State, 1))
	return ok
}

func (f *fixture) leased() int64 { return f.cache.usable(f.entry()) }

// returns returns what was given back.
func (f *fixture) returns() []Unused {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.backs
}

// given returns how many tokens were given back.
func (f *fixture) given() (n int64) {
	for _, u := range f.returns() {
		n += u.Tokens
	}
	return n
}

// TestAKeyIsWatchedFromItsSecondVisit. It has a lease when more was asked for than a call takes.
func TestAKeyIsWatchedFromItsSecondVisit(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := unwatched(t, 1)
		time.Sleep(time.Hour)
		visit := func() (ahead int64) {
			f.cache.takeAll(f.s, 1, false, make([]bucket.State, 1))
			trip := f.begin()
			ahead = trip.Op().Ahead
			f.end(trip)
			return ahead
		}
		require.Zero(t, visit())
		require.Nil(t, f.entry())
		require.Zero(t, visit())
		require.NotNil(t, f.entry())
		require.False(t, f.take(1))
		require.Zero(t, visit(), "it asks for what its caller takes")
		require.EqualValues(t, 1, visit())
		require.Equal(t, 1, f.cache.Stats().Keys)
		require.True(t, f.take(1))
		require.False(t, f.take(1))
		require.EqualValues(t, 2, visit())
	})
}

// TestManyKeysAreNotWatched that are visited once each: they would evict those that matter.
func TestManyKeysAreNotWatched(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		for i := range uint64(10_000) {
			other := &fixture{cache: f.cache, s: subject(t, 2+i<<20), life: f.life}
			other.end(other.begin())
			require.Nil(t, other.entry())
		}
		require.NotNil(t, f.entry())
	})
}

// TestVisitorsAreDistinct if as many keys are visited in turn as are remembered.
func TestVisitorsAreDistinct(t *testing.T) {
	t.Parallel()
	c := New(nil)
	for _, again := range []bool{false, true} {
		for i := range uint64(visitors) {
			require.Equal(t, again, c.visited(1+i<<20), i)
		}
	}
}

// TestWhatACallTakesAhead follows from what was asked for within the last life.
func TestWhatACallTakesAhead(t *testing.T) {
	for name, row := range map[string]struct {
		prepare     func(f *fixture)
		n           int64 // tokens of the call's charge
		ahead, held int64
	}{
		"as many as were asked for":         {func(f *fixture) { f.want(9) }, 1, 9, 0},
		"whole charges":                     {func(f *fixture) { f.want(11) }, 4, 2, 0},
		"fewer were asked for than one":     {func(f *fixture) { f.want(3) }, 4, 0, 0},
		"what is held is held for longer":   {func(f *fixture) { f.lend(4); f.want(9) }, 1, 5, 4},
		"what is held is enough":            {func(f *fixture) { f.lend(9); f.want(9) }, 1, 0, 9},
		"twice as many are held":            {func(f *fixture) { f.lend(18); f.want(9) }, 1, 0, 18},
		"more than twice as many":           {func(f *fixture) { f.lend(19); f.want(9) }, 1, 0, 18},
		"its use has ended":                 {func(f *fixture) { f.lend(4); time.Sleep(f.life - 1); f.want(9) }, 1, 5, 4},
		"the lease has ended":               {func(f *fixture) { f.lend(4); time.Sleep(f.life); f.want(9) }, 1, 9, 0},
		"a change has ended it":             {func(f *fixture) { f.lend(4); f.change(); f.want(9) }, 1, 9, 0},
		"an outage has":                     {func(f *fixture) { f.lend(4); f.cache.Lose(); f.want(9) }, 1, 9, 0},
		"the key is being changed":          {func(f *fixture) { f.want(9); f.cache.End(f.s.Hash) }, 1, 0, 0},
		"the key is changed in this moment": {func(f *fixture) { f.want(9); f.cache.End(f.s.Hash)(false) }, 1, 0, 0},
		"a change failed":                   {func(f *fixture) { f.cache.End(f.s.Hash)(true); f.want(9) }, 1, 0, 0},
		"a change failed long ago": {func(f *fixture) {
			f.cache.End(f.s.Hash)(true)
			time.Sleep(failedLife + 1)
			f.want(9)
		}, 1, 9, 0},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			f := newFixture(t)
			row.prepare(f)
			trip := f.cache.Begin(f.s, f.life, 1, row.n)
			require.Equal(t, bucket.Op{Charges: 1, N: row.n, Ahead: row.ahead, Held: row.held}, trip.Op())
			require.Equal(t, row.ahead+row.held > 0, trip.TakesAhead())
			require.Nil(t, trip.Other())
		})
	}
}

// change is a Reset that has ended a moment ago.
func (f *fixture) change() {
	f.cache.End(f.s.Hash)(false)
	time.Sleep(time.Nanosecond)
}

// TestAPartOfAWindowIsTakenAhead of what is left after the call: nothing flows back.
func TestAPartOfAWindowIsTakenAhead(t *testing.T) {
	for room, want := range map[int64]int64{1000: 90, 721: 90, 720: 89, 41: 5, 9: 1, 8: 0, 1: 0, 0: 0} {
		inBubbleRun(t, room, func(t *testing.T) {
			f := newWindow(t)
			f.want(90)
			f.entry().room.Store(room)
			require.Equal(t, bucket.Op{Charges: 1 + want, N: 1}, f.begin().Op(), "charges like the caller's")
		})
	}
}

// TestWhatACallLeases is what the server granted in addition to the caller's own charges.
func TestWhatACallLeases(t *testing.T) {
	for name, row := range map[string]struct {
		left, lent int64 // of the limit, and of the lease bucket
		leased     int64
		short      bool
	}{
		"everything":                          {800, 0, 9, false},
		"as much as there is":                 {12, 0, 9, false},
		"less":                                {11, 0, 8, true},
		"only its own":                        {3, 0, 0, true},
		"less than its own":                   {1, 0, 0, true},
		"nothing":                             {0, 0, 0, true},
		"others hold all but these":           {800, 91, 9, false},
		"others hold more: the limit has all": {800, 95, 5, false},
		"others hold all":                     {800, 100, 0, false},
		"others hold too many":                {800, 130, 0, false},
		"both have less":                      {6, 95, 3, true},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			f := newFixture(t)
			f.want(11)
			f.level, f.lent = 800-row.left, row.lent
			trip := f.cache.Begin(f.s, f.life, 3, 1)
			require.EqualValues(t, 9, trip.Op().Ahead)
			short := f.end(&trip)
			require.Equal(t, row.leased, f.leased())
			require.Equal(t, row.short, short != nil)
			if row.short {
				require.Equal(t, f.level, short[0].Level, "the states after the call")
			}
			require.Empty(t, f.returns())
		})
	}
}

// TestWhatIsHeldForLonger is what the lease bucket has room for, first. The rest is used until its end.
func TestWhatIsHeldForLonger(t *testing.T) {
	for name, row := range map[string]struct {
		level, lent   int64
		used          int64 // before the answer
		leased, given int64
	}{
		"all of 20, and 10 ahead":     {0, 0, 0, 30, 0},
		"all, and a few ahead":        {0, 75, 0, 25, 0},
		"all, and none ahead":         {0, 80, 0, 20, 0},
		"the limit has no more":       {800, 0, 0, 20, 0},
		"a few":                       {0, 95, 0, 20, 0},
		"none":                        {0, 100, 0, 20, 0},
		"the client is in debt":       {801, 0, 0, 0, 20},
		"some have been used":         {0, 80, 15, 5, 0},
		"none, and some used by then": {0, 100, 15, 5, 0},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			f := newFixture(t)
			f.lend(20)
			f.want(30)
			trip := f.begin()
			require.Equal(t, bucket.Op{Charges: 1, N: 1, Ahead: 10, Held: 20}, trip.Op())
			if row.used > 0 {
				require.True(t, f.take(row.used))
			}
			f.level, f.lent = row.level, row.lent
			f.end(trip)
			require.Equal(t, row.leased, f.leased())
			require.Equal(t, row.given, f.given())
		})
	}
}

// TestTokensThatAreUsedNoMore are held for longer as far as the lease bucket has room. The others are given back,
// as nobody could use them.
func TestTokensThatAreUsedNoMore(t *testing.T) {
	for lent, kept := range map[int64]int64{0: 20, 80: 20, 95: 5, 100: 0} {
		inBubbleRun(t, lent, func(t *testing.T) {
			f := newFixture(t)
			f.lend(20)
			time.Sleep(usedFor(f.life))
			f.want(20)
			trip := f.begin()
			require.EqualValues(t, 20, trip.Op().Held)
			f.lent = lent
			f.end(trip)
			require.Equal(t, kept, f.leased())
			require.Equal(t, 20-kept, f.given())
		})
	}
}

// TestTokensThatAreNotHeldForLonger end all that their process holds.
func TestTokensThatAreNotHeldForLonger(t *testing.T) {
	for lent, end := range map[int64]time.Duration{80: 140 * ms, 95: 100 * ms} {
		inBubbleRun(t, lent, func(t *testing.T) {
			f := newFixture(t)
			f.lend(20)
			time.Sleep(40 * ms)
			f.want(20)
			trip := f.begin()
			require.EqualValues(t, 20, trip.Op().Held)
			f.lent = lent
			f.end(trip)
			require.EqualValues(t, 20, f.leased())
			time.Sleep(end - 40*ms - 1)
			synctest.Wait()
			require.Zero(t, f.given())
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			require.EqualValues(t, 20, f.given())
		})
	}
}

// TestWhoseTokensAreGivenBack first: what the last call took, as what earlier calls took is used first.
func TestWhoseTokensAreGivenBack(t *testing.T) {
	type part struct{ tokens, level int64 } // level is what the call left that took them
	for name, row := range map[string]struct {
		used  int64 // of 20 of one call and 10 of the next
		third int64 // how many a third call wants
		want  []part
	}{
		"none is used":                        {0, 0, []part{{10, 132}, {20, 121}}},
		"some of the first call's are used":   {15, 0, []part{{10, 132}, {5, 121}}},
		"all of the first call's are used":    {20, 0, []part{{10, 132}}},
		"and some of the last call's":         {27, 0, []part{{3, 132}}},
		"a third call holds a few of all":     {0, 4, []part{{10, 132}, {12, 121}, {8, 121}}},
		"a third call holds some of the last": {22, 2, []part{{4, 132}, {4, 132}}},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			f := newFixture(t)
			f.want(20)
			f.level = 100
			f.end(f.begin())
			time.Sleep(ms)
			f.want(30)
			trip := f.begin()
			require.Equal(t, bucket.Op{Charges: 1, N: 1, Ahead: 10, Held: 20}, trip.Op())
			f.end(trip)
			require.True(t, row.used == 0 || f.take(row.used))
			if row.third > 0 {
				f.want(row.third)
				f.end(f.begin())
			}
			time.Sleep(f.life)
			synctest.Wait()
			var all []part
			for _, u := range f.returns() {
				all = append(all, part{u.Tokens, u.first.after[0].Level})
			}
			require.Equal(t, row.want, all)
		})
	}
}

// TestMoreThanIsWantedIsGivenBack with the next call.
func TestMoreThanIsWantedIsGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.lend(50)
		f.want(10)
		f.end(f.begin())
		require.EqualValues(t, 20, f.leased())
		require.EqualValues(t, 30, f.given())
		require.Equal(t, f.s.Key, f.returns()[0].Key)
		require.Equal(t, []int64{500}, f.returns()[0].marks)
	})
}

// TestACallThatTakesNothingAhead leaves the lease as it is.
func TestACallThatTakesNothingAhead(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.lend(5)
		f.want(0)
		before := f.entry().lease.Load()
		trip := f.begin()
		require.False(t, trip.TakesAhead())
		require.Nil(t, f.end(trip))
		require.Same(t, before, f.entry().lease.Load())
		f.level = 800
		require.Equal(t, []bucket.State{{Level: 800, Reset: 500, Mark: 500}}, f.end(f.begin()))
		require.EqualValues(t, 5, f.leased())
	})
}

// TestALeaseBeginsWhenItsCallIsSent, so that it ends before the server counts it no more.
func TestALeaseBeginsWhenItsCallIsSent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.want(9)
		trip, sent := f.begin(), time.Now()
		time.Sleep(60 * ms)
		trip.End(f.s, f.decide(trip), sent, time.Now())
		time.Sleep(usedFor(f.life) - 60*ms - 1)
		require.EqualValues(t, 9, f.leased())
		time.Sleep(time.Nanosecond)
		require.Zero(t, f.leased())
		require.EqualValues(t, 9, f.entry().lease.Load().held(f.life-1), "but it holds them")
	})
}

// TestAChangeInFlight ends the lease of a call that was sent before its end.
func TestAChangeInFlight(t *testing.T) {
	for name, change := range map[string]func(f *fixture){
		"a change":                              func(f *fixture) { f.cache.End(1)(false) },
		"a change of another key of its stripe": func(f *fixture) { f.cache.End(1 + stripes)(false) },
		"an outage":                             func(f *fixture) { f.cache.Lose() },
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			f := newFixture(t)
			f.want(9)
			trip, sent := f.begin(), time.Now()
			time.Sleep(ms)
			change(f)
			trip.End(f.s, f.decide(trip), sent, time.Now())
			require.Zero(t, f.leased())
			time.Sleep(time.Nanosecond)
			f.want(9)
			trip = f.begin()
			require.Equal(t, bucket.Op{Charges: 1, N: 1, Ahead: 9}, trip.Op(), "those are given back")
			f.end(trip)
			require.EqualValues(t, 9, f.leased())
		})
	}
}

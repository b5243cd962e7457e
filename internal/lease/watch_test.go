package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clocktrust"
)

// watched is a process that observes a server's clock by a bucket of 1,000 tokens that regains one
// per millisecond.
type watched struct {
	*fixture
	at time.Time
}

func newWatched(t *testing.T) *watched {
	f := &fixture{New(clocktrust.New(false)), subject(t, 1), 100 * ms, 900}
	f.ask(2)
	return &watched{f, time.Now()}
}

// pass lets time pass, in which the server's clock moves.
func (w *watched) pass(d, moved time.Duration) {
	time.Sleep(d)
	w.level = max(0, w.level-moved.Milliseconds())
}

func (w *watched) trusted() bool { return w.cache.clock.Trusted() }

// TestTrust: there is no lease until the server's clock has been seen to run at this clock's pace.
func TestTrust(t *testing.T) {
	type seen struct{ passed, moved time.Duration }
	for name, row := range map[string]struct {
		seen []seen
		want bool
	}{
		"at first":                   {nil, false},
		"it runs":                    {[]seen{{10 * ms, 10 * ms}}, true},
		"it stands still":            {[]seen{{10 * ms, 0}, {100 * ms, 0}, {50 * ms, 0}}, false},
		"it is slower":               {[]seen{{20 * ms, 18 * ms}}, false},
		"it is set forward":          {[]seen{{10 * ms, 500 * ms}}, false},
		"it runs, and is set":        {[]seen{{10 * ms, 10 * ms}, {10 * ms, 500 * ms}}, false},
		"it is seen too soon":        {[]seen{{2 * ms, 2 * ms}}, false},
		"it is seen too soon, twice": {[]seen{{2 * ms, 2 * ms}, {2 * ms, 2 * ms}}, true},
		"too long ago":               {[]seen{{11 * time.Second, 100 * ms}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWatched(t)
				for _, s := range row.seen {
					w.pass(s.passed, s.moved)
					w.ask(1)
				}
				require.Equal(t, row.want, w.trusted())
				w.used(9)
				w.level = min(w.level, 500)
				require.Equal(t, row.want, w.ask(1) > 0)
			})
		})
	}
}

// TestABusyKeyTellsThatTheClockRuns: others' charges hide some of the passed time, and so does a
// bucket that is full before each call. The falls that remain show that the clock moves by itself.
func TestABusyKeyTellsThatTheClockRuns(t *testing.T) {
	for name, row := range map[string]struct {
		others, moves int64 // tokens that others take in 10 ms, and milliseconds that the clock moves
		full          bool
		calls         int
		want          bool
	}{
		"others take most of what comes back":  {8, 10, false, 8, true},
		"too few calls":                        {8, 10, false, 7, false},
		"the bucket is full before each call":  {0, 10, true, 8, true},
		"nothing comes back":                   {0, 0, false, 100, false},
		"others take more than what came back": {12, 10, false, 100, false},
		"the clock is slow":                    {0, 4, false, 8, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWatched(t)
				if row.full {
					w.level = 0
					w.entry().watch.chain.Store(nil)
					w.ask(1)
				}
				for range row.calls {
					w.pass(10*ms, time.Duration(row.moves)*ms)
					w.level += row.others
					if row.full {
						w.level = 0
					}
					w.ask(1)
				}
				require.Equal(t, row.want, w.trusted())
			})
		})
	}
}

// TestOthersChargesMoveNoClock that stands still, also where a millisecond has several units.
func TestOthersChargesMoveNoClock(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWatched(t)
		w.s.Buckets[0] = newBucket(t, bucket.Token, 3000, 3000, 1000)
		w.ask(2)
		for range 100 {
			time.Sleep(10 * ms)
			w.level++
			w.ask(1)
		}
		require.False(t, w.trusted())
	})
}

// TestAClockThatIsSetAgainAndAgain is not trusted, however far it is set, and however well it runs
// in between.
func TestAClockThatIsSetAgainAndAgain(t *testing.T) {
	for _, by := range []time.Duration{4 * ms, 20 * ms, 300 * ms} {
		inBubbleRun(t, by, func(t *testing.T) {
			w := newWatched(t)
			for range 50 {
				w.level = 900
				w.ask(1)
				w.pass(ms, by+ms)
				w.ask(1)
				require.False(t, w.trusted())
				w.pass(10*ms, 5*ms)
				w.ask(1)
				require.False(t, w.trusted())
			}
		})
	}
}

// TestAClockThatIsSetForwardVoidsAllLeases, though it is still trusted.
func TestAClockThatIsSetForwardVoidsAllLeases(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWatched(t)
		for range 10 {
			w.pass(10*ms, 10*ms)
			w.ask(1)
		}
		w.used(9)
		require.Positive(t, w.ask(1))
		require.Positive(t, w.leased())
		w.pass(10*ms, 300*ms)
		w.ask(1)
		require.True(t, w.trusted())
		require.Zero(t, w.leased())
	})
}

// TestOthersChargesDoNotLookLikeAFastClock, nor do they hide that it stands still.
func TestOthersChargesDoNotLookLikeAFastClock(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWatched(t)
		w.level = 100
		w.entry().watch.chain.Store(nil)
		for range 10 {
			w.pass(10*ms, 10*ms)
			w.level += 15 // of others
			w.ask(1)
			require.False(t, w.trusted(), "it might stand still")
		}
		w.pass(10*ms, 10*ms)
		w.ask(1)
		require.True(t, w.trusted(), "it was never taken for fast")
	})
}

// TestOwnRefundsDoNotLookLikeAFastClock: the level falls by them.
func TestOwnRefundsDoNotLookLikeAFastClock(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWatched(t)
		w.pass(10*ms, 10*ms)
		w.ask(1)
		require.True(t, w.trusted())
		for range 5 {
			done := w.cache.Forget(w.s.Hash)
			w.level -= 100
			w.pass(5*ms, 5*ms)
			inFlight := w.begin()
			done(false)
			time.Sleep(time.Nanosecond)
			w.end(&inFlight)
			require.True(t, w.trusted())
			w.pass(5*ms, 5*ms)
			w.ask(1)
			require.True(t, w.trusted())
			w.pass(5*ms, 5*ms)
			w.ask(1)
			require.True(t, w.trusted())
		}
	})
}

// TestOverlappingTrips: the order of two calls is unknown, so the level may rise and fall by their
// charges.
func TestOverlappingTrips(t *testing.T) {
	for _, firstAnswered := range []int{0, 1} {
		inBubbleRun(t, firstAnswered, func(t *testing.T) {
			w := newWatched(t)
			for range 20 {
				w.pass(10*ms, 10*ms)
				var trips [2]Trip
				var found [2][]bucket.State
				sent := time.Now()
				for i := range trips {
					trips[i] = w.cache.Begin(w.s, w.life, 50, 1)
					found[i] = []bucket.State{{Level: w.level}}
					w.level += w.s.Buckets[0].Fit(w.level, trips[i].Charges(), 1)
				}
				w.pass(ms, ms)
				for i := range trips {
					i = (i + firstAnswered) % 2
					trips[i].End(w.s, trips[i].Charges(), found[i], sent, time.Now())
					require.Zero(t, w.cache.era(), "it looked like a fast clock")
				}
				w.level = min(w.level, 500)
				w.cache.Forget(w.s.Hash)(false) // as the level falls by this
			}
		})
	}
}

// TestOwnChargesAreKnown as soon as they are answered.
func TestOwnChargesAreKnown(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWatched(t)
		w.level = 100
		w.entry().watch.chain.Store(nil)
		w.ask(1)
		for range 20 {
			w.pass(ms, ms)
			w.ask(1) // too soon to judge, and each is charged
		}
		require.True(t, w.trusted(), "20 ms have passed: the level fell by 20 and rose by 20")
	})
}

// askWindow shows a cache a window with ms milliseconds left.
func askWindow(t *testing.T, c *Cache, left int64) {
	s := subject(t, 1)
	s.Buckets = []bucket.Bucket{newBucket(t, bucket.FixedWindow, 1000, 1000, 1000)}
	trip, now := c.Begin(s, 100*ms, 1, 1), time.Now()
	found := bucket.State{Reset: left, Mark: left}
	if left > 0 {
		found.Level = 1
	}
	trip.End(s, trip.Charges(), []bucket.State{found}, now, now)
}

// TestAWindowTellsTheTime by its end.
func TestAWindowTellsTheTime(t *testing.T) {
	for moved, want := range map[int64]bool{0: false, 8: false, 9: true, 10: true, 12: true, 13: false, 400: false} {
		inBubbleRun(t, moved, func(t *testing.T) {
			c := New(clocktrust.New(false))
			askWindow(t, c, 900)
			askWindow(t, c, 900)
			time.Sleep(10 * ms)
			askWindow(t, c, 900-moved)
			require.Equal(t, want, c.clock.Trusted())
			askWindow(t, c, 999) // the next one
			require.Equal(t, want, c.clock.Trusted())
		})
	}
}

// TestAWindowTellsTheTimeToItsEnd, and not once it is gone: it may have been reset.
func TestAWindowTellsTheTimeToItsEnd(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := New(clocktrust.New(false))
		askWindow(t, c, 900)
		askWindow(t, c, 900)
		time.Sleep(10 * ms)
		askWindow(t, c, 0)
		require.Zero(t, c.clock.Jumps())
		time.Sleep(999 * ms) // the next one began with that call
		askWindow(t, c, 1)
		require.True(t, c.clock.Trusted())
	})
}

// TestADenialBeginsNoWindow: an untouched window whose call another one denied has no end yet.
func TestADenialBeginsNoWindow(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, s := New(clocktrust.New(false)), subject(t, 1)
		s.Buckets = []bucket.Bucket{newBucket(t, bucket.FixedWindow, 1000, 1000, 1000),
			newBucket(t, bucket.FixedWindow, 10, 10, 1000)}
		ask := func(first, second bucket.State) {
			trip, now := c.Begin(s, 10*time.Second, 1, 1), time.Now()
			trip.End(s, trip.Charges(), []bucket.State{first, second}, now, now)
		}
		denies := bucket.State{Level: 10, Reset: 500}
		ask(bucket.State{}, denies)
		ask(bucket.State{}, denies)
		time.Sleep(10 * ms)
		ask(bucket.State{Level: 1, Reset: 990}, denies)
		require.False(t, c.clock.Trusted())
		time.Sleep(10 * ms)
		ask(bucket.State{Level: 1, Reset: 980}, denies)
		require.True(t, c.clock.Trusted())
	})
}

// TestCalendarPeriodsNeedNoTrust in Redis' clock: they end by this process' clock.
func TestCalendarPeriodsNeedNoTrust(t *testing.T) {
	c := New(clocktrust.New(false))
	day, ok := bucket.NewCalendar("", 10, 86_400_000, 86_400_000)
	require.True(t, ok)
	f := &fixture{c, Subject{[]byte("k"), 1, []bucket.Bucket{day}}, 10 * time.Hour, 0}
	f.ask(3)
	require.True(t, c.trusted([]bucket.Bucket{day}))
	require.False(t, c.trusted([]bucket.Bucket{day, newBucket(t, bucket.Token, 1, 1, 1)}))
}

package lease

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/table"
)

// newLease returns a lease of some tokens.
func newLease(life, end time.Duration, tokens int64) *lease {
	l := &lease{life: life, end: end}
	l.left.Store(tokens)
	return l
}

// TestUsableAndHeld: tokens are usable for 7/8 of the lease's life, and may be held for longer until its
// end, but not after a window.
func TestUsableAndHeld(t *testing.T) {
	t.Parallel()
	const long = time.Duration(math.MaxInt64)
	for name, row := range map[string]struct {
		life, end, age time.Duration
		usable, held   int64
	}{
		"at once":                         {8 * ms, long, 0, 5, 5},
		"before its call was sent":        {8 * ms, long, -1, 0, 5},
		"in its last moment of use":       {8 * ms, long, 7*ms - 1, 5, 5},
		"when it is used no more":         {8 * ms, long, 7 * ms, 0, 5},
		"in the last moment of its life":  {8 * ms, long, 8*ms - 1, 0, 5},
		"at the end of its life":          {8 * ms, long, 8 * ms, 0, 0},
		"in a window":                     {8 * ms, 9 * ms, 7*ms - 1, 5, 5},
		"before its window ends early":    {8 * ms, 3 * ms, 3*ms - 1, 5, 5},
		"when its window has ended early": {8 * ms, 3 * ms, 3 * ms, 0, 0},
		"of a window that has ended":      {8 * ms, 0, 0, 0, 0},
	} {
		l := newLease(row.life, row.end, 5)
		require.Equal(t, row.usable, l.usable(row.age), name)
		require.Equal(t, row.held, l.held(row.age), name)
	}
}

func TestTakeTakesAllOrNone(t *testing.T) {
	t.Parallel()
	l := newLease(5*ms, time.Hour, 5)
	for _, row := range []struct {
		age     time.Duration
		n, left int64
		ok      bool
	}{{0, 6, 0, false}, {0, 2, 3, true}, {5 * ms, 1, 0, false}, {-1, 1, 0, false}, {4 * ms, 4, 0, false}, {0, 3, 0, true},
		{0, 1, 0, false}} {
		taken, left := l.take(row.age, row.n, row.n)
		require.Equal(t, row.ok, taken == row.n, row)
		require.Equal(t, row.left, left, row)
	}
}

// TestWindowEnd is the first end of a window, a millisecond and a thousandth sooner than found.
func TestWindowEnd(t *testing.T) {
	t.Parallel()
	window, calendar := newBucket(t, bucket.FixedWindow, 9, 9, 5000), newBucket(t, bucket.FixedWindow, 9, 9, 86_400_000)
	calendar.Ends = 86_400_000
	token := newBucket(t, bucket.Token, 9, 9, 5000)
	for name, row := range map[string]struct {
		buckets []bucket.Bucket
		resets  []int64
		want    time.Duration
	}{
		"a window":              {[]bucket.Bucket{window}, []int64{1001}, 1000 * ms},
		"a thousandth":          {[]bucket.Bucket{window}, []int64{1025}, 1023 * ms},
		"several":               {[]bucket.Bucket{window}, []int64{2049}, 2046 * ms},
		"a millisecond is left": {[]bucket.Bucket{window}, []int64{1}, 0},
		"nothing is left":       {[]bucket.Bucket{window}, []int64{0}, 0},
		"the first of two":      {[]bucket.Bucket{window, calendar}, []int64{901, 501}, 500 * ms},
		"the other":             {[]bucket.Bucket{window, calendar}, []int64{401, 501}, 400 * ms},
		"of no window":          {[]bucket.Bucket{token}, []int64{0}, math.MaxInt64},
	} {
		states := make([]bucket.State, len(row.resets))
		for i := range states {
			states[i].Reset = row.resets[i]
		}
		require.Equal(t, row.want, windowEnd(row.buckets, states), name)
	}
}

// TestUsageAcrossSpans counts the previous span's tokens as if they had been asked for evenly.
func TestUsageAcrossSpans(t *testing.T) {
	t.Parallel()
	var u usage
	const life = 100 * ms
	u.rotate(1000*ms, life)
	u.add(80)
	for _, row := range []struct {
		at, add time.Duration
		want    int64
	}{
		{1000 * ms, 0, 80}, {1099 * ms, 0, 80}, {1100 * ms, 0, 80}, {1125 * ms, 0, 60}, {1175 * ms, 8, 28},
		{1200 * ms, 0, 8}, {1250 * ms, 0, 4}, {1500 * ms, 0, 0}, // long ago
		{1500 * ms, 5, 5}, {1700 * ms, 0, 0}, // a whole span ago
	} {
		u.add(int64(row.add))
		require.Equal(t, row.want, u.perLife(row.at, life), "%v", row)
	}
}

// TestHugeCharges neither overflow nor panic.
func TestHugeCharges(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.want(bucket.MaxUnits)
		for _, n := range []int64{1 << 31, 1 << 53, 1 << 62, math.MaxInt64} {
			trip := f.cache.Begin(f.s, 24*time.Hour, 1, n)
			f.end(&trip)
			require.False(t, f.take(n))
		}
		require.True(t, f.begin().TakesAhead())
	})
}

// TestOneFlightAtATime takes tokens ahead. Others are told of it, until it has ended.
func TestOneFlightAtATime(t *testing.T) {
	for name, end := range map[string]func(f *fixture, trip *Trip) error{
		"an answer": func(f *fixture, trip *Trip) error { f.end(trip); return nil },
		"an error": func(_ *fixture, trip *Trip) error {
			err := errors.New("Redis is away")
			trip.Fail(err)
			return err
		},
		"a panic": func(_ *fixture, trip *Trip) error {
			err := errors.New("a hook")
			func() {
				defer func() { _ = recover() }()
				defer trip.Fail(err)
				panic(1)
			}()
			return err
		},
		"the goroutine's end": func(_ *fixture, trip *Trip) error {
			err := errors.New("a hook")
			done := make(chan bool)
			go func() {
				defer close(done)
				defer trip.Fail(err)
				runtime.Goexit()
			}()
			<-done
			return err
		},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			f := newFixture(t)
			f.want(9)
			first := f.begin()
			require.Nil(t, first.Other())
			second := f.begin()
			flight := second.Other()
			require.NotNil(t, flight)
			require.Same(t, flight, f.begin().Other())
			select {
			case <-flight.Done:
				t.Error("it is in flight")
			default:
			}
			want := end(f, first)
			<-flight.Done
			require.Equal(t, want, flight.Err)
			first.Fail(errors.New("too late"))
			require.Equal(t, want, flight.Err, "it ends once")
			require.Nil(t, f.begin().Other())
		})
	}
}

// TestACallWithoutALeaseWaitsForNobody, nor does anybody for it.
func TestACallWithoutALeaseWaitsForNobody(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.want(0)
		first := f.begin()
		f.want(9)
		second := f.begin()
		require.Nil(t, second.Other())
		require.True(t, second.TakesAhead())
		f.end(first)
		require.NotNil(t, f.begin().Other(), "the second one is in flight")
	})
}

// TestEviction: a key replaces the entry of its set whose last decision is oldest, never one that
// holds tokens.
func TestEviction(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := New(func(Unused) {})
		var all []*fixture
		for i := range uint64(table.Ways) {
			f := &fixture{cache: c, s: subject(t, 1+i*MaxKeys/table.Ways), life: 100 * ms}
			time.Sleep(ms)
			require.NotNil(t, c.add(&f.s))
			all = append(all, f)
		}
		require.Same(t, all[1].entry(), c.add(&all[1].s), "it is there")
		all[0].lend(1)
		for _, f := range all[1:] {
			time.Sleep(ms)
			f.want(0)
			f.end(f.begin())
		}
		other := &fixture{cache: c, s: subject(t, 1+MaxKeys), life: 100 * ms}
		time.Sleep(90 * ms)
		require.NotNil(t, c.add(&other.s))
		require.NotNil(t, all[0].entry(), "it holds tokens, though they are not usable")
		require.Nil(t, all[1].entry(), "the oldest")
		for _, f := range append(all[2:], other) {
			f.lend(5)
		}
		all[0].lend(1)
		require.Nil(t, c.add(&all[1].s), "all hold tokens")
		require.True(t, all[0].take(1))
		require.NotNil(t, c.add(&all[1].s))
		require.Nil(t, all[0].entry())
		time.Sleep(time.Minute) // the others have given back theirs
		require.NotNil(t, c.add(&all[0].s))
	})
}

// TestAnEvictedEntryLosesNoTokens: a call that is in flight while its key is evicted has its tokens
// given back after their time.
func TestAnEvictedEntryLosesNoTokens(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.want(9)
		trip := f.begin()
		for i := range uint64(table.Ways) {
			s := subject(t, 1+(1+i)*MaxKeys/table.Ways)
			time.Sleep(ms)
			require.NotNil(t, f.cache.add(&s))
		}
		require.Nil(t, f.entry())
		f.end(trip)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.EqualValues(t, 9, f.given())
	})
}

// TestMaxKeys: however many keys there are, no more are watched.
func TestMaxKeys(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, s := New(nil), subject(t, 0)
		for i := range uint64(3 * MaxKeys) {
			s.Hash = i * 0x9E3779B97F4A7C15
			c.add(&s)
		}
		n := 0
		places := c.table.All()
		for i := range places {
			if places[i].Load() != nil {
				n++
			}
		}
		require.Greater(t, n, MaxKeys/2)
		require.LessOrEqual(t, n, MaxKeys)
	})
}

const ms = time.Millisecond

// inBubble runs a test with simulated time.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// newBucket returns a bucket of n tokens per period in milliseconds.
func newBucket(t testing.TB, kind bucket.Kind, rate, burst, period int64) bucket.Bucket {
	t.Helper()
	b, ok := bucket.New(kind, "", rate, burst, period)
	require.True(t, ok)
	return b
}

func inBubbleRun(t *testing.T, name any, test func(t *testing.T)) {
	t.Helper()
	t.Run(fmt.Sprint(name), func(t *testing.T) { inBubble(t, test) })
}

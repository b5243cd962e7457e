package lease

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// newLease returns a lease of tokens of buckets in these states, all charged by the process.
func newLease(life time.Duration, tokens int64, after ...bucket.State) *lease {
	l := &lease{after: after, life: life}
	for _, state := range after {
		l.own = append(l.own, state.Level)
	}
	l.left.Store(tokens)
	return l
}

// TestUsable has leases of a bucket of 10 tokens that regains one each 10 ms: a token weighs 10
// units, and one flows back per millisecond.
func TestUsable(t *testing.T) {
	for name, row := range map[string]struct {
		tokens, level int64
		life, age     time.Duration
		want          int64
	}{
		"at once":                               {5, 50, time.Hour, 0, 5},
		"after a nanosecond one has begun":      {5, 50, time.Hour, 1, 4},
		"with room below, nothing has":          {5, 60, time.Hour, 1, 5},
		"until the room has flowed out":         {5, 60, time.Hour, 9_990_243, 5}, // 9.999999 ms with a thousandth
		"and not a nanosecond longer":           {5, 60, time.Hour, 9_990_244 + 1, 4},
		"the last token":                        {5, 60, time.Hour, 49_951_219, 1},
		"none":                                  {5, 60, time.Hour, 49_951_220 + 1, 0},
		"none long after":                       {5, 60, time.Hour, 59 * time.Minute, 0},
		"no more than are left":                 {2, 100, time.Hour, 0, 2},
		"before it was asked for":               {5, 50, time.Hour, -1, 0},
		"in the last moment of its life":        {5, 100, 5 * ms, 5*ms - 1, 5},
		"at the end of its life":                {5, 100, 5 * ms, 5 * ms, 0},
		"of a life of a nanosecond, at once":    {5, 100, 1, 0, 5},
		"of a life of a nanosecond, after that": {5, 100, 1, 1, 0},
		"a level below what was leased":         {5, 30, time.Hour, 0, 3},
		"an empty level":                        {5, 0, time.Hour, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := []bucket.Bucket{newBucket(t, bucket.Token, 1, 10, 10)}
			l := newLease(row.life, row.tokens, bucket.State{Level: row.level})
			require.Equal(t, row.want, l.usable(b, row.age))
		})
	}
}

// TestUsableByAllLimits: each limit must satisfy the rule.
func TestUsableByAllLimits(t *testing.T) {
	b := []bucket.Bucket{newBucket(t, bucket.Token, 1, 10, 10), newBucket(t, bucket.Token, 1000, 1000, 1000)}
	require.EqualValues(t, 5, newLease(time.Hour, 9, bucket.State{Level: 50}, bucket.State{Level: 9}).usable(b, 0))
	require.EqualValues(t, 3, newLease(time.Hour, 9, bucket.State{Level: 50}, bucket.State{Level: 3}).usable(b, 0))
	require.EqualValues(t, 1, newLease(time.Hour, 9, bucket.State{Level: 50}, bucket.State{Level: 3}).usable(b, 3*ms/2))
}

// TestUsableOfAWindow until the window ends, all of them.
func TestUsableOfAWindow(t *testing.T) {
	b := []bucket.Bucket{newBucket(t, bucket.FixedWindow, 10, 10, 1000), newBucket(t, bucket.FixedWindow, 90, 90, 9000)}
	l := newLease(time.Hour, 4, bucket.State{Level: 7, Reset: 20}, bucket.State{Level: 7, Reset: 9000})
	for age, want := range map[time.Duration]int64{0: 4, 10 * ms: 4, 18_980_000: 4, 19 * ms: 0, 20 * ms: 0,
		time.Minute: 0} {
		require.Equal(t, want, l.usable(b, age), "%s", age)
	}
}

// TestDrainedIsRoundedUp to whole milliseconds, after a thousandth for a faster clock.
func TestDrainedIsRoundedUp(t *testing.T) {
	for age, want := range map[time.Duration]int64{
		0: 0, 1: 1, ms - 977: 1, ms: 2, 500 * ms: 501, time.Second: 1001, 1024 * time.Second: 1_025_000,
		24 * time.Hour: 86_484_375,
	} {
		require.Equal(t, want, drained(age), "%s", age)
	}
}

// TestStepsDrainAsMuchAsOneSpan: whatever time is split into steps, no less drains in all, and less
// than 2 ms more.
func TestStepsDrainAsMuchAsOneSpan(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		var span, rest time.Duration
		var steps int64
		for longest := 1 + r.Int64N(int64([]time.Duration{ms / 10, ms, 50 * ms, time.Minute,
			1000 * time.Hour}[r.IntN(5)])); span < 100*time.Duration(longest); {
			age := time.Duration(r.Int64N(longest))
			span += age
			k, left := step(rest + age)
			require.GreaterOrEqual(t, left, time.Duration(0))
			require.Less(t, left, ms)
			require.LessOrEqual(t, left, rest+age)
			steps, rest = steps+k, left
			age = time.Duration(r.Int64N(longest))
			require.GreaterOrEqual(t, steps+drained(rest+age), drained(span+age), "after %s and %s", span, age)
			require.Less(t, steps, drained(span)+2, "after %s", span)
		}
	}
}

// TestManyTripsInAMillisecond drain own once, not a millisecond each.
func TestManyTripsInAMillisecond(t *testing.T) {
	b := []bucket.Bucket{newBucket(t, bucket.Token, 1, 10, 10)}
	l := newLease(time.Hour, 0, bucket.State{Level: 2000})
	for range 10_000 {
		next := newLease(time.Hour, 0, bucket.State{})
		next.sent = l.sent.Add(ms / 10)
		next.charge(l, b, []bucket.State{{Level: 1 << 40}}, 1, 1)
		l = next
	}
	require.EqualValues(t, 2000+100_000-1000, l.own[0])
	require.Less(t, l.rest, ms)
}

// TestChargesOutOfOrder: a charge sent before an earlier answer is added to own after that answer.
func TestChargesOutOfOrder(t *testing.T) {
	b := []bucket.Bucket{newBucket(t, bucket.Token, 1, 10, 10)}
	for since, want := range map[time.Duration]int64{
		// own is of half a millisecond before
		0: 60, -ms / 5: 60, -ms / 2: 60, -ms/2 - 1: 59, -2 * ms: 58, -20 * ms: 50,
		ms / 4: 60, ms: 59, // 50 and the charge's 10, of which only the first drain
	} {
		before := newLease(time.Hour, 0, bucket.State{Level: 50})
		before.rest, before.sent = ms/2, time.Now()
		l := newLease(time.Hour, 0, bucket.State{})
		l.sent = before.sent.Add(since)
		l.charge(before, b, []bucket.State{{Level: 100}}, 1, 1)
		require.Equal(t, want, l.own[0], "%s", since)
	}
}

func TestTakeTakesAllOrNone(t *testing.T) {
	b := []bucket.Bucket{newBucket(t, bucket.Token, 1, 10, 10)}
	l := newLease(time.Hour, 5, bucket.State{Level: 60})
	take := func(age time.Duration, n, want int64) {
		t.Helper()
		left, ok := l.take(b, age, n)
		require.Equal(t, want >= 0, ok)
		if ok {
			require.Equal(t, want, left)
		}
	}
	take(0, 6, -1)
	take(0, 2, 3)
	take(0, 4, -1)
	take(39*ms, 2, 0) // one of them has flowed out
	take(0, 1, -1)    // and is void for good
	require.Zero(t, l.void(b, 0))

	l = newLease(time.Hour, 5, bucket.State{Level: 60})
	require.EqualValues(t, 3, l.void(b, 25*ms))
	require.Zero(t, l.void(b, 0), "nothing twice")
	take(0, 1, -1)
}

// TestPerLife is how many tokens flow back within a life.
func TestPerLife(t *testing.T) {
	tokens, window := newBucket(t, bucket.Token, 300, 5, 1000), newBucket(t, bucket.FixedWindow, 300, 300, 1000)
	largest, wide := newBucket(t, bucket.Token, bucket.MaxUnits-10, 5, 1),
		newBucket(t, bucket.FixedWindow, bucket.MaxUnits, bucket.MaxUnits, 1000)
	for _, row := range []struct {
		b    *bucket.Bucket
		life time.Duration
		want int64
	}{
		{&tokens, 1, 0},
		{&tokens, ms - 1, 0},
		{&tokens, ms, 0},
		{&tokens, 10 * ms, 3},
		{&tokens, 24 * time.Hour, 300 * 86_400},
		{&window, 10 * ms, 3},
		{&window, 24 * time.Hour, 300 * 86_400},
		{&largest, 24 * time.Hour, math.MaxInt64},
		{&wide, 24 * time.Hour, math.MaxInt64 / 1000},
	} {
		require.Equal(t, row.want, perLife(row.b, row.life), "%+v in %s", row.b, row.life)
	}
}

// TestUndrained is what is left of 20 units of which 7 flow back per millisecond.
func TestUndrained(t *testing.T) {
	b := newBucket(t, bucket.Token, 7, 7, 1000)
	for ms, want := range []int64{20, 13, 6, 0, 0} {
		require.Equal(t, want, undrained(&b, 20, int64(ms)))
	}
}

// FuzzUsable holds the rule in integers of 64 bits against the same in floating point, for buckets
// up to the largest.
func FuzzUsable(f *testing.F) {
	f.Add(int64(1), int64(10), int64(10), int64(50), int64(5), int64(ms), int64(time.Hour))
	f.Add(int64(bucket.MaxUnits-10), int64(5), int64(1), int64(5), int64(5), int64(time.Hour), int64(24*time.Hour))
	f.Add(int64(1), int64(104_249_991), int64(86_400_000), int64(bucket.MaxUnits), int64(math.MaxInt64),
		int64(24*time.Hour-1), int64(24*time.Hour))
	for range 50 {
		f.Add(rand.Int64(), rand.Int64(), 1+rand.Int64N(100_000), rand.Int64(), rand.Int64(), rand.Int64(),
			rand.Int64())
	}
	f.Fuzz(func(t *testing.T, rate, burst, period, level, tokens, age, life int64) {
		b, ok := bucket.New(bucket.Token, "", max(1, rate), max(1, burst), max(1, period))
		if rate < 1 || burst < 1 || period < 1 || !ok {
			return
		}
		level, tokens = level&bucket.MaxUnits, tokens&math.MaxInt64
		age, life = age%int64(25*time.Hour), (life&math.MaxInt64)%int64(24*time.Hour+1)
		l := newLease(time.Duration(life), tokens, bucket.State{Level: level})
		got := l.usable([]bucket.Bucket{b}, time.Duration(age))
		require.GreaterOrEqual(t, got, int64(0))
		require.LessOrEqual(t, got, tokens)
		if age < 0 || age >= life {
			require.Zero(t, got)
			return
		}
		valid := float64(level) - float64(b.Drain)*float64(age)/1e6
		require.LessOrEqual(t, float64(got)*float64(b.Cost), max(0, valid)*(1+1e-12))
		require.GreaterOrEqual(t, perLife(&b, time.Duration(life)), int64(0))
	})
}

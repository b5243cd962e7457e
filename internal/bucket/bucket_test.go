package bucket

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const second, minute, hour, day = 1000, 60_000, 3_600_000, 86_400_000

// TestNew goes through the units: of a period p in milliseconds and g = gcd(rate, p), a token
// weighs p/g and rate/g flow back per millisecond.
func TestNew(t *testing.T) {
	t.Parallel()
	const most, logged = 9_007_199_254_740_991, 4_503_599_627_370_495
	for _, c := range []struct {
		kind                  Kind
		rate, burst, period   int64
		cost, drain, capacity int64
		ok                    bool
	}{
		{Token, 1, 1, 1, 1, 1, 1, true},
		{Token, 10, 10, second, 100, 1, 1000, true},
		{Token, 100, 100, minute, 600, 1, 60_000, true},
		{Token, 3, 3, 1000, 1000, 3, 3000, true}, // no common divisor
		{Token, 6, 20, 1000, 500, 3, 10_000, true},
		{Token, 2000, 5, 1000, 1, 2, 5, true}, // more than a token per millisecond
		{Token, 1000, 1000, day, 86_400, 1, 86_400_000, true},
		{Token, 1_000_003, 1_000_003, day, day, 1_000_003, day * 1_000_003, true},

		// With the drain of one more millisecond, the capacity stays below 2^53.
		{Token, 1, most - 1, 1, 1, 1, most - 1, true},
		{Token, 1, most, 1, 1, 1, 0, false},
		{Token, most - 1, 1, 1, 1, most - 1, 1, true},
		{Token, most - 1, 2, 1, 1, most - 1, 2, false},
		{Token, most, 1, 1, 1, most, 1, false},
		{Token, math.MaxInt64, 1, 1, 0, 0, 0, false},
		{Token, 1, math.MaxInt64, 1, 0, 0, 0, false},
		{Token, 1, 1, most - 1, most - 1, 1, most - 1, true},
		{Token, 1, 1, most, most, 1, 0, false},
		{Token, 1, 2, most/2 + 1, 0, 0, 0, false},
		{Token, 1, 1, math.MaxInt64, 0, 0, 0, false},
		{Token, math.MaxInt64, math.MaxInt64, math.MaxInt64, 1, 1, 0, false},
		{Token, 1 << 62, 5, 1 << 61, 1, 2, 5, true}, // only the quotient counts

		// A token of a window weighs 1, and nothing flows back.
		{FixedWindow, 10, 10, second, 1, 0, 10, true},
		{FixedWindow, most, most, second, 1, 0, most, true},
		{FixedWindow, most + 1, most + 1, second, 0, 0, 0, false},
		{SlidingWindow, 7, 7, minute, 1, 0, 7, true},
		{SlidingWindow, logged, logged, minute, 1, 0, logged, true},
		{SlidingWindow, logged + 1, logged + 1, minute, 0, 0, 0, false},
	} {
		t.Run(fmt.Sprintf("kind %d, %d per %d ms, burst %d", c.kind, c.rate, c.period, c.burst), func(t *testing.T) {
			t.Parallel()
			b, ok := New(c.kind, "id", c.rate, c.burst, c.period)
			require.Equal(t, c.ok, ok)
			if !ok {
				require.Zero(t, b)
				return
			}
			want := Bucket{ID: "id", Kind: c.kind, Burst: c.burst, Whole: c.burst, Cost: c.cost, Drain: c.drain,
				Capacity: c.capacity, Period: c.period}
			if want.Args = [3]any{c.drain, c.cost, c.capacity}; c.kind != Token {
				want.Args[0], want.Args[1] = c.period,
					map[Kind]string{FixedWindow: "fixed", SlidingWindow: "sliding"}[c.kind]
			}
			require.Equal(t, want, b)
			again, _ := New(c.kind, "id", c.rate, c.burst, c.period)
			require.True(t, b == again, "equal limits have equal buckets, though the arguments are boxed")
			if c.rate < 1<<62 {
				require.Equal(t, c.rate, b.rate())
			}
		})
	}
}

func newBucket(t testing.TB, kind Kind, rate, burst, period int64) Bucket {
	t.Helper()
	b, ok := New(kind, "", rate, burst, period)
	require.True(t, ok)
	return b
}

// owing returns the bucket as a share of a bucket that holds that many tokens.
func owing(b Bucket, whole int64) Bucket {
	b.Whole = whole
	return b
}

// TestTokenBucket has levels of buckets and what follows from each for n tokens.
func TestTokenBucket(t *testing.T) {
	t.Parallel()
	ten := newBucket(t, Token, 10, 10, second)               // a token weighs 100, 1 flows back
	three := newBucket(t, Token, 3, 5, second)               // 1000 and 3: rounded up to whole milliseconds
	fast := newBucket(t, Token, 5000, 8, second)             // 1 and 5: several tokens per millisecond
	large := newBucket(t, Token, 1, (MaxUnits-1)/hour, hour) // near 2^53 units
	broad := newBucket(t, Token, MaxUnits-1, 1, 1)           // the largest drain
	share := owing(ten, 25)
	deep := owing(newBucket(t, Token, 1, 1, second), MaxUnits)
	const deepest = (MaxUnits - 1 - second) / second // the last charge that is not cut
	for name, c := range map[string]struct {
		b                Bucket
		level, n         int64
		charge, fit      int64 // of as many charges as there can be
		remaining, retry int64
		reset, more      int64
	}{
		"full":                         {ten, 0, 1, 100, 10, 10, 0, 0, 0},
		"full, for all":                {ten, 0, 10, 1000, 1, 10, 0, 0, 0},
		"full, for more than it holds": {ten, 0, 11, 1001, 0, 10, Never, 0, 0},
		"a unit is missing":            {ten, 1, 1, 100, 9, 9, 0, 1, 1},
		"a token is missing":           {ten, 100, 1, 100, 9, 9, 0, 100, 100},
		"a unit more is missing":       {ten, 101, 1, 100, 8, 8, 0, 101, 1},
		"one token is left":            {ten, 900, 1, 100, 1, 1, 0, 900, 100},
		"nearly one token is left":     {ten, 901, 1, 100, 0, 0, 1, 901, 1},
		"empty":                        {ten, 1000, 1, 100, 0, 0, 100, 1000, 100},
		"empty, for three":             {ten, 1000, 3, 300, 0, 0, 300, 1000, 100},
		"blocked":                      {ten, 5000, 1, 100, 0, 0, 4100, 5000, 4100},
		"half full, by fours":          {ten, 500, 4, 400, 1, 5, 0, 500, 100},
		"half full, by fives":          {ten, 500, 5, 500, 1, 5, 0, 500, 100},
		"half full, by sixes":          {ten, 500, 6, 600, 0, 5, 100, 500, 100},
		"thirds, a token is missing":   {three, 1000, 1, 1000, 4, 4, 0, 334, 334},
		"thirds, empty":                {three, 5000, 1, 1000, 0, 0, 334, 1667, 334},
		"thirds, a unit short":         {three, 4001, 1, 1000, 0, 0, 1, 1334, 1},
		"fast, empty":                  {fast, 8, 1, 1, 0, 0, 1, 2, 1},
		"fast, empty, for six":         {fast, 8, 6, 6, 0, 0, 2, 2, 1},
		"of a share, full":             {share, 0, 25, 2500, 1, 10, 0, 0, 0},
		"of a share, not full":         {share, 1, 25, 2500, 0, 9, 1, 1, 1},
		"of a share, in debt":          {share, 2500, 1, 100, 0, 0, 1600, 2500, 1600},
		"of a share, too many":         {share, 0, 26, 1001, 0, 10, Never, 0, 0},
		"near 2^53, full":              {large, 0, 1, hour, large.Burst, large.Burst, 0, 0, 0},
		"near 2^53, empty":             {large, large.Capacity, 1, hour, 0, 0, hour, large.Capacity, hour},
		"near 2^53, empty, for all": {large, large.Capacity, large.Burst, large.Capacity, 0, 0, large.Capacity,
			large.Capacity, hour},
		"near 2^53, for the most there": {large, 0, math.MaxInt64, large.Capacity + 1, 0, large.Burst, Never, 0, 0},
		"near 2^53, of a share": {owing(large, 2*large.Burst), 0, large.Burst + 1, large.Capacity, 1,
			large.Burst, 0, 0, 0},
		"in debt, up to 2^53-1":        {deep, 0, deepest, deepest * second, 1, 1, 0, 0, 0},
		"in debt, at 2^53-1":           {deep, 0, deepest + 1, MaxUnits - 1 - second, 1, 1, 0, 0, 0},
		"the largest drain, empty":     {broad, 1, 1, 1, 0, 0, 1, 1, 1},
		"the largest drain, at 2^53-1": {broad, MaxUnits, 1, 1, 0, 0, 2, 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := State{Level: c.level}
			assert.Equal(t, c.charge, c.b.Charge(c.n), "charge")
			assert.Equal(t, c.fit, c.b.Fits(State{Level: c.level}, math.MaxInt64, c.n), "fit")
			assert.Equal(t, min(c.fit, 1), c.b.Fits(State{Level: c.level}, 1, c.n), "fit one")
			assert.Zero(t, c.b.Fits(State{Level: c.level}, 0, c.n), "fit none")
			assert.Equal(t, c.remaining, c.b.Remaining(c.level), "remaining")
			assert.Equal(t, c.retry, c.b.Status(s, c.n).Retry, "retry after")
			assert.Equal(t, c.reset, c.b.Status(s, 1).Reset, "reset after")
			assert.Equal(t, c.more, c.b.Status(s, 1).More, "more after")
		})
	}
}

// TestWindow has what is found of windows, and what is after charges of n tokens.
func TestWindow(t *testing.T) {
	t.Parallel()
	fixed, sliding := newBucket(t, FixedWindow, 5, 5, minute), newBucket(t, SlidingWindow, 5, 5, minute)
	found := State{Level: 3, More: 10, Wait: 0, Reset: 500}
	for name, c := range map[string]struct {
		b                Bucket
		found            State
		charges, n       int64
		after            State
		fit, remaining   int64 // before
		retry, overdraft int64
	}{
		"fixed, the first":     {fixed, State{}, 1, 2, State{2, minute, 0, minute, 0, nil, 0}, 2, 5, 0, 0},
		"fixed, a further one": {fixed, found, 2, 1, State{5, 10, 0, 500, 0, nil, 0}, 2, 2, 0, 0},
		"fixed, too many":      {fixed, found, 0, 6, found, 0, 2, Never, 0},
		"fixed, full": {fixed, State{5, 10, 10, 500, 7, nil, 0}, 0, 1, State{5, 10, 10, 500, 7, nil, 0}, 0, 0,
			10, 0},
		"sliding, the first":     {sliding, State{}, 1, 2, State{2, minute, 0, minute, 0, nil, 0}, 2, 5, 0, 0},
		"sliding, a further one": {sliding, found, 2, 1, State{5, 10, 0, minute, 0, nil, 0}, 2, 2, 0, 0},
		"fixed, more than the share": {owing(fixed, 12), State{}, 1, 11, State{11, minute, 0, 3 * minute, 0, nil, 0}, 1, 5, 0,
			2 * minute},
		"sliding, more than the share": {owing(sliding, 12), State{}, 1, 11, State{11, minute, 0, 3 * minute, 0, nil, 0},
			1, 5,
			0, 2 * minute},
		"sliding, after an overdraft": {sliding, State{3, 10, 0, 2 * minute, 0, nil, 0}, 1, 1,
			State{4, 10, 0, 2 * minute, 0, nil, 0},
			2, 2, 0, 0},
		"twice the share": {owing(sliding, 12), State{}, 1, 10, State{10, minute, 0, 2 * minute, 0, nil, 0}, 1, 5,
			0, minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, c.fit, c.b.Fits(c.found, math.MaxInt64, c.n), "fit")
			assert.Equal(t, c.remaining, c.b.Remaining(c.found.Level), "remaining")
			assert.Equal(t, c.retry, c.b.Status(c.found, c.n).Retry, "retry after")
			assert.Equal(t, c.overdraft, c.b.Overdraft(c.n), "overdraft")
			after := c.found
			if c.charges > 0 {
				after = c.b.Charged(c.found, c.charges, c.n)
			}
			assert.Equal(t, c.after, after)
			assert.Equal(t, c.after.Reset, c.b.Status(after, 1).Reset)
			assert.Equal(t, c.after.More, c.b.Status(after, 1).More)
			assert.EqualValues(t, minute, c.b.FillTime())
		})
	}
	t.Run("later", func(t *testing.T) {
		s := State{Level: 5, More: 10, Wait: 20, Reset: 500, Mark: 7}
		for _, b := range []Bucket{fixed, sliding} {
			assert.Equal(t, s, b.After(s, 0))
			assert.Equal(t, State{5, 0, 10, 490, 7, nil, 0}, b.After(s, 10))
			assert.Equal(t, State{5, 0, 0, 1, 7, nil, 0}, b.After(s, 499), "it keeps what was taken")
			assert.Equal(t, State{Mark: 7}, b.After(s, 500), "until it is full")
			assert.Equal(t, State{Mark: 7}, b.After(s, math.MaxInt64))
			assert.True(t, b.Denies(b.After(s, 19), 1))
			assert.False(t, b.Denies(b.After(s, 20), 1))
			assert.Equal(t, int64(MaxUnits), b.MaxBlock())
			assert.EqualValues(t, 4, b.BlockLevel(1))
			assert.EqualValues(t, 4, b.BlockLevel(math.MaxInt64))
		}
	})
	t.Run("the longest overdraft", func(t *testing.T) {
		b := newBucket(t, FixedWindow, 1, 1, MaxUnits/3)
		b.Whole = MaxUnits
		assert.EqualValues(t, 2*b.Period, b.Overdraft(MaxUnits), "no time passes 2^53 - 1")
	})
}

// TestTimesAreExact takes buckets near all bounds, at random levels: each time is the first
// millisecond at which what it stands for is so, and no number passes 2^53 - 1.
func TestTimesAreExact(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(2, 2))
	tried := 0
	for range 20_000 {
		rate, burst, period := someNumber(r, MaxUnits), someNumber(r, MaxUnits), someNumber(r, 1<<40)
		b, ok := New(Token, "", rate, burst, period)
		if !ok {
			continue
		}
		tried++
		if r.IntN(3) == 0 {
			b = b.Share(someNumber(r, 100))
		}
		about := func(s State, n int64, what ...string) []any { return []any{"%+v, %+v, %d tokens %s", b, s, n, what} }
		s, n := State{Level: r.Int64N(b.Capacity + 1)}, 1+r.Int64N(b.Whole)
		switch r.IntN(4) {
		case 0:
			s.Level = b.Capacity + r.Int64N(MaxUnits-b.Capacity+1) // blocked, or in debt
		case 1:
			s.Level, n = 0, b.Whole
		}

		// Tokens and time as fractions.
		missing := big.NewRat(s.Level, b.Cost)
		left := new(big.Rat).Sub(big.NewRat(b.Burst, 1), missing)
		require.Equal(t, max(0, new(big.Int).Div(left.Num(), left.Denom()).Int64()), b.Remaining(s.Level),
			about(s, n)...)
		perMilli := new(big.Rat).SetFrac64(b.rate(), b.Period)
		require.Zero(t, perMilli.Cmp(big.NewRat(b.Drain, b.Cost)), about(s, n)...)

		later := func(ms int64) State { return b.After(s, ms) }
		first := func(what string, ms int64, holds func(State) bool) {
			t.Helper()
			require.GreaterOrEqual(t, ms, int64(0), about(s, n, what)...)
			require.True(t, holds(later(ms)), about(s, n, what)...)
			require.False(t, ms > 0 && holds(later(ms-1)), about(s, n, what)...)
		}
		fits := func(s State) bool { return b.Fits(s, 1, n) == 1 }
		first("retry after", b.Status(s, n).Retry, fits)
		first("reset after", b.Status(s, 1).Reset, func(s State) bool { return s.Level == 0 })
		more := min(b.Remaining(s.Level)+1, b.Burst)
		first("more after", b.Status(s, 1).More, func(s State) bool { return b.Remaining(s.Level) >= more })
		require.Equal(t, b.Status(State{Level: b.Capacity}, 1).Reset, b.FillTime())
		for _, ms := range []int64{0, 1, 999, 1000} { // as long as a denial is remembered
			require.Equal(t, !fits(later(ms)), b.Denies(b.After(s, ms), n), about(s, n)...)
		}

		if charges := b.Fits(s, someNumber(r, MaxUnits), n); charges > 0 {
			after := b.Charged(s, charges, n)
			require.Greater(t, after.Level, s.Level, about(s, n)...)
			require.LessOrEqual(t, after.Level, int64(MaxUnits)-b.Drain, about(s, n)...)
			if n <= b.Burst {
				require.LessOrEqual(t, after.Level, b.Capacity, about(s, n)...)
				require.Equal(t, b.Remaining(s.Level)-charges*n, b.Remaining(after.Level), about(s, n)...)
			}
		} else {
			require.Positive(t, b.Status(s, n).Retry, about(s, n)...)
		}

		block := someNumber(r, math.MaxInt64)
		s = State{Level: b.BlockLevel(block)}
		require.LessOrEqual(t, s.Level, int64(MaxUnits)-b.Drain, about(s, n)...)
		n = 1
		first("blocked", min(block, b.MaxBlock()), fits)
	}
	require.Greater(t, tried, 1000)
}

// someNumber returns a number from 1 to most, a small one as likely as a large one, often near
// most.
func someNumber(r *rand.Rand, most int64) int64 {
	n := (1 + r.Int64N(1<<r.IntN(63))) % most
	if r.IntN(8) == 0 {
		n = most - 1 - n%min(most, 8)
	}
	return max(1, n)
}

func TestSameLimits(t *testing.T) {
	t.Parallel()
	// differ returns the bucket with one more or other of something.
	differ := func(change func(*Bucket)) []Bucket {
		b := newBucket(t, Token, 10, 10, second)
		change(&b)
		return []Bucket{b}
	}
	one := differ(func(*Bucket) {})
	assert.True(t, Same(one, one))
	assert.True(t, Same(one, slices.Clone(one)))
	assert.True(t, Same(append(one, one...), append(one, one...)))
	for name, other := range map[string][]Bucket{
		"capacity": differ(func(b *Bucket) { b.Capacity++ }),
		"cost":     differ(func(b *Bucket) { b.Cost++ }),
		"drain":    differ(func(b *Bucket) { b.Drain++ }),
		"whole":    differ(func(b *Bucket) { b.Whole++ }),
		"kind":     differ(func(b *Bucket) { b.Kind++ }),
		"ID":       differ(func(b *Bucket) { b.ID = "other" }),
		"number":   append(slices.Clone(one), one...),
	} {
		assert.False(t, Same(one, other), name)
		assert.False(t, Same(append(slices.Clone(one), one...), append(slices.Clone(one), other...)), "the second's %s",
			name)
	}
}

func TestEveryKindIsWhole(t *testing.T) {
	t.Parallel()
	require.Len(t, kinds, int(Tenants)+1)
	for number, k := range kinds {
		require.Equal(t, number < Kinds, k.module != "", number)
		require.Positive(t, k.integers, number)
	}
}

func TestOpsMerge(t *testing.T) {
	t.Parallel()
	take := func(charges, n int64) Op { return Op{Verb: Take, Charges: charges, N: n} }
	ahead, longer := take(1, 1), take(1, 1)
	ahead.Ahead, longer.Held = 1, 1
	for name, c := range map[string]struct {
		a, b Op
		want bool
	}{
		"what is taken ahead":         {ahead, take(1, 1), false},
		"what others take ahead":      {take(1, 1), ahead, false},
		"what is held for longer":     {longer, take(1, 1), false},
		"what others hold for longer": {take(1, 1), longer, false},
		"of one token each":           {take(1, 1), take(1, 1), true},
		"of several charges":          {take(3, 2), take(5, 2), true},
		"of charges of other sizes":   {take(1, 1), take(1, 2), false},
		"a look and a charge":         {Peek(1), take(1, 1), false},
		"a charge and a look":         {take(1, 1), Peek(1), false},
		"two looks":                   {Peek(1), Peek(1), false},
		"as many as can be counted":   {take(MaxUnits-1, 1), take(1, 1), true},
		"more than can be counted":    {take(MaxUnits, 1), take(1, 1), false},
		"what is given back":          {Op{Verb: Give, N: 1}, Op{Verb: Give, N: 1}, false},
		"a charge and what is given":  {take(1, 1), Op{Verb: Give, Charges: 1, N: 1}, false},
		"two blocks":                  {Op{Verb: Block, N: 1}, Op{Verb: Block, N: 1}, false},
		"a charge and a reset":        {take(1, 1), Op{Verb: Reset}, false},
		"two returns of equal tokens": {Op{Verb: Return, N: 1}, Op{Verb: Return, N: 1}, false},
	} {
		assert.Equal(t, c.want, c.a.Merges(c.b), name)
	}
}

// TestShareOfACalendarPeriod holds no more than its part: the next period would not repay the rest.
func TestShareOfACalendarPeriod(t *testing.T) {
	t.Parallel()
	whole, ok := NewCalendar("day", 100, day, day)
	require.True(t, ok)
	share := whole.Share(10)
	require.EqualValues(t, 1, share.Fits(State{Level: 0}, 1, 10))
	require.Zero(t, share.Fits(State{Level: 0}, 1, 11))
	require.Equal(t, whole.Ends, share.Ends)
}

package bucket

import (
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSlower is exact, though the products do not fit into 64 bits.
func TestSlower(t *testing.T) {
	t.Parallel()
	ten, tenInAMinute := newBucket(t, Token, 10, 10, second), newBucket(t, Token, 10, 10, minute)
	require.True(t, tenInAMinute.Slower(&ten))
	require.False(t, ten.Slower(&tenInAMinute))
	same := newBucket(t, Token, 600, 7, minute)
	require.False(t, ten.Slower(&same), "as fast")
	require.False(t, same.Slower(&ten))

	r := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		a := Bucket{Drain: 1 + r.Int64N(MaxUnits>>r.IntN(50)), Cost: 1 + r.Int64N(MaxUnits>>r.IntN(50))}
		b := Bucket{Drain: max(1, a.Drain+r.Int64N(3)-1), Cost: max(1, a.Cost+r.Int64N(3)-1)}
		if r.IntN(2) == 0 {
			b = Bucket{Drain: 1 + r.Int64N(MaxUnits), Cost: 1 + r.Int64N(MaxUnits)}
		}
		want := big.NewRat(a.Drain, a.Cost).Cmp(big.NewRat(b.Drain, b.Cost)) < 0
		require.Equal(t, want, a.Slower(&b), "%d/%d and %d/%d", a.Drain, a.Cost, b.Drain, b.Cost)
	}
}

func TestRegained(t *testing.T) {
	t.Parallel()
	ten, three := newBucket(t, Token, 10, 20, second), newBucket(t, Token, 3, 5, second)
	fast, large := newBucket(t, Token, 5000, 8, second), newBucket(t, Token, MaxUnits-10, 5, 1)
	slow := newBucket(t, Token, 1, 5, day)
	left := ten
	left.Leave(15)
	for _, row := range []struct {
		b        *Bucket
		ms, want int64
	}{
		{&ten, 0, 0}, {&ten, 99, 0}, {&ten, 100, 1}, {&ten, 1999, 19}, {&ten, 2000, 20}, {&ten, 2100, 21},
		{&three, 333, 0}, {&three, 334, 1}, {&three, 666, 1}, {&three, 667, 2}, {&three, 2000, 6},
		{&fast, 1, 5}, {&fast, 2, 10}, {&large, 0, 0}, {&large, 1, MaxUnits - 10}, {&large, 1 << 60, MaxUnits - 10},
		{&slow, day - 1, 0}, {&slow, day, 1}, {&left, 499, 4}, {&left, 500, 5}, {&left, 600, 6},
	} {
		require.Equal(t, row.want, row.b.Regained(row.ms), "%+v in %d ms", *row.b, row.ms)
	}
}

// TestHold lets a token bucket deny for longer than its level says, and changes nothing else that it
// tells. A window says itself when it has more tokens.
func TestHold(t *testing.T) {
	const second = 1000
	ten := newBucket(t, Token, 10, 10, second) // a token regains in 100 ms
	for name, row := range map[string]struct {
		level, ms, n int64
		retry        int64
	}{
		"longer than the level says": {1000, 150, 1, 150},
		"as long":                    {1000, 100, 1, 100},
		"shorter":                    {1000, 99, 1, 100},
		"several tokens":             {1000, 400, 3, 400},
		"for no time":                {950, 0, 1, 50},
		"more than there ever are":   {0, 150, 11, Never},
	} {
		found := State{Level: row.level}
		s := ten.Hold(found, row.ms, row.n, ten.Remaining(found.Level))
		require.Equal(t, row.retry, ten.Status(s, row.n).Retry, name)
		require.Equal(t, ten.Remaining(found.Level), ten.Remaining(s.Level), name)
		require.Equal(t, ten.Status(found, 1).Reset, ten.Status(s, 1).Reset, name)
	}
	s := ten.Hold(ten.After(State{Level: 1000}, 500), 150, 3, 2) // five tokens have flowed back meanwhile
	require.EqualValues(t, 2, ten.Remaining(s.Level))
	require.Zero(t, ten.Fits(s, 1, 3))
	require.EqualValues(t, 150, ten.Status(s, 3).Retry)
	s = ten.Hold(ten.After(State{Level: 1000}, 500), 150, 9, 2)
	require.EqualValues(t, 400, ten.Status(s, 9).Retry, "as without it")
	window := newBucket(t, FixedWindow, 10, 10, second)
	full := State{Level: 10, Wait: 70, Reset: 70}
	require.Equal(t, full, window.Hold(full, 150, 1, 0))
}

func TestRegainTime(t *testing.T) {
	ten := newBucket(t, Token, 10, 20, 1000)
	seven := newBucket(t, Token, 7, 20, 1000)
	for n, want := range map[int64]int64{1: 100, 3: 300, 20: 2000} {
		require.Equal(t, want, ten.RegainTime(n))
	}
	require.EqualValues(t, 143, seven.RegainTime(1), "rounded up")
}

func TestNewAhead(t *testing.T) {
	t.Parallel()
	limit := newBucket(t, Token, 3, 50, second)
	b := NewAhead(&limit, 12)
	require.Equal(t, Bucket{ID: "lease", Kind: Ahead, Burst: 12, Whole: 12, Cost: 1000, Drain: 3, Capacity: 12_000}, b)
	require.False(t, b.IsLimit())
	require.False(t, Tokens([]Bucket{limit, b}))
	require.Equal(t, 1, Counted([]Bucket{limit, b}))
	for level, want := range map[int64]int64{0: 12, 1: 11, 11_000: 1, 11_001: 0, 12_000: 0, 1 << 50: 0} {
		require.Equal(t, want, b.Remaining(level), level)
	}
}

func TestBan(t *testing.T) {
	t.Parallel()
	b := NewBan(100, 350)
	for n, length := range map[int64]int64{1: 100, 2: 200, 3: 350, 4: 350, 1 << 60: 350} {
		require.Equal(t, length, b.BanLength(n), n)
	}
	longest := NewBan(1, MaxUnits/4)
	require.Equal(t, int64(MaxUnits/4), longest.BanLength(1<<60))
	require.EqualValues(t, 3, b.Fits(State{Level: 0}, 3, 100))
	require.Zero(t, b.Fits(State{Level: 1}, 3, 100))
	caused := State{Wait: 100} // by the denial that found none
	require.Equal(t, caused, b.Charged(caused, 1, 1))
	require.True(t, b.Denies(b.After(caused, 99), 1))
	require.False(t, b.Denies(b.After(caused, 100), 1))
	require.Equal(t, State{Level: 60, Wait: 60}, b.After(caused, 40))
	require.Equal(t, State{}, b.After(caused, 100))
	require.EqualValues(t, 100, b.Status(caused, 1).Retry)
	require.Equal(t, b, b.Share(3))
	buckets := []Bucket{{Kind: Token}, b, NewSlots(1)}
	require.Equal(t, 1, Counted(buckets))
	require.Zero(t, Counted(buckets[1:]))
	require.Equal(t, 1, Counted(buckets[:1]))
	require.Zero(t, Counted(nil))
}

func TestSlots(t *testing.T) {
	t.Parallel()
	b := NewSlots(5)
	for _, row := range []struct{ level, charges, fit int64 }{{0, 1, 1}, {0, 9, 5}, {4, 1, 1}, {4, 2, 1}, {5, 1, 0},
		{9, 1, 0}} {
		require.Equal(t, row.fit, b.Fits(State{Level: row.level}, row.charges, 100), row)
	}
	require.Equal(t, State{Level: 3}, b.Charged(State{Level: 1}, 2, 100), "a charge takes a slot, whatever it costs")
	require.EqualValues(t, 2, b.Remaining(3))
	require.Zero(t, b.Remaining(7))
	require.Zero(t, b.Status(State{Level: 4}, 100).Retry)
	require.EqualValues(t, 1000, b.Status(State{Level: 5}, 1).Retry)
	require.EqualValues(t, 1000, b.Status(State{Level: 5}, 1).Reset)
	require.EqualValues(t, 1000, b.Status(State{Level: 5}, 1).More)
	require.False(t, b.Denies(b.After(State{Level: 5}, 0), 1), "a slot may be free at any moment")
	require.Equal(t, State{}, b.After(State{Level: 5}, 1))
	share := b.Share(2)
	require.EqualValues(t, 2, share.Capacity)
	share = b.Share(9)
	require.EqualValues(t, 1, share.Capacity)
}

func TestSlotsComeLast(t *testing.T) {
	t.Parallel()
	slots, ban := NewSlots(5), NewBan(1, 2)
	require.Equal(t, 1, At([]Bucket{ban, slots}, Slots))
	require.Equal(t, 0, At([]Bucket{slots}, Slots))
	require.Equal(t, -1, At([]Bucket{ban}, Slots))
	require.Equal(t, -1, At(nil, Slots))
}

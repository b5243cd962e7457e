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

func TestBanLength(t *testing.T) {
	t.Parallel()
	b, longest := NewBan(100, 350), NewBan(1, MaxUnits/4)
	for n, length := range map[int64]int64{1: 100, 2: 200, 3: 350, 4: 350, 1 << 60: 350} {
		require.Equal(t, length, b.BanLength(n), n)
	}
	require.Equal(t, int64(MaxUnits/4), longest.BanLength(1<<60))
}

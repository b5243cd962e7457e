package bucket

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAnyLimitHasAShare divides limits near all bounds: there is always a bucket, and it never
// holds or regains more than its part of the whole, but for one token.
func TestAnyLimitHasAShare(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	valid := [Kinds]int{}
	for range 20_000 {
		kind := Kind(r.IntN(Kinds))
		rate, burst, period := someNumber(r, math.MaxInt64), someNumber(r, 1<<53), someNumber(r, 1<<40)
		if kind != Token {
			rate = burst
		}
		b, ok := New(kind, "id", rate, burst, period)
		if !ok {
			continue // too large to be counted at all
		}
		valid[kind]++
		processes := someNumber(r, math.MaxInt64)
		share := b.Share(processes)
		about := []any{"%+v among %d: %+v", b, processes, share}
		require.LessOrEqual(t, share.rate(), max(1, rate/processes), about...)
		require.Positive(t, share.rate(), about...)
		require.LessOrEqual(t, share.Burst, max(1, burst/processes), about...)
		require.Positive(t, share.Burst, about...)
		require.Equal(t, burst, share.Whole, about...)
		require.Equal(t, b.ID, share.ID)
		require.Equal(t, b.Period, share.Period)
		if processes == 1 {
			require.Equal(t, b, share)
		}
	}
	for kind, n := range valid {
		require.Greater(t, n, 200, "kind %d", kind)
	}
}

// TestShareOfALargeLimit has divided rates that need units too small for the divided burst.
func TestShareOfALargeLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate, burst, period, processes int64
		shareRate, shareBurst          int64
	}{
		{2_000_000_000, 1 << 50, second, 2, 1_000_000_000, 1 << 49},
		{2_000_000_000, 1 << 50, second, 3, 666_666_000, 1 << 50 / 3}, // whole tokens per millisecond
		{1000, 8_000_000_000_000, 1_000_000, 2, 500, 4_000_000_000_000},
		{1000, 8_000_000_000_000, 1_000_000, 3, 333, MaxUnits / 2 / 1_000_000}, // units of a token per period
	} {
		b := newBucket(t, Token, c.rate, c.burst, c.period)
		want := newBucket(t, Token, c.shareRate, c.shareBurst, c.period)
		want.Whole = c.burst
		require.Equal(t, want, b.Share(c.processes))
	}
}

// TestShareOfAFloor is a part of it, and leaves at least one token to take.
func TestShareOfAFloor(t *testing.T) {
	for _, c := range []struct{ burst, floor, processes, shareBurst, shareFloor int64 }{
		{100, 40, 4, 15, 10}, {100, 40, 3, 20, 13}, {100, 97, 4, 1, 24}, {3, 2, 4, 1, 0}, {100, 40, 1, 60, 40},
		{100, 0, 4, 25, 0},
	} {
		for kind := range Kind(Kinds) {
			b := newBucket(t, kind, 100, c.burst, second)
			b.Leave(c.floor)
			share := b.Share(c.processes)
			require.Equal(t, c.shareBurst, share.Burst, "%v of kind %d", c, kind)
			require.Equal(t, c.shareBurst*share.Cost, share.Capacity, "%v of kind %d", c, kind)
			require.Equal(t, c.shareFloor*share.Cost, share.Floor, "%v of kind %d", c, kind)
			require.Equal(t, c.burst-c.floor, share.Whole, "%v of kind %d", c, kind)
			require.Equal(t, share.Debt(0, MaxUnits), 2*(c.shareBurst+c.shareFloor), "%v of kind %d", c, kind)
		}
	}
}

package bucket

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSlots(t *testing.T) {
	t.Parallel()
	b := NewSlots(5)
	for _, row := range []struct{ level, charges, fit int64 }{{0, 1, 1}, {0, 9, 5}, {4, 1, 1}, {4, 2, 1}, {5, 1, 0}, {9, 1, 0}} {
		require.Equal(t, row.fit, b.Fit(row.level, row.charges, 100), row)
	}
	require.Equal(t, State{Level: 3}, b.Charged(State{Level: 1}, 2, 100), "a charge takes a slot, whatever it costs")
	require.EqualValues(t, 2, b.Remaining(3))
	require.Zero(t, b.Remaining(7))
	require.Zero(t, b.RetryAfter(State{Level: 4}, 100))
	require.EqualValues(t, 1000, b.RetryAfter(State{Level: 5}, 1))
	require.EqualValues(t, 1000, b.ResetAfter(State{Level: 5}))
	require.EqualValues(t, 1000, b.MoreAfter(State{Level: 5}))
	require.False(t, b.Refuses(State{Level: 5}, 0, 1), "a slot may be free at any moment")
	require.Equal(t, State{}, b.After(State{Level: 5}, 1))
	share := b.Share(2)
	require.EqualValues(t, 2, share.Capacity)
	share = b.Share(9)
	require.EqualValues(t, 1, share.Capacity)
	require.Equal(t, -1, Timed([]Bucket{b}))
}

func TestBan(t *testing.T) {
	t.Parallel()
	b := NewBan(100, 350)
	for n, length := range map[int64]int64{1: 100, 2: 200, 3: 350, 4: 350, 1 << 60: 350} {
		require.Equal(t, length, b.BanLength(n), n)
	}
	longest := NewBan(1, MaxUnits/4)
	require.Equal(t, int64(MaxUnits/4), longest.BanLength(1<<60))
	require.EqualValues(t, 3, b.Fit(0, 3, 100))
	require.Zero(t, b.Fit(1, 3, 100))
	caused := State{Wait: 100} // by the refusal that found none
	require.Equal(t, caused, b.Charged(caused, 1, 1))
	require.True(t, b.Refuses(caused, 99, 1))
	require.False(t, b.Refuses(caused, 100, 1))
	require.Equal(t, State{Level: 60, Wait: 60}, b.After(caused, 40))
	require.Equal(t, State{}, b.After(caused, 100))
	require.EqualValues(t, 100, b.RetryAfter(caused, 1))
	require.Equal(t, b, b.Share(3))
	buckets := []Bucket{{Kind: Token}, b, NewSlots(1)}
	require.Equal(t, 1, Counted(buckets))
	require.Zero(t, Counted(buckets[1:]))
	require.Equal(t, 1, Counted(buckets[:1]))
	require.Zero(t, Counted(nil))
}

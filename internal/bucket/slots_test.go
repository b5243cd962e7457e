package bucket

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSlots(t *testing.T) {
	t.Parallel()
	b := NewSlots(5)
	for _, row := range []struct{ level, charges, fit int64 }{{0, 1, 1}, {0, 9, 5}, {4, 1, 1}, {4, 2, 1}, {5, 1, 0},
		{9, 1, 0}} {
		require.Equal(t, row.fit, b.Fit(row.level, row.charges, 100), row)
	}
	require.Equal(t, State{Level: 3}, b.Charged(State{Level: 1}, 2, 100), "a charge takes a slot, whatever it costs")
	require.EqualValues(t, 2, b.Remaining(3))
	require.Zero(t, b.Remaining(7))
	require.Zero(t, b.RetryAfter(State{Level: 4}, 100))
	require.EqualValues(t, 1000, b.RetryAfter(State{Level: 5}, 1))
	require.EqualValues(t, 1000, b.ResetAfter(State{Level: 5}))
	require.EqualValues(t, 1000, b.MoreAfter(State{Level: 5}))
	require.False(t, b.Denies(State{Level: 5}, 0, 1), "a slot may be free at any moment")
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

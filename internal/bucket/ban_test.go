package bucket

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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
	caused := State{Wait: 100} // by the denial that found none
	require.Equal(t, caused, b.Charged(caused, 1, 1))
	require.True(t, b.Denies(caused, 99, 1))
	require.False(t, b.Denies(caused, 100, 1))
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

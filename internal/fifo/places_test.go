package fifo_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/fifo"
)

func TestPlaces(t *testing.T) {
	t.Parallel()
	var p fifo.Places
	require.False(t, p.Take("a", 0))
	require.True(t, p.Take("a", 2))
	require.True(t, p.Take("a", 2))
	require.False(t, p.Take("a", 2))
	require.True(t, p.Take("b", 1), "of another name")
	p.Leave("a")
	require.True(t, p.Take("a", 2))
	p.Leave("a")
	p.Leave("a")
	require.False(t, p.Take("a", 0))
	require.True(t, p.Take("a", 1))
}

// TestPlacesOfAllNamesAreBounded, and given back.
func TestPlacesOfAllNamesAreBounded(t *testing.T) {
	t.Parallel()
	var p fifo.Places
	for range 2 {
		for i := range fifo.MaxPlaces {
			require.True(t, p.Take(strconv.Itoa(i), 1))
		}
		require.False(t, p.Take("another", 1))
		p.Leave("7")
		require.True(t, p.Take("another", 1))
		require.False(t, p.Take("7", 1))
		p.Leave("another")
		require.True(t, p.Take("7", 1))
		for i := range fifo.MaxPlaces {
			p.Leave(strconv.Itoa(i))
		}
	}
}

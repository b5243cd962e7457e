package fifo_test

import (
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

package transport

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestComparedKeysAreBounded, and each key has its own time.
func TestComparedKeysAreBounded(t *testing.T) {
	t.Parallel()
	var l compared
	now := time.Now()
	for i := range maxKeys + 100 {
		require.True(t, l.due(fmt.Sprint(i), now))
	}
	require.Len(t, l.at, maxKeys)
	last := fmt.Sprint(maxKeys + 99)
	require.False(t, l.due(last, now.Add(compareGap-1)))
	require.True(t, l.due(last, now.Add(compareGap)))
	require.Len(t, l.at, maxKeys, "a known key takes no other's place")
}

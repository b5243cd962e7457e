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

// TestAnAttemptLeavesOnce: when it ends, another may be the first one after a stop that was made longer meanwhile.
func TestAnAttemptLeavesOnce(t *testing.T) {
	calls := &transport{}
	calls.stops.add("key", time.Now())
	one := attempt{t: calls, key: "key"}
	var err error
	one.first, err = calls.stops.wait(t.Context(), one.key)
	require.NoError(t, err)
	require.NotNil(t, one.first)
	calls.stops.add("key", time.Now())
	one.leave()
	next, err := calls.stops.wait(t.Context(), one.key)
	require.NoError(t, err)
	require.NotNil(t, next)
	one.leave()
	require.NotNil(t, next.first, "it is still the first one")
}

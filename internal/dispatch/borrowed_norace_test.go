//go:build !race

package dispatch

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDecisionsAllocateOnlyContexts on their way to the server and back, those of several batches
// at once. The race detector has pools forget what they keep.
func TestDecisionsAllocateOnlyContexts(t *testing.T) {
	for _, direct := range []bool{true, false} {
		do := newDo(t, func(context.Context) {}, direct)
		do()
		require.EqualValues(t, 1, testing.AllocsPerRun(1000, func() {
			for range 16 { // as many as package goroutine makes at once
				do()
			}
		}))
	}
}

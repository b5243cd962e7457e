//go:build !race

package dispatch

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDecisionsAllocateNothing on their way to the server and back: the contexts of several batches are one allocation. The race
// detector has pools forget what they keep.
func TestDecisionsAllocateNothing(t *testing.T) {
	for _, direct := range []bool{true, false} {
		do := newDo(t, func(context.Context) {}, direct)
		do()
		require.Zero(t, testing.AllocsPerRun(1000, do))
	}
}

package dispatch

import (
	"testing"
	"testing/synctest"
)

// inBubble runs a test in simulated time. What is left running when it ends is a fault.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// Idle reports whether nothing waits and nothing is in flight.
func (d *Dispatcher) Idle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unusedLocked() && !d.probing
}

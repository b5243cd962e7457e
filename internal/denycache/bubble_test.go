package denycache

import (
	"testing"
	"testing/synctest"
	"time"
)

const ms = time.Millisecond

// inBubble runs a test with simulated time.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

func inBubbleRun(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inBubble(t, test) })
}

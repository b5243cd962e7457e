//go:build integration

package limits_test

import (
	"testing"
	"time"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestNoProcessStarvesAnotherOnAServer, in real time.
func TestNoProcessStarvesAnotherOnAServer(t *testing.T) {
	testkit.Nightly(t, "p99 of waits that are measured: a process that gets no core waits longer")
	t.Parallel()
	addr := testkit.StartRedis(t)
	var processes []*testkit.Limiter
	for range 4 {
		processes = append(processes, testkit.NewLimiter(t, testkit.Connect(t, addr)))
	}
	requireFair(t, demand(t, processes, 8, 50*time.Millisecond, 4*time.Second), 3)
}

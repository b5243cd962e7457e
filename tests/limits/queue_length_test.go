package limits_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestFewRequestsWait in a process, whatever keys they invent: further ones are denied at once, until others leave.
func TestFewRequestsWait(t *testing.T) {
	if testkit.RaceDetector {
		t.Skip("the race detector knows 8,128 goroutines at most")
	}
	testkit.InSynctest(t, func(t *testing.T) {
		const most = 16384
		l := testkit.Must(ginlimit.NewLocal())
		p := testkit.Must(l.Policy("queue", ginlimit.PerMinute(1), ginlimit.WithQueue(1, time.Hour)))
		reserve := func(i int) ginlimit.Result {
			return testkit.Must(p.Reserve(t.Context(), fmt.Sprint("client ", i), 1)).Result()
		}
		for i := range most + 1 {
			require.True(t, reserve(i).Allowed)
		}
		start := time.Now()
		for i := range most {
			go func() { assert.True(t, reserve(i).Allowed) }()
		}
		synctest.Wait()
		r := reserve(most)
		require.Zero(t, time.Since(start))
		require.Equal(t, ginlimit.CauseQueueFull, r.Cause)
		require.Equal(t, time.Minute, r.RetryAfter)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.True(t, reserve(most).Allowed)
		require.True(t, reserve(most).Allowed, "it waits")
	})
}

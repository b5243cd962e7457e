//go:build integration

package limits_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestLeasesOfACalendarQuotaLoseNothing: many callers of one process use a quota up, and what they
// were not admitted is left in Redis when the limiter is closed.
func TestLeasesOfACalendarQuotaLoseNothing(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	const quota = 10_000
	limit := ginlimit.PerCalendar(quota, ginlimit.CalendarMonth(nil, 1))
	limiter := testkit.NewLimiter(t, rdb, testkit.RemembersDenials())
	p := testkit.NewPolicy(t, limiter, "api", limit, ginlimit.WithLease(24*time.Hour))
	var admitted, leased atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for {
				r, err := p.Allow(context.Background(), "alice")
				if err != nil || !r.Allowed {
					return
				}
				admitted.Add(1)
				if r.Source == ginlimit.FromLease {
					leased.Add(1)
				}
			}
		})
	}
	all.Wait()
	require.NoError(t, limiter.Close())
	require.Positive(t, leased.Load())
	r := testkit.Must(testkit.NewPolicy(t, testkit.NewLimiter(t, rdb), "api", limit).Peek(t.Context(), "alice"))
	require.EqualValues(t, quota, admitted.Load()+int64(r.Remaining))
}

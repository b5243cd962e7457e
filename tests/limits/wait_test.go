package limits_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestWaitN waits for several tokens at once.
func TestWaitN(t *testing.T) {
	t.Parallel()
	ten := ginlimit.PerSecond(10)
	for name, row := range map[string]struct {
		limits   []ginlimit.Limit
		first, n int
		waits    time.Duration
		err      error
	}{
		"there are so many":   {[]ginlimit.Limit{ten}, 5, 5, 0, nil},
		"some are missing":    {[]ginlimit.Limit{ten}, 8, 5, 300 * time.Millisecond, nil},
		"all are missing":     {[]ginlimit.Limit{ten}, 10, 10, time.Second, nil},
		"of several limits":   {[]ginlimit.Limit{ten, ginlimit.PerMinute(60).WithBurst(10)}, 10, 2, 2 * time.Second, nil},
		"of a fixed window":   {[]ginlimit.Limit{ten.WithAlgorithm(ginlimit.FixedWindow)}, 9, 2, time.Second, nil},
		"of a sliding window": {[]ginlimit.Limit{ten.WithAlgorithm(ginlimit.SlidingWindow)}, 9, 2, time.Second, nil},
		"more than there are": {[]ginlimit.Limit{ten}, 1, 11, 0, ginlimit.ErrInvalidArgument},
		"more than one holds": {[]ginlimit.Limit{ten.WithBurst(20), ginlimit.PerHour(12)},
			1, 13, 0, ginlimit.ErrInvalidArgument},
		"none":               {[]ginlimit.Limit{ten}, 1, 0, 0, ginlimit.ErrInvalidArgument},
		"prohibited":         {[]ginlimit.Limit{ginlimit.PerHour(0)}, 1, 2, 0, ginlimit.ErrInvalidArgument},
		"unlimited":          {[]ginlimit.Limit{ginlimit.PerHour(-1)}, 1, 1 << 30, 0, nil},
		"at the deadline":    {[]ginlimit.Limit{ginlimit.PerMinute(60)}, 60, 10, 10 * time.Second, nil},
		"after the deadline": {[]ginlimit.Limit{ginlimit.PerMinute(60)}, 60, 11, 0, context.DeadlineExceeded},
		"never before the end": {[]ginlimit.Limit{ginlimit.PerMinute(60).WithAlgorithm(ginlimit.FixedWindow)},
			60, 1, 0, context.DeadlineExceeded},
	} {
		testkit.RunSynctest(t, name, func(t *testing.T) {
			p := testkit.NewPolicy(t, testkit.NewLocal(t), "test", ginlimit.WithLimits(row.limits...))
			testkit.Must(p.AllowN(t.Context(), "k", row.first))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+time.Nanosecond)
			defer cancel()
			start := time.Now()
			err := p.WaitN(ctx, "k", row.n)
			require.Equal(t, row.waits, time.Since(start))
			if row.err != nil {
				require.ErrorIs(t, err, row.err)
				return
			}
			require.NoError(t, err)
		})
	}
}

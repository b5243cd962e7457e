package limits_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestSettleAndCancelOutliveTheirContext: the client has left, which is when they are needed.
func TestSettleAndCancelOutliveTheirContext(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := testkit.NewPolicy(t, b.Limiter, "api", ginlimit.PerDay(20), ginlimit.InFlight(2))
		q := testkit.NewPolicy(t, b.Limiter, "all", ginlimit.PerDay(30).WithAlgorithm(ginlimit.FixedWindow))
		left := func(want ...int) {
			t.Helper()
			synctest.Wait()
			require.Equal(t, want, append(remaining(t, p), remaining(t, q)...))
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		carriedOut := func(err error) {
			t.Helper()
			if err != nil { // it need not wait
				require.ErrorIs(t, err, context.Canceled)
			}
		}
		r := reserveAll(t, charge(p, "k", 5), charge(q, "k", 5))
		carriedOut(r.Settle(ended, 3, 9))
		left(17, 1, 21)
		require.NoError(t, r.Settle(t.Context(), 1, 1), "once")
		require.NoError(t, r.Cancel(ended), "once")
		left(17, 2, 21)
		carriedOut(reserveAll(t, charge(p, "k", 5), charge(q, "k", 5)).Cancel(ended))
		left(17, 2, 21)
		require.ErrorIs(t, testkit.Err(ginlimit.ReserveAll(ended, charge(p, "k", 5))), context.Canceled)
		left(17, 2, 21)
	})
}

// TestAContextBoundsHowLongSettleWaits, and the timeout for how long it goes on. Close waits for it.
func TestAContextBoundsHowLongSettleWaits(t *testing.T) {
	const (
		late   = 20 * time.Millisecond
		most   = ginlimit.DefaultTimeout * 11 / 10
		closes = time.Second // what the client's call that hangs makes Close wait at most
	)
	for name, row := range map[string]struct {
		late, waits time.Duration
		closes      time.Duration // how long Close takes
		left        int           // of 20
		err         error
	}{
		"Redis is late":       {late, late, 0, 17, nil},
		"the caller leaves":   {late, late / 2, late / 2, 17, context.DeadlineExceeded},
		"Redis is gone":       {time.Minute, most, closes, 15, ginlimit.ErrUnavailable},
		"both":                {time.Minute, late / 2, most - late/2 + closes, 15, context.DeadlineExceeded},
		"the caller has left": {late, 0, late, 17, context.DeadlineExceeded},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			var slow atomic.Int64 // how late the next call is
			rdb := b.Connect(t)
			rdb.AddHook(testkit.EveryScript(func(send func() error) error {
				d := time.Duration(slow.Swap(0))
				if time.Sleep(d); d == time.Minute {
					return context.DeadlineExceeded
				}
				return send()
			}))
			l := testkit.Must(ginlimit.NewLimiter(rdb))
			p := testkit.Must(l.Policy("api", ginlimit.PerDay(20)))
			r := testkit.Must(p.Reserve(t.Context(), "k", 5))
			slow.Store(int64(row.late))
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			if row.err == context.DeadlineExceeded {
				ctx, cancel = context.WithTimeout(t.Context(), row.waits)
			}
			defer cancel()
			start := time.Now()
			require.ErrorIs(t, r.Settle(ctx, 3), row.err)
			require.Equal(t, row.waits, time.Since(start))
			start = time.Now()
			require.NoError(t, l.Close())
			require.Equal(t, row.closes, time.Since(start))
			other := testkit.NewPolicy(t, testkit.NewLimiter(t, b.Redis), "api", ginlimit.PerDay(20))
			require.Equal(t, row.left, testkit.Must(other.Peek(t.Context(), "k")).Remaining)
		})
	}
}

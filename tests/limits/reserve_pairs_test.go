package limits_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Reservations beside each other feature: see docs/reference.md.

// reserve reserves n tokens of the client "alice", and wants them to be admitted or denied.
func reserve(t *testing.T, p *ginlimit.Policy, n int, admitted bool) *ginlimit.Reservation {
	t.Helper()
	r := testkit.Must(p.Reserve(t.Context(), "alice", n))
	require.Equal(t, admitted, r.Result().Allowed, "%+v", r.Result())
	return r
}

// remains wants n tokens of the client "alice" to be left.
func remains(t *testing.T, n int, p *ginlimit.Policy) {
	t.Helper()
	require.Equal(t, n, testkit.Must(p.Peek(t.Context(), "alice")).Remaining)
}

// endingDay returns a calendar day that ends a minute after a bubble begins.
func endingDay() ginlimit.Calendar {
	return ginlimit.CalendarDay(time.FixedZone("late", int((24*time.Hour - time.Minute).Seconds())))
}

// TestReservationsAndQueues: what a reservation gives back serves who waits for tokens, at once in its process.
func TestReservationsAndQueues(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := testkit.NewPolicy(t, b.Limiter, "api", ginlimit.PerHour(10))
		r := reserve(t, p, 10, true)
		start, waited := time.Now(), make(chan time.Duration, 2)
		for range 2 {
			go func() {
				assert.NoError(t, p.Wait(t.Context(), "alice"))
				waited <- time.Since(start)
			}()
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		require.Empty(t, waited)
		require.NoError(t, r.Settle(t.Context(), 8))
		synctest.Wait()
		require.Len(t, waited, 2)
		for range 2 {
			require.LessOrEqual(t, <-waited, time.Minute+time.Millisecond)
		}

		here := testkit.NewPolicy(t, b.Limiter, "shared", ginlimit.PerHour(10))
		there := here
		if b.Other != b.Limiter {
			there = testkit.NewPolicy(t, b.Other, "shared", ginlimit.PerHour(10))
		}
		elsewhere := reserve(t, there, 10, true)
		start = time.Now()
		go func() {
			assert.NoError(t, here.Wait(t.Context(), "alice"))
			waited <- time.Since(start)
		}()
		time.Sleep(time.Minute)
		require.NoError(t, elsewhere.Cancel(t.Context()))
		require.LessOrEqual(t, <-waited, 70*time.Second, "a caller in another process finds them within ten seconds")
	})
}

// TestReservationsBelongToTheirCalendarPeriod: one that is settled in the next period neither
// charges nor fills that one.
func TestReservationsBelongToTheirCalendarPeriod(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string][]ginlimit.Limit{
		"alone":           {ginlimit.PerCalendar(10, endingDay())},
		"beside a bucket": {ginlimit.PerCalendar(10, endingDay()), ginlimit.PerSecond(100)},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
				p := testkit.NewPolicy(t, b.Limiter, "api", ginlimit.WithLimits(limits...))
				less, more, late := reserve(t, p, 3, true), reserve(t, p, 3, true), reserve(t, p, 4, true)
				reserve(t, p, 1, false)
				require.NoError(t, less.Settle(t.Context(), 1))
				remains(t, 2, p)
				time.Sleep(time.Minute)
				remains(t, 10, p)
				fresh := reserve(t, p, 3, true)
				require.NoError(t, late.Cancel(t.Context()))
				remains(t, 7, p)
				require.NoError(t, more.Settle(t.Context(), 9))
				remains(t, 7, p)
				require.NoError(t, fresh.Settle(t.Context(), 1))
				remains(t, 9, p)
			})
		})
	}
}

// TestReservationsAndBans: a reservation that is denied bans; what is charged afterwards bans
// nobody; what is given back ends no ban.
func TestReservationsAndBans(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := testkit.NewPolicy(t, b.Limiter, "api", ginlimit.PerHour(10),
			ginlimit.WithBan(24*time.Hour, 48*time.Hour))
		for range 3 {
			require.NoError(t, reserve(t, p, 10, true).Cancel(t.Context()))
		}
		r := reserve(t, p, 6, true)
		require.NoError(t, r.Settle(t.Context(), 15))
		looked := testkit.Must(p.Peek(t.Context(), "alice"))
		require.InDelta(t, 36*time.Minute, looked.RetryAfter, float64(time.Second), "a debt, and no ban")

		testkit.RequireMade(t, p.Reset(t.Context(), "alice"))
		r = reserve(t, p, 6, true)
		denied := reserve(t, p, 5, false)
		require.InDelta(t, 24*time.Hour, denied.Result().RetryAfter, float64(time.Second))
		require.NoError(t, r.Cancel(t.Context()))
		require.NoError(t, denied.Cancel(t.Context()))
		again := reserve(t, p, 1, false)
		require.Greater(t, again.Result().RetryAfter, 23*time.Hour)
		testkit.RequireMade(t, p.Reset(t.Context(), "alice"))
		reserve(t, p, 10, true)
	})
}

// TestReservationsHoldASlot until they are released or canceled: settling their tokens leaves it.
func TestReservationsHoldASlot(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		limit := ginlimit.PerHour(10)
		p := testkit.NewPolicy(t, b.Limiter, "api", limit, ginlimit.InFlight(1))
		left := func(want int) { // in the bucket, whatever is in flight
			t.Helper()
			require.Equal(t, want, testkit.Must(p.Status(t.Context(), "alice"))[0].Remaining)
		}
		r := reserve(t, p, 5, true)
		left(5)
		require.Equal(t, 1, b.Limiter.Stats().Slots)
		reserve(t, p, 1, false)
		require.NoError(t, r.Settle(t.Context(), 4))
		left(6)
		reserve(t, p, 1, false)
		r.Release()
		r.Release()
		left(6)

		r = reserve(t, p, 5, true)
		require.NoError(t, r.Cancel(t.Context()))
		left(6)
		require.Zero(t, b.Limiter.Stats().Slots)
	})
}

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

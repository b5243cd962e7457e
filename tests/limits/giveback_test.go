package limits_test

import (
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Nothing is given back twice: what has flowed back by itself, or was given back by others, is not given back again.

// TestReservationsGiveBackWhatIsLeft: a reservation that has flowed back since another was given
// back, or since a reset, gives back nothing of what others have taken meanwhile.
func TestReservationsGiveBackWhatIsLeft(t *testing.T) {
	limit := ginlimit.PerSecond(100)
	for name, between := range map[string]func(t *testing.T, b testkit.Backend, first *ginlimit.Reservation){
		"another is canceled": func(t *testing.T, _ testkit.Backend, first *ginlimit.Reservation) {
			require.NoError(t, first.Cancel(t.Context()))
			time.Sleep(500 * time.Millisecond)
		},
		"another process cancels": func(t *testing.T, b testkit.Backend, first *ginlimit.Reservation) {
			time.Sleep(time.Millisecond)
			require.NoError(t, first.Cancel(t.Context()))
			require.NoError(t, testkit.Must(b.Other.Reserve(t.Context(), "k", 30, limit)).Cancel(t.Context()))
			time.Sleep(500 * time.Millisecond)
		},
		"a refund": func(t *testing.T, b testkit.Backend, _ *ginlimit.Reservation) {
			testkit.RequireMade(t, b.Other.Refund(t.Context(), "k", 50, limit))
			time.Sleep(500 * time.Millisecond)
		},
		"a reset": func(t *testing.T, b testkit.Backend, _ *ginlimit.Reservation) {
			testkit.RequireMade(t, b.Limiter.Reset(t.Context(), "k", limit))
		},
		"another process resets": func(t *testing.T, b testkit.Backend, _ *ginlimit.Reservation) {
			time.Sleep(time.Millisecond)
			testkit.RequireMade(t, b.Other.Reset(t.Context(), "k", limit))
			time.Sleep(time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
				first := testkit.Must(b.Limiter.Reserve(t.Context(), "k", 50, limit))
				second := testkit.Must(b.Limiter.Reserve(t.Context(), "k", 49, limit))
				between(t, b, first)
				require.Equal(t, 100, testkit.AdmittedNow(t, b.Limiter, "k", limit))
				require.NoError(t, second.Cancel(t.Context()))
				require.Zero(t, testkit.AdmittedNow(t, b.Other, "k", limit))
			})
		})
	}
}

// TestAResetVoidsReservations of limits of each kind, whoever takes right after it.
func TestAResetVoidsReservations(t *testing.T) { testkit.OnEveryBackend(t, resetVoidsReservations) }

func resetVoidsReservations(t *testing.T, b testkit.Backend) {
	limits := []ginlimit.PolicyOption{
		ginlimit.Limit{Rate: 9, Period: time.Hour, Algorithm: ginlimit.SlidingWindow},
		ginlimit.Limit{Rate: 15, Period: 24 * time.Hour, Algorithm: ginlimit.FixedWindow},
		ginlimit.Limit{Rate: 20, Period: 7 * 24 * time.Hour, Burst: 24},
		ginlimit.PerCalendar(40, ginlimit.CalendarMonth(nil, 1)), ginlimit.InFlight(3),
	}
	p := testkit.NewPolicy(t, b.Limiter, "p", limits...)
	other := p
	if b.Other != b.Limiter {
		other = testkit.NewPolicy(t, b.Other, "p", limits...)
	}
	testkit.RequireMade(t, p.Block(t.Context(), "k", time.Second))
	testkit.RequireMade(t, p.Reset(t.Context(), "k"))
	for _, resets := range []*ginlimit.Policy{p, other, p} { // also of windows that have just begun
		r := testkit.Must(p.Reserve(t.Context(), "k", 1))
		require.True(t, r.Result().Allowed)
		testkit.RequireMade(t, resets.Reset(t.Context(), "k"))
		slot := testkit.Must(other.Reserve(t.Context(), "k", 1))
		require.NoError(t, r.Cancel(t.Context()))
		status := testkit.Must(p.Status(t.Context(), "k"))
		for i, burst := range []int{9, 15, 24, 40} {
			require.Equal(t, burst-1, status[i].Remaining, "limit %d", i)
		}
		slot.Release()
	}
}

// TestAResetVoidsAReservationUntilItsPeriodEnds: the window after the reset then has as little left as the one before
// had when the reservation was made.
func TestAResetVoidsAReservationUntilItsPeriodEnds(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		limit := ginlimit.PerMinute(10).WithAlgorithm(ginlimit.FixedWindow)
		l := testkit.NewLimiter(t, b.Redis, ginlimit.WithTimeout(50*time.Millisecond))
		testkit.Must(l.Allow(t.Context(), "k", limit))
		time.Sleep(48 * time.Second)
		r := testkit.Must(l.Reserve(t.Context(), "k", 1, limit))
		require.NoError(t, l.Reset(t.Context(), "k", limit))
		require.Equal(t, 10, testkit.AdmittedNow(t, l, "k", limit))
		time.Sleep(49 * time.Second)
		require.NoError(t, r.Cancel(t.Context()))
		require.Zero(t, testkit.AdmittedNow(t, l, "k", limit))
	})
}

// TestReservationsGiveBackAllThatIsLeft, in any order, while nothing has flowed back of them.
func TestReservationsGiveBackAllThatIsLeft(t *testing.T) {
	limit := ginlimit.PerHour(100)
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		for _, order := range [][]int{{0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {2, 0, 4, 1, 3}} {
			var all []*ginlimit.Reservation
			for range order {
				r := testkit.Must(b.Limiter.Reserve(t.Context(), "k", 20, limit))
				require.True(t, r.Result().Allowed)
				all = append(all, r)
			}
			for _, i := range order {
				require.NoError(t, all[i].Cancel(t.Context()))
			}
			require.Equal(t, 100, testkit.Must(b.Other.Peek(t.Context(), "k", limit)).Remaining)
		}
	})
}

// TestBusyBucketsGiveBackWhatIsLeft: in a bucket that others keep empty, what a request took long ago is still there.
func TestBusyBucketsGiveBackWhatIsLeft(t *testing.T) {
	limit := ginlimit.PerMinute(6000)
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		testkit.Must(b.Other.AllowN(t.Context(), "k", 5000, limit))
		r := testkit.Must(b.Limiter.Reserve(t.Context(), "k", 1000, limit))
		time.Sleep(20 * time.Second) // 2000 of the 5000 have flowed back
		testkit.Must(b.Other.AllowUpTo(t.Context(), "k", 6000, limit))
		require.NoError(t, r.Settle(t.Context(), 412))
		require.Equal(t, 588, testkit.Must(b.Other.Peek(t.Context(), "k", limit)).Remaining)
	})
}

// TestARefundComesBeforeWhoeverWaitsForTheSlot: with two tokens, four requests at once are served one after another.
func TestARefundComesBeforeWhoeverWaitsForTheSlot(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := counts(t, b, ginlimit.PerDay(2), ginlimit.InFlight(1), ginlimit.WithQueue(3, time.Minute),
			ginlimit.WithRefund(func(*gin.Context) bool { return true }))
		p.during = func() { time.Sleep(time.Second) }
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { assert.Equal(t, 200, p.send("alice").Code) })
			time.Sleep(time.Millisecond)
		}
		all.Wait()
		synctest.Wait()
		p.left(t, "alice", 2)
	})
}

// TestARefundOfAllVoidsReservations of windows: what a Refund has given back is not given back again by the reservation
// that took it, whoever takes meanwhile. A reservation after the Refund gives back what it took.
func TestARefundOfAllVoidsReservations(t *testing.T) {
	limits := []ginlimit.Limit{
		ginlimit.PerDay(20), ginlimit.PerCalendar(20, ginlimit.CalendarMonth(nil, 1+(time.Now().UTC().Day()+14)%28)),
	}
	for name, pause := range map[string]time.Duration{"at once": 0, "later": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			testkit.OnEveryWindow(t, func(t *testing.T, e testkit.Engine) {
				for _, limit := range limits {
					requireRefundsVoidReservations(t, e, limit, pause)
				}
			})
		})
	}
}

// TestSlowRequestsGiveBackNothingTwice serves five requests, each of which takes a whole bucket
// that is full again when the next one comes. Their refunds come together, and others take what
// there is after each.
func TestSlowRequestsGiveBackNothingTwice(t *testing.T) {
	limit := ginlimit.PerSecond(10)
	for name, option := range map[string]ginlimit.Option{
		"refund": ginlimit.WithRefund(func(*gin.Context) bool { return true }),
		"settle": ginlimit.WithSettle(func(*gin.Context) int { return 0 }),
	} {
		for others := range 3 {
			t.Run(name+[]string{"", ", another policy", ", two other policies"}[others], func(t *testing.T) {
				testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
					cost := ginlimit.WithCost(func(*gin.Context) int { return 10 })
					policies := []*ginlimit.Policy{b.Limiter.Must("slow", limit, option, cost)}
					for _, name := range []string{"all", "each"}[:others] {
						policies = append(policies, b.Limiter.Must(name, testkit.All(), limit, option, cost))
					}
					release, ended := make(chan struct{}), make(chan int)
					r := gin.New()
					_ = r.SetTrustedProxies(nil)
					r.GET("/", ginlimit.AllOf(policies...), func(*gin.Context) { <-release })
					for range 5 {
						go func() { ended <- testkit.Get(r, "/").Code }()
						time.Sleep(time.Second)
					}
					key := ginlimit.Key("slow", "192.0.2.1")
					admitted := testkit.AdmittedNow(t, b.Limiter, key, limit)
					for range 5 {
						release <- struct{}{}
						require.Equal(t, http.StatusOK, <-ended)
						admitted += testkit.AdmittedNow(t, b.Other, key, limit)
					}
					require.Equal(t, 10, admitted, "in no time")
				})
			})
		}
	}
}

func requireRefundsVoidReservations(t *testing.T, e testkit.Engine, limit ginlimit.Limit, pause time.Duration) {
	ctx, earlier := t.Context(), []*ginlimit.Reservation{}
	for range 3 {
		r := e.Reserve(t, 5, limit)
		require.True(t, r.Result().Allowed)
		earlier = append(earlier, r)
		e.Advance(pause)
		testkit.RequireMade(t, e.Limiter.Refund(ctx, "k", 20, limit))
		require.Equal(t, 20, e.Left(t, limit), limit)
		e.Advance(pause)
	}
	later := e.Reserve(t, 7, limit)
	e.Advance(pause)
	require.True(t, e.AllowN(t, 8, limit).Allowed)
	require.NoError(t, earlier[0].Cancel(ctx))
	require.Equal(t, 5, e.Left(t, limit), limit)
	require.NoError(t, earlier[1].Settle(ctx, 1))
	require.NoError(t, earlier[2].Settle(ctx, 9))
	require.Equal(t, 1, e.Left(t, limit), "%s: it took 4 more than it had reserved", limit)
	require.NoError(t, later.Cancel(ctx))
	require.Equal(t, 8, e.Left(t, limit), limit)
}

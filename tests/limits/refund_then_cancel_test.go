package limits_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

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

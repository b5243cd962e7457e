package limits_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// drop reserves, and forgets the reservation.
//
//go:noinline
func drop(t *testing.T, charges ...ginlimit.Charge) { require.True(t, reserveAll(t, charges...).OK()) }

// freed collects garbage until the slots of a limiter in use are as many as wanted.
func freed(t *testing.T, l *testkit.Limiter, want int) {
	t.Helper()
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		runtime.GC()
		return l.Stats().Slots == want
	}))
}

// TestADroppedReservationFreesItsSlots when it is collected. The log names its policy once a minute, and no client.
func TestADroppedReservationFreesItsSlots(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	l, log := testkit.LoggedLimiter(t, rdb)
	p, rate := testkit.NewPolicy(t, l, "reports", ginlimit.InFlight(1)), testkit.NewPolicy(t, l, "rate", ginlimit.PerHour(9))
	for range 3 {
		drop(t, charge(rate, "k", 2), charge(p, "secret", 1))
		require.False(t, reserveAll(t, charge(p, "secret", 1)).OK())
		freed(t, l, 0)
	}
	require.Equal(t, []int{3}, remaining(t, rate), "the tokens stay taken")
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return strings.Contains(log.String(), "name=reports") }))
	require.Equal(t, 1, strings.Count(log.String(), "Reservation"), log)
	require.NotContains(t, log.String(), "secret")
	other := testkit.NewPolicy(t, testkit.NewLimiter(t, testkit.Connect(t, rdb.Options().Addr)), "reports", ginlimit.InFlight(1))
	drop(t, charge(p, "secret", 1))
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		runtime.GC()
		r := reserveAll(t, charge(other, "secret", 1))
		defer r.Release()
		return r.OK()
	}), "this process makes no decision")
}

// TestADroppedReservationServesTheNextDecision, also in a bubble, outside of which the runtime calls cleanups.
func TestADroppedReservationServesTheNextDecision(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := testkit.NewPolicy(t, b.Limiter, "api", ginlimit.InFlight(1))
		for range 3 {
			drop(t, charge(p, "k", 1))
			for r := reserveAll(t, charge(p, "k", 1)); ; r = reserveAll(t, charge(p, "k", 1)) {
				if r.OK() {
					r.Release()
					break
				}
				runtime.GC() // the bubble's time stands still
			}
		}
	})
}

// TestAReservationThatWasReleasedFreesNothingMore, and one that somebody has keeps its slot.
func TestAReservationThatWasReleasedFreesNothingMore(t *testing.T) {
	t.Parallel()
	l := testkit.NewLocal(t)
	p := testkit.NewPolicy(t, l, "api", ginlimit.InFlight(9))
	held := reserveAll(t, charge(p, "k", 1), charge(p, "other", 1))
	for range 5 {
		reserveAll(t, charge(p, "k", 1)).Release()
		require.NoError(t, reserveAll(t, charge(p, "k", 1), charge(p, "other", 1)).Cancel(t.Context()))
		drop(t, charge(p, "k", 1), charge(p, "other", 1))
		freed(t, l, 2)
	}
	held.Release()
	require.Zero(t, l.Stats().Slots)
}

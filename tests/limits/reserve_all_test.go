package limits_test

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// charge is n tokens of a client.
func charge(p *ginlimit.Policy, client string, n int) ginlimit.Charge {
	return ginlimit.Charge{Policy: p, Client: client, N: n}
}

// reserveAll reserves, and wants no error.
func reserveAll(t *testing.T, charges ...ginlimit.Charge) *ginlimit.Reservation {
	t.Helper()
	r := testkit.Must(ginlimit.ReserveAll(t.Context(), charges...))
	return r
}

// remaining returns what is left of the policy's limits for the client "k".
func remaining(t *testing.T, p *ginlimit.Policy) (left []int) {
	t.Helper()
	rows := testkit.Must(p.Status(t.Context(), "k"))
	for _, r := range rows {
		left = append(left, r.Remaining)
	}
	return left
}

func namesOf(results []ginlimit.Result) (names []string) {
	for _, r := range results {
		names = append(names, r.Name)
	}
	return names
}

// TestReserveAllIsAllOrNothing, with as many tokens of each policy as its charge says.
func TestReserveAllIsAllOrNothing(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		requests := testkit.NewPolicy(t, b.Limiter, "requests", ginlimit.PerHour(3))
		tokens := testkit.NewPolicy(t, b.Limiter, "tokens", ginlimit.PerHour(1000), ginlimit.PerDay(2000))
		account := testkit.NewPolicy(t, b.Limiter, "account", ginlimit.InFlight(2))
		all := func(n int) []ginlimit.Charge {
			return []ginlimit.Charge{charge(requests, "k", 1), charge(tokens, "k", n), charge(account, "k", 1)}
		}
		left := func(want ...int) {
			t.Helper()
			got := append(append(remaining(t, requests), remaining(t, tokens)...), remaining(t, account)...)
			require.Equal(t, want, got)
		}
		one := reserveAll(t, all(400)...)
		require.True(t, one.OK())
		require.Equal(t, "requests", one.Result().Name, "two are left of it")
		require.Equal(t, []string{"requests", "tokens", "account-c"}, namesOf(one.Results()))
		for i, n := range []int{1, 400, 1} {
			require.Equal(t, n, one.Results()[i].Granted)
		}
		left(2, 600, 1600, 1)

		denied := reserveAll(t, all(601)...)
		require.False(t, denied.Result().Allowed)
		require.Equal(t, "tokens", denied.Result().Name)
		require.Equal(t, []string{"tokens"}, namesOf(denied.Results()))
		left(2, 600, 1600, 1)
		require.False(t, denied.OK())
		require.ErrorIs(t, denied.Settle(t.Context(), 1, 2, 3), ginlimit.ErrInvalidArgument)
		require.NoError(t, denied.Cancel(t.Context()))
		left(2, 600, 1600, 1)

		never := reserveAll(t, all(1001)...)
		require.Equal(t, ginlimit.CauseNever, never.Result().Cause)
		left(2, 600, 1600, 1)

		two := reserveAll(t, all(1)...)
		left(1, 599, 1599, 0)
		require.Equal(t, []string{"account-c"}, namesOf(reserveAll(t, all(1)...).Results()))
		left(1, 599, 1599, 0)
		require.NoError(t, two.Cancel(t.Context()))
		left(2, 600, 1600, 1)

		for _, wrong := range [][]int{nil, {1}, {1, 2}, {1, 2, 3, 4}, {1, -1, 1}, {-2, -3, 1}} {
			require.ErrorIs(t, one.Settle(t.Context(), wrong...), ginlimit.ErrInvalidArgument, "%v", wrong)
		}
		require.ErrorContains(t, one.Settle(t.Context(), -2, -3), "-2")
		require.ErrorContains(t, one.Settle(t.Context(), -2, -3), "-3")
		left(2, 600, 1600, 1)
		require.NoError(t, one.Settle(t.Context(), 0, 450, 1))
		left(3, 550, 1550, 1)
		require.NoError(t, one.Settle(t.Context(), 1, 1, 1), "once")
		left(3, 550, 1550, 1)
		one.Release()
		left(3, 550, 1550, 2)
		require.NoError(t, one.Cancel(t.Context()))
		left(3, 550, 1550, 2)
	})
}

// TestReserveAllRefusesCharges, and names every fault. Nothing is charged.
func TestReserveAllRefusesCharges(t *testing.T) {
	t.Parallel()
	l := testkit.NewLocal(t)
	p, q := testkit.NewPolicy(t, l, "p", ginlimit.PerHour(9)), testkit.NewPolicy(t, l, "q", ginlimit.PerHour(9))
	shared := testkit.NewPolicy(t, l, "shared", ginlimit.PerHour(9), ginlimit.WithShares(unusedTenant))
	leased := testkit.NewPolicy(t, l, "leased", ginlimit.PerHour(9), ginlimit.WithLease(time.Second))
	other := testkit.NewPolicy(t, testkit.NewLocal(t), "p", ginlimit.PerHour(9))
	for name, row := range map[string]struct {
		charges []ginlimit.Charge
		want    []string
	}{
		"none":          {nil, []string{"without a charge"}},
		"no policy":     {[]ginlimit.Charge{charge(p, "k", 1), charge(nil, "k", 1)}, []string{"(charge 2)"}},
		"a zero policy": {[]ginlimit.Charge{charge(new(ginlimit.Policy), "k", 1)}, []string{"not made by"}},
		"twice": {[]ginlimit.Charge{charge(p, "k", 1), charge(q, "k", 1), charge(p, "k", 2)},
			[]string{"keys of charge 1", "(charge 3)"}},
		"two limiters": {[]ginlimit.Charge{charge(p, "k", 1), charge(other, "k", 1)},
			[]string{"another limiter", "(charge 2)"}},
		"a lease": {[]ginlimit.Charge{charge(p, "k", 1), charge(leased, "k", 1)}, []string{"(charge 2)",
			"WithLease does not go together with other policies in AllOf or ReserveAll", "leave WithLease out"}},
		"no tenant": {[]ginlimit.Charge{charge(p, "k", 1), charge(shared, "k", 1)},
			[]string{"Share(tenant, weight)", "(charge 2)"}},
		"all at once": {[]ginlimit.Charge{charge(p, "", 0), charge(q, "k", -1), charge(nil, "", 1)}, []string{
			"(charge 1)", "cost of 0", "cost of -1", "(charge 2)", "(charge 3)",
		}},
	} {
		r, err := ginlimit.ReserveAll(t.Context(), row.charges...)
		require.Nil(t, r, name)
		for _, want := range row.want {
			require.ErrorContains(t, err, want, name)
		}
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument, name)
	}
	require.Equal(t, []int{9, 9}, append(remaining(t, p), remaining(t, q)...))
	two := reserveAll(t, charge(p, "a", 1), charge(p, "b", 1))
	require.True(t, two.Result().Allowed, "two clients of one policy")
}

// TestReserveAllFailsAsItsLimits do, with nothing charged.
func TestReserveAllFailsAsItsLimits(t *testing.T) {
	t.Parallel()
	lost := errors.New("lost")
	var seen []ginlimit.Event
	l := testkit.NewLocal(t, ginlimit.WithObserver(func(_ context.Context, e ginlimit.Event) { seen = append(seen, e) }))
	p := testkit.NewPolicy(t, l, "p", ginlimit.PerHour(9))
	fails := ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) { return nil, lost })
	q, dry := testkit.NewPolicy(t, l, "q", fails), testkit.NewPolicy(t, l, "dry", fails, ginlimit.WithDryRun())
	require.ErrorIs(t, testkit.Err(ginlimit.ReserveAll(t.Context(), charge(p, "k", 1), charge(q, "k", 1))), lost)
	require.Equal(t, []int{9}, remaining(t, p))
	r := reserveAll(t, charge(dry, "k", 1), charge(p, "k", 1))
	require.Equal(t, []string{"p"}, namesOf(r.Results()), "a dry run that cannot decide stops nobody")
	require.NoError(t, r.Settle(t.Context(), 5, 2))
	require.Equal(t, []int{7}, remaining(t, p))
	require.ErrorIs(t, testkit.Err(ginlimit.ReserveAll(t.Context(), charge(dry, "k", 1))), lost)
	var events []string
	for _, e := range seen {
		events = append(events, e.Name+" "+e.Outcome.String())
	}
	require.Equal(t, []string{"q failed", "dry failed", "p allowed", "p settled", "dry failed"}, events)
}

// TestEventsOfReserveAll: one of each policy, of a denial those that deny.
func TestEventsOfReserveAll(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		var seen []ginlimit.Event
		l := testkit.NewLocal(t, ginlimit.WithObserver(func(_ context.Context, e ginlimit.Event) {
			e.Duration = 0
			seen = append(seen, e)
		}))
		p := testkit.NewPolicy(t, l, "p", ginlimit.PerHour(9))
		q := testkit.NewPolicy(t, l, "q", ginlimit.PerHour(5), ginlimit.InFlight(1))
		charges := []ginlimit.Charge{charge(p, "k", 3), charge(q, "k", 4)}
		r := reserveAll(t, charges...)
		require.Equal(t, []ginlimit.Event{
			{Name: "p", Allowed: true, Limit: ginlimit.PerHour(9), Remaining: 6, ResetAfter: 20 * time.Minute,
				Source: ginlimit.FromLocal, Cost: 3, Charged: 3},
			{Name: "q", Allowed: true, Limit: ginlimit.PerHour(5), Remaining: 1, ResetAfter: 48 * time.Minute,
				Source: ginlimit.FromLocal, Cost: 4, Charged: 4},
		}, seen)
		seen = nil
		reserveAll(t, charges...)
		require.Equal(t, []ginlimit.Event{{Name: "q", Outcome: ginlimit.OutcomeDenied, Limit: ginlimit.PerHour(5),
			Remaining: 1, ResetAfter: 48 * time.Minute, Source: ginlimit.FromLocal, Cause: ginlimit.CauseRate, Cost: 4}}, seen)
		r.Release()
	})
}

// TestADefaultLeaseServesNoOtherPolicies of AllOf and ReserveAll, also where the others are skipped.
func TestADefaultLeaseServesNoOtherPolicies(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t)
		key := ginlimit.WithKey(func(*gin.Context) (string, error) { return "k", nil })
		p := testkit.NewPolicy(t, l, "p", testkit.LeasePerMinute, key)
		q := testkit.NewPolicy(t, l, "q", testkit.LeasePerMinute, key,
			ginlimit.WithSkip(func(*gin.Context) bool { return true }))
		router := testkit.Serve(ginlimit.AllOf(p, q), func(c *gin.Context) {
			r, _ := ginlimit.FromContext(c)
			for _, r := range append(ginlimit.Results(c), r) {
				assert.NotEqual(t, ginlimit.FromLease, r.Source)
			}
		})
		for range 30 {
			require.Equal(t, http.StatusOK, testkit.Get(router, "/").Code)
			r := testkit.Must(ginlimit.ReserveAll(t.Context(), charge(p, "k", 1), charge(q, "k", 1)))
			require.Equal(t, ginlimit.FromRedis, r.Result().Source)
		}
	})
}

// TestObserversThatPanicHoldNoSlot of any policy.
func TestObserversThatPanicHoldNoSlot(t *testing.T) {
	t.Parallel()
	l := testkit.NewLocal(t, ginlimit.WithObserver(func(_ context.Context, e ginlimit.Event) {
		if e.Name == "q" {
			panic("observer")
		}
	}))
	p, q := testkit.NewPolicy(t, l, "p", ginlimit.InFlight(1)), testkit.NewPolicy(t, l, "q", ginlimit.InFlight(1))
	for range 3 {
		require.PanicsWithValue(t, "observer", func() {
			_, _ = ginlimit.ReserveAll(t.Context(), charge(p, "k", 1), charge(q, "k", 1))
		})
		require.Zero(t, l.Stats().Slots)
	}
}

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

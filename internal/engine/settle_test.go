package engine_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// settling returns an Ask of which tokens may come back.
func settling(client string, set *rules.Set) engine.Ask {
	one := ask(client, set)
	one.Settles = true
	return one
}

// settle makes each of the charges one of so many tokens.
func settle(t *testing.T, e *engine.Engine, actual int64, charges ...engine.Charge) []error {
	t.Helper()
	each := slices.Repeat([]int64{actual}, len(charges))
	return e.Settle(t.Context(), each, charges, func(context.Context, []engine.Answer) {})
}

// TestAWindowThatMayBeOverGetsNothingBack: Redis' clock may be faster, this process' own is not.
func TestAWindowThatMayBeOverGetsNothingBack(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		b, _ := bucket.New(bucket.FixedWindow, "fixed", 10, 10, 60_000)
		one := settling("k", setOf(b))
		a := take(t, e, 4, one)
		time.Sleep(time.Minute - 100*ms)
		require.Empty(t, settle(t, e, 0, a.Charge(&one)))
		want := map[bool]int64{true: 10, false: 6}
		require.Equal(t, want[e.IsLocal()], left(t, e, one))
	})
}

// TestNothingIsSettledOfWhatTookNothing: a denial, a set that counts nothing, what was allowed in
// an outage, and no charge at all.
func TestNothingIsSettledOfWhatTookNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		require.Nil(t, settle(t, e, 5))
		require.Empty(t, settle(t, e, 5, engine.Charge{}))
		banOnly := settling("ban", setOf(bucket.NewBan(1000, 1000)))
		a := take(t, e, 1, banOnly)
		require.Empty(t, settle(t, e, 5, a.Charge(&banOnly)))
		b.outage(t, e)
		one := settling("k", setOf(perMinute(10)))
		one.Failure = engine.FailOpen
		a = take(t, e, 4, one)
		charge := a.Charge(&one)
		require.Empty(t, settle(t, e, 9, charge))
		require.Empty(t, settle(t, e, 0, charge))
		require.Zero(t, e.Stats().Local)
		b.repair()
		require.EqualValues(t, 10, left(t, e, one))
		a = take(t, e, 5, one)
		denied := take(t, e, 6, one)
		charge = denied.Charge(&one)
		b.Sent.Store(0)
		require.Empty(t, settle(t, e, 0, charge))
		require.Zero(t, b.Sent.Load())
		require.EqualValues(t, 5, left(t, e, one))
	})
}

// TestChargesAreSettledAtTheSameTime, and every error is returned.
func TestChargesAreSettledAtTheSameTime(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.turns(t)
		var charges []engine.Charge
		var asks []engine.Ask
		for _, client := range []string{"one", "two", "three"} {
			one := settling(client, setOf(perMinute(10)))
			a := take(t, e, 4, one)
			charges, asks = append(charges, a.Charge(&one)), append(asks, one)
		}
		b.Delay.Store(int64(10 * ms))
		start := time.Now()
		var answers []engine.Answer
		require.Empty(t, e.Settle(t.Context(), []int64{3, 9, 0}, charges, func(_ context.Context, all []engine.Answer) {
			answers = all
		}))
		require.Less(t, time.Since(start), 21*ms)
		for i, want := range []int64{7, 1, 10} {
			require.NoError(t, answers[i].Failed)
			require.EqualValues(t, want, answers[i].Remaining)
			require.EqualValues(t, want, left(t, e, asks[i]), "each by its own amount")
		}
		b.Delay.Store(int64(time.Second))
		start = time.Now()
		errs := settle(t, e, 2, charges...)
		require.Len(t, errs, 3)
		for _, err := range errs {
			require.ErrorIs(t, err, engine.ErrUnavailable)
		}
		require.Equal(t, timeout+timeout/10, time.Since(start))
	})
}

// TestSettlingVoidsDenialsAndWakesThoseWhoWait.
func TestSettlingVoidsDenialsAndWakesThoseWhoWait(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one := settling("k", setOf(perHour(10)))
		a := take(t, e, 10, one)
		take(t, e, 1, one)
		waiting := ask("k", one.Set)
		done := goes(func() error { return waitN(t.Context(), e, 1, &waiting, new(engine.Answer)) })
		time.Sleep(time.Second / 2)
		start := time.Now()
		require.Empty(t, settle(t, e, 5, a.Charge(&one)))
		require.NoError(t, <-done)
		require.Zero(t, time.Since(start))
		require.Zero(t, e.Stats().Denials)
	})
}

// TestASettleEndsNoLease, whether it gives back or charges more, nor does a refund.
func TestASettleEndsNoLease(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		one := leasing("k")
		reserved := one
		reserved.Settles = true
		less, more := take(t, e, 5, reserved), take(t, e, 5, reserved)
		sources(t, e, 10, one)
		require.Equal(t, 1, e.Stats().Leases)
		require.Empty(t, settle(t, e, 1, less.Charge(&reserved)))
		require.Empty(t, settle(t, e, 9, more.Charge(&reserved)))
		require.Equal(t, 1, e.Stats().Leases)
		require.NoError(t, e.Refund(t.Context(), 1, &one))
		require.Equal(t, 1, e.Stats().Leases)
		require.Equal(t, "l", sources(t, e, 1, one))
	})
}

// TestAResetEndsWhatMayBeSettled, of the charges before it.
func TestAResetEndsWhatMayBeSettled(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one := settling("k", setOf(perMinute(10)))
		old := take(t, e, 4, one)
		time.Sleep(100 * ms)
		require.NoError(t, e.Reset(t.Context(), &one))
		time.Sleep(2*timeout + ms) // then the reset was before, even if what is given back is late
		young := take(t, e, 4, one)
		require.Empty(t, settle(t, e, 0, old.Charge(&one)))
		require.EqualValues(t, 6, left(t, e, one))
		require.Empty(t, settle(t, e, 0, young.Charge(&one)))
		require.EqualValues(t, 10, left(t, e, one))
	})
}

// TestWindowsAreSettledByTheirMarks.
func TestWindowsAreSettledByTheirMarks(t *testing.T) {
	for name, kind := range map[string]bucket.Kind{"fixed": bucket.FixedWindow, "sliding": bucket.SlidingWindow} {
		t.Run(name, func(t *testing.T) {
			onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
				b, _ := bucket.New(kind, name, 10, 10, 60_000)
				one := settling("k", setOf(b))
				first := take(t, e, 4, one)
				time.Sleep(30 * time.Second)
				second := take(t, e, 3, one)
				require.Empty(t, settle(t, e, 1, second.Charge(&one)))
				require.EqualValues(t, 5, left(t, e, one))
				time.Sleep(30 * time.Second)
				require.Empty(t, settle(t, e, 0, first.Charge(&one)))
				want := map[string]int64{"fixed": 10, "sliding": 9}
				require.Equal(t, want[name], left(t, e, one), "its tokens are back already")
			})
		})
	}
}

// TestDebtOfASettleLasts as long as its tokens take to come back.
func TestDebtOfASettleLasts(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one := settling("k", setOf(perMinute(10)))
		a := take(t, e, 4, one)
		require.Empty(t, settle(t, e, 15, a.Charge(&one)))
		require.Equal(t, 36*time.Second, take(t, e, 1, one).RetryAfter)
	})
}

// TestATenantIsChargedWhatItsSettlementAdds in an outage, too: it then holds its share.
func TestATenantIsChargedWhatItsSettlementAdds(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		b.outage(t, e)
		a := sharing("k", 100)
		a.Failure, a.Settles = engine.FailLocal, true
		other := a
		other.Tenant.Name = ":b"
		answer := take(t, e, 5, a)
		require.Equal(t, engine.FromLocal, answer.Source)
		require.Empty(t, settle(t, e, 50, answer.Charge(&a)))
		require.True(t, take(t, e, 1, other).Allowed)
		require.False(t, take(t, e, 1, a).Allowed, "it holds half of all")
		require.True(t, take(t, e, 40, other).Allowed)
	})
}

package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// leaseBurst is how many tokens one decision can take with a lease: 120 of 1000 are kept for what is
// held, as 60 flow back in a life.
const leaseBurst = 1000 - 2*60

// leasing returns an Ask that leased tokens may serve: 60 a minute, up to 1000, held for a minute.
func leasing(client string) engine.Ask {
	b, _ := bucket.New(bucket.Token, "m", 60, 1000, 60_000)
	return lent(client, setOf(b), time.Minute)
}

// lent returns an Ask that leased tokens may serve for a life.
func lent(client string, set *rules.Set, life time.Duration) engine.Ask {
	set.AllowLeases(life)
	one := ask(client, set)
	one.Leases = true
	return one
}

// letters of sources.
var letters = map[engine.Source]string{
	engine.FromStore: "s", engine.FromCache: "c", engine.FromLease: "l", engine.FromLocal: "p", engine.FromStatic: "-",
}

// sources takes tokens one by one, and returns where, a letter each.
func sources(t testing.TB, e *engine.Engine, times int, ask engine.Ask) (text string) {
	t.Helper()
	for range times {
		text += letters[take(t, e, 1, ask).Source]
	}
	return text
}

// TestALeaseServesWithoutRedis, with the verdict of what this process can vouch for.
func TestALeaseServesWithoutRedis(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), leasing("k")
		require.Equal(t, "ssssls", sources(t, e, 6, one))
		require.Equal(t, "lll", sources(t, e, 3, one))
		require.Equal(t, "s", sources(t, e, 1, one)) // and 7 ahead
		require.Equal(t, 1, e.Stats().Leases)
		require.EqualValues(t, 4, e.Stats().Leased)
		sent := b.Sent.Load()
		asks, answers := []engine.Ask{one}, make([]engine.Answer, 1)
		answers[0].Statuses = make([]rules.Status, 2)
		require.NoError(t, takeN(t.Context(), e, 2, asks, answers))
		require.Equal(t, engine.Answer{
			Verdict: rules.Verdict{Allowed: true, Granted: 2, Remaining: 5, ResetAfter: 17 * time.Second},
			Decided: true, Source: engine.FromLease, Hash: e.Hash(&one.Subject),
			Statuses: []rules.Status{{Remaining: 5, Full: leaseBurst, More: time.Second}},
		}, answers[0])
		require.NoError(t, takeUpTo(t.Context(), e, 3, &asks[0], &answers[0]))
		require.Equal(t, engine.FromLease, answers[0].Source)
		require.EqualValues(t, 3, answers[0].Granted)
		require.EqualValues(t, 2, answers[0].Remaining)
		require.Equal(t, sent, b.Sent.Load())
		require.EqualValues(t, leaseBurst-17, left(t, b.redis(t), one))
		require.Equal(t, "s", letters[take(t, e, 3, one).Source], "more than are leased")
	})
}

// TestLeasesServeOnlyWhatTakesTokensForGood of limits that may be leased, of which rules.TestMayLease has all.
func TestLeasesServeOnlyWhatTakesTokensForGood(t *testing.T) {
	window, _ := bucket.New(bucket.FixedWindow, "w", 1000, 1000, 3_600_000)
	yes, windows, no := "ssssl", "sssls", "sssss"
	for name, row := range map[string]struct {
		set  *rules.Set
		want string
	}{
		"token buckets":    {setOf(limit("m", 1000, 60_000), perHour(2000)), yes},
		"a window":         {setOf(window), windows},
		"a calendar alone": {daily(1_000_000), windows},
		"slots":            {setOf(limit("m", 1000, 60_000), bucket.NewSlots(9)), no},
	} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			require.Equal(t, row.want, sources(t, b.redis(t), 5, lent("k", row.set, time.Minute)))
		})
	}
	for name, change := range map[string]func(*engine.Ask){
		"no lease is wanted":   func(a *engine.Ask) { a.Leases = false },
		"tokens may come back": func(a *engine.Ask) { a.Settles = true },
	} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			e, one := b.redis(t), leasing("k")
			change(&one)
			require.Equal(t, no, sources(t, e, 5, one))
		})
	}
	inBubbleRun(t, "a look", func(t *testing.T, b *bench) {
		e, one := b.redis(t), leasing("k")
		sources(t, e, 10, one)
		require.Equal(t, engine.FromStore, take(t, e, 0, one).Source)
	})
	t.Run("in the process", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bench) { require.Equal(t, no, sources(t, local(t), 5, leasing("k"))) })
	})
}

// TestWhatIsTakenAheadIsNoOtherAnswer: the caller sees what it would have seen alone.
func TestWhatIsTakenAheadIsNoOtherAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), leasing("k")
		require.Equal(t, "ssssl", sources(t, e, 5, one))
		a := take(t, e, 1, one) // and 3 ahead
		require.Equal(t, engine.FromStore, a.Source)
		require.EqualValues(t, 1, a.Granted)
		require.EqualValues(t, leaseBurst-6, a.Remaining)
		require.Equal(t, 9*time.Second, a.ResetAfter, "until what is taken ahead has flowed back too")
		require.EqualValues(t, leaseBurst-9, left(t, b.redis(t), one))
	})
}

// TestALookSaysWhatALeaseAdmits though Redis has no more, to this process alone.
func TestALookSaysWhatALeaseAdmits(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other, one := b.redis(t), b.redis(t), leasing("k")
		require.Equal(t, "ssssls", sources(t, e, 6, one)) // and 3 ahead
		elsewhere := one
		elsewhere.Leases = false
		require.True(t, take(t, other, leaseBurst-9, elsewhere).Allowed)
		look := func(e *engine.Engine, status bool) (a engine.Answer) {
			looks := e.Peek
			if status {
				looks = e.Status
			}
			own := one
			require.NoError(t, looks(t.Context(), &own, &a))
			return a
		}
		full := leaseBurst * time.Second
		require.False(t, look(other, false).Allowed)
		require.True(t, look(other, true).Statuses[0].Denies)
		require.Equal(t, rules.Verdict{Allowed: true, Remaining: 3, ResetAfter: full}, look(e, false).Verdict)
		require.Equal(t, []rules.Status{{Remaining: 3, Full: leaseBurst, More: time.Second, Reset: full}},
			look(e, true).Statuses)
		require.Equal(t, engine.FromStore, take(t, e, 5, one).Source)
		require.True(t, look(e, false).Allowed)
		require.Equal(t, engine.FromCache, take(t, e, 5, one).Source, "a look does not forget the denial")
		require.Equal(t, "lll", sources(t, e, 3, one))
		require.False(t, look(e, false).Allowed)
	})
}

// TestWhoIsContentWithFewerTokensGetsThoseOfRedisAndOfTheLease, all that there are.
func TestWhoIsContentWithFewerTokensGetsThoseOfRedisAndOfTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other, one := b.redis(t), b.redis(t), leasing("k")
		require.Equal(t, "ssssls", sources(t, e, 6, one)) // and 3 ahead
		take(t, other, leaseBurst-9-2, one)
		var answer engine.Answer
		require.NoError(t, takeUpTo(t.Context(), e, 10, &one, &answer))
		require.EqualValues(t, 2+3, answer.Granted)
		require.Zero(t, e.Stats().Leases)
	})
}

// TestALostRedisEndsLeases, unless it is well and refuses the call.
func TestALostRedisEndsLeases(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), leasing("k")
		sources(t, e, 10, one)
		require.Equal(t, 1, e.Stats().Leases)
		testkit.Must(b.Mini.Lpush("test:{foreign}:m", "x"))
		foreign := leasing("foreign")
		asks, answers := []engine.Ask{foreign}, make([]engine.Answer, 1)
		require.ErrorIs(t, takeN(t.Context(), e, 1, asks, answers), engine.ErrUnavailable)
		require.Equal(t, 1, e.Stats().Leases, "Redis is well")
		b.Cut.Store(true)
		require.ErrorIs(t, takeN(t.Context(), e, 1, asks, answers), engine.ErrUnavailable)
		require.Zero(t, e.Stats().Leases)
		asks[0] = one
		require.ErrorIs(t, takeN(t.Context(), e, 1, asks, answers), engine.ErrUnavailable)
		b.Cut.Store(false)
		require.Equal(t, "sl", sources(t, e, 2, one), "they are held for longer")
	})
}

// TestDeniedCallersUseWhatIsHeldForLonger: another process has taken all tokens, but those that this
// process took ahead before.
func TestDeniedCallersUseWhatIsHeldForLonger(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other, one := b.redis(t), b.redis(t), leasing("k")
		sources(t, e, 10, one) // and 7 ahead
		take(t, other, leaseBurst-17, one)
		time.Sleep(one.Set.Life * 15 / 16) // they are used no more, but can be held for longer
		take(t, other, int64(left(t, other, one)), one)
		require.Zero(t, left(t, other, one))
		sent := b.Sent.Load()
		require.Equal(t, "lllllll", sources(t, e, 7, one))
		require.Equal(t, sent+1, b.Sent.Load(), "to hold them for longer")
		require.False(t, take(t, e, 1, one).Allowed)
	})
}

// TestWhatALeaseLeavesIsGivenBack at its end, without a further call.
func TestWhatALeaseLeavesIsGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other, one := b.redis(t), b.redis(t), leasing("k")
		take(t, other, 200, one)
		sources(t, e, 10, one) // and 7 ahead
		life := one.Set.Life
		time.Sleep(life - ms)
		before := left(t, other, one)
		time.Sleep(3 * ms)
		require.EqualValues(t, before+7, left(t, other, one))
	})
}

// TestShortCallsHoldDenials: if the limit has less than was asked for, Redis is not asked again for
// half a life to three quarters, and RetryAfter says so.
func TestShortCallsHoldDenials(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other, one := b.redis(t), b.redis(t), lent("k", setOf(limit("s", 100, 1000)), 100*ms)
		life := one.Set.Life
		require.Equal(t, 98*ms, life)
		require.Equal(t, "ssssls", sources(t, e, 6, one))
		take(t, other, 80-9, one)
		require.Equal(t, "lll", sources(t, e, 3, one))
		start := time.Now()
		a := take(t, e, 1, one)
		require.Equal(t, engine.FromStore, a.Source)
		require.False(t, a.Allowed)
		hold := a.RetryAfter
		require.GreaterOrEqual(t, hold, life/2)
		require.LessOrEqual(t, hold, life*3/4+ms)
		sent := b.Sent.Load()
		for time.Since(start) < hold-2*ms {
			a := take(t, e, 1, one)
			require.Equal(t, engine.FromCache, a.Source)
			require.Equal(t, hold, (a.RetryAfter + time.Since(start)).Round(ms))
			time.Sleep(ms)
		}
		require.Equal(t, sent, b.Sent.Load())
		time.Sleep(time.Until(start.Add(hold)))
		require.True(t, take(t, e, 1, one).Allowed)
	})
}

// TestCloseGivesBackWhatACallInFlightTakesAhead, as it waits for that call.
func TestCloseGivesBackWhatACallInFlightTakesAhead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), leasing("k")
		require.Equal(t, "ssssl", sources(t, e, 5, one))
		b.Delay.Store(int64(timeout / 2))
		done := goes(func() error { return takeN(t.Context(), e, 1, []engine.Ask{one}, make([]engine.Answer, 1)) })
		start := time.Now()
		e.Close()
		require.Equal(t, timeout, time.Since(start), "the call, and what is given back")
		require.NoError(t, <-done)
		b.Delay.Store(0)
		require.EqualValues(t, leaseBurst-6, left(t, b.redis(t), one))
	})
}

// TestCloseGivesLeasedTokensBack.
func TestCloseGivesLeasedTokensBack(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		for _, client := range []string{"one", "two"} {
			require.Equal(t, "sssslsllls", sources(t, e, 10, leasing(client)))
		}
		other := b.redis(t)
		require.EqualValues(t, leaseBurst-17, left(t, other, leasing("one")))
		e.Close()
		require.EqualValues(t, leaseBurst-10, left(t, other, leasing("one")))
		require.EqualValues(t, leaseBurst-10, left(t, other, leasing("two")))
	})
}

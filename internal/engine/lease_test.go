package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/calendar"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// leasing returns an Ask that leased tokens may serve: 60 a minute, up to 1000.
func leasing(client string) engine.Ask {
	b, _ := bucket.New(bucket.Token, "m", 60, 1000, 60_000)
	one := ask(client, setOf(b))
	one.Lease = time.Minute
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
		require.Equal(t, "sssls", sources(t, e, 5, one))
		require.Equal(t, "lll", sources(t, e, 3, one))
		require.Equal(t, "s", sources(t, e, 1, one)) // and 7 ahead
		require.Equal(t, 1, e.Stats().Leases)
		require.EqualValues(t, 4, e.Stats().Leased)
		sent := b.Sent.Load()
		asks, answers := []engine.Ask{one}, make([]engine.Answer, 1)
		answers[0].Statuses = make([]rules.Status, 2)
		require.NoError(t, e.Take(t.Context(), 2, asks, answers))
		require.Equal(t, engine.Answer{
			Verdict: rules.Verdict{Allowed: true, Granted: 2, Remaining: 5, ResetAfter: 16 * time.Second},
			Decided: true, Source: engine.FromLease, Hash: e.Hash(&one),
			Statuses: []rules.Status{{Remaining: 5, Full: 1000, More: time.Second}},
		}, answers[0])
		require.NoError(t, e.TakeUpTo(t.Context(), 3, &asks[0], &answers[0]))
		require.Equal(t, engine.FromLease, answers[0].Source)
		require.EqualValues(t, 3, answers[0].Granted)
		require.EqualValues(t, 2, answers[0].Remaining)
		require.Equal(t, sent, b.Sent.Load())
		require.EqualValues(t, 1000-16, left(t, b.redis(t), one))
		require.Equal(t, "s", letters[take(t, e, 3, one).Source], "more than are leased")
	})
}

// TestLeasesServeOnlyWhatTakesTokensForGood of limits alone.
func TestLeasesServeOnlyWhatTakesTokensForGood(t *testing.T) {
	mixed := new(rules.Set)
	mixed.Add(limit("m", 1000, 60_000))
	require.True(t, mixed.AddCalendar(calendar.Rule{Unit: calendar.Day, Zone: time.UTC}, 1000))
	for name, row := range map[string]struct {
		change func(*engine.Ask)
		want   string
	}{
		"one that may be served": {func(*engine.Ask) {}, "sssls"},
		"no lease is wanted":     {func(a *engine.Ask) { a.Lease = 0 }, "sssss"},
		"tokens may come back":   {func(a *engine.Ask) { a.Settles = true }, "sssss"},
		"a ban": {func(a *engine.Ask) {
			a.Set = setOf(limit("m", 1000, 60_000), bucket.NewBan(1000, 1000))
		}, "sssss"},
		"slots":                    {func(a *engine.Ask) { a.Set = setOf(perHour(1000), bucket.NewSlots(9)) }, "sssss"},
		"a calendar beside others": {func(a *engine.Ask) { a.Set = mixed }, "sssss"},
		"a calendar alone":         {func(a *engine.Ask) { a.Set = daily(1_000_000) }, "sssls"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				e, one := b.redis(t), leasing("k")
				row.change(&one)
				require.Equal(t, row.want, sources(t, e, 5, one))
			})
		})
	}
	t.Run("a look", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bench) {
			e, one := b.redis(t), leasing("k")
			sources(t, e, 9, one)
			require.Equal(t, engine.FromStore, take(t, e, 0, one).Source)
		})
	})
	t.Run("in the process", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bench) { require.Equal(t, "sssss", sources(t, local(t), 5, leasing("k"))) })
	})
}

// TestWhatIsTakenAheadIsNoOtherAnswer: the caller sees what it would have seen alone.
func TestWhatIsTakenAheadIsNoOtherAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), leasing("k")
		require.Equal(t, "sssl", sources(t, e, 4, one))
		a := take(t, e, 1, one) // and 3 ahead
		require.Equal(t, engine.FromStore, a.Source)
		require.EqualValues(t, 1, a.Granted)
		require.EqualValues(t, 1000-5, a.Remaining)
		require.EqualValues(t, 1000-8, left(t, b.redis(t), one))
	})
}

// TestLeasesOfALostRedisAreVoid, unless it is well and refuses the call.
func TestLeasesOfALostRedisAreVoid(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), leasing("k")
		sources(t, e, 9, one)
		require.Equal(t, 1, e.Stats().Leases)
		_, err := b.Mini.Lpush("test:{foreign}:m", "x")
		require.NoError(t, err)
		foreign := leasing("foreign")
		asks, answers := []engine.Ask{foreign}, make([]engine.Answer, 1)
		require.ErrorIs(t, e.Take(t.Context(), 1, asks, answers), engine.ErrUnavailable)
		require.Equal(t, 1, e.Stats().Leases, "Redis is well")
		b.Cut.Store(true)
		require.ErrorIs(t, e.Take(t.Context(), 1, asks, answers), engine.ErrUnavailable)
		require.Zero(t, e.Stats().Leases)
		asks[0] = one
		require.ErrorIs(t, e.Take(t.Context(), 1, asks, answers), engine.ErrUnavailable)
	})
}

// TestALeaseServesWhoWantsOne, however short.
func TestALeaseServesWhoWantsOne(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), leasing("k")
		sources(t, e, 9, one)
		one.Lease = 1
		require.Equal(t, "l", sources(t, e, 1, one))
		one.Lease = 0
		require.Equal(t, "s", sources(t, e, 1, one))
	})
}

// TestACallThatFailedKeepsNobodyFromTakingAhead.
func TestACallThatFailedKeepsNobodyFromTakingAhead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), leasing("k")
		require.Equal(t, "sssl", sources(t, e, 4, one))
		b.Cut.Store(true)
		require.Error(t, e.Take(t.Context(), 1, []engine.Ask{one}, make([]engine.Answer, 1)))
		b.Cut.Store(false)
		require.Equal(t, "ssls", sources(t, e, 4, one))
	})
}

// TestCloseGivesLeasedTokensBack.
func TestCloseGivesLeasedTokensBack(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		for _, client := range []string{"one", "two"} {
			require.Equal(t, "ssslsllls", sources(t, e, 9, leasing(client)))
		}
		other := b.redis(t)
		require.EqualValues(t, 1000-16, left(t, other, leasing("one")))
		e.Close()
		require.EqualValues(t, 1000-9, left(t, other, leasing("one")))
		require.EqualValues(t, 1000-9, left(t, other, leasing("two")))
	})
}

// TestCloseGivesBackWhatACallInFlightTakesAhead, as it waits for that call.
func TestCloseGivesBackWhatACallInFlightTakesAhead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), leasing("k")
		require.Equal(t, "sssl", sources(t, e, 4, one))
		b.Delay.Store(int64(timeout / 2))
		done := goes(func() error { return e.Take(t.Context(), 1, []engine.Ask{one}, make([]engine.Answer, 1)) })
		start := time.Now()
		e.Close()
		require.Equal(t, timeout, time.Since(start), "the call, and what is given back")
		require.NoError(t, <-done)
		b.Delay.Store(0)
		require.EqualValues(t, 1000-5, left(t, b.redis(t), one))
	})
}

// TestWhatMayComeTooLateIsNotGivenBack: what flows back within twice the timeout and a fifth is
// void, as Redis may be asked that late.
func TestWhatMayComeTooLateIsNotGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for _, row := range []struct {
			idle time.Duration
			left int64
		}{{8881 * ms, 998}, {8882 * ms, 997}} { // of 15 tokens, of which 9 are void by then
			e, one := b.redis(t), leasing("after "+row.idle.String())
			require.Equal(t, "ssslsllls", sources(t, e, 9, one)) // 16 are taken, 7 of them not used
			time.Sleep(row.idle)
			e.Close()
			require.Equal(t, row.left, left(t, b.redis(t), one))
		}
	})
}

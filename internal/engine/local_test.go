package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/calendar"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// failing returns an Ask with a failure mode.
func failing(client string, set *rules.Set, f engine.Failure) engine.Ask {
	one := ask(client, set)
	one.Failure = f
	return one
}

// TestWhoDecidesInAnOutageIsTheAsksChoice: this process by its share, nobody, or everything is
// allowed.
func TestWhoDecidesInAnOutageIsTheAsksChoice(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.replica(t)
		b.outage(t, e)
		asks, answers := []engine.Ask{failing("k", setOf(perMinute(20)), engine.FailClosed)}, make([]engine.Answer, 1)
		require.ErrorIs(t, takeN(t.Context(), e, 1, asks, answers), engine.ErrUnavailable)
		require.False(t, answers[0].Decided)
		require.Equal(t, "breaker_open", engine.Reason(answers[0].Err))

		asks[0].Failure = engine.FailOpen
		for range 2 {
			require.NoError(t, takeN(t.Context(), e, 20, asks, answers))
			require.Equal(t, rules.Verdict{Allowed: true, Granted: 20, ResetAfter: time.Minute}, answers[0].Verdict)
			require.Equal(t, engine.FromOpen, answers[0].Source)
			require.True(t, answers[0].Decided)
			require.Len(t, answers[0].Statuses, 1)
		}
		require.Zero(t, e.Stats().Local)

		asks[0].Failure = engine.FailLocal
		for _, row := range []struct {
			n    int64
			want rules.Verdict
		}{
			{8, rules.Verdict{Allowed: true, Granted: 8, Remaining: 2, ResetAfter: 48 * time.Second}},
			{3, rules.Verdict{Remaining: 2, RetryAfter: 6 * time.Second, ResetAfter: 48 * time.Second}},
			{2, rules.Verdict{Allowed: true, Granted: 2, ResetAfter: time.Minute}},
			{0, rules.Verdict{Allowed: true, ResetAfter: time.Minute}},
		} {
			require.NoError(t, takeN(t.Context(), e, row.n, asks, answers))
			require.Equal(t, row.want, answers[0].Verdict)
			require.Equal(t, engine.FromLocal, answers[0].Source)
			require.Error(t, answers[0].Err)
		}
		require.Equal(t, 1, e.Stats().Local)
		require.Zero(t, e.Stats().Denials, "what this process denies is not remembered")
		time.Sleep(time.Minute)
		for _, row := range []struct{ n, granted int64 }{{1, 1}, {2, 2}, {3, 3}, {100, 4}} {
			require.NoError(t, takeUpTo(t.Context(), e, row.n, &asks[0], &answers[0]))
			require.Equal(t, row.granted, answers[0].Granted)
		}
		time.Sleep(time.Minute)
		require.NoError(t, e.Peek(t.Context(), &asks[0], &answers[0]))
		require.Equal(t, rules.Verdict{Allowed: true, Remaining: 10}, answers[0].Verdict)

		b.repair()
		answer := take(t, e, 1, asks[0])
		require.Equal(t, engine.FromStore, answer.Source)
		require.EqualValues(t, 19, answer.Remaining)
		require.NoError(t, answer.Err)
	})
}

// TestMoreThanAShareHoldsWaitsUntilItIsFull, or until the calendar period ends.
func TestMoreThanAShareHoldsWaitsUntilItIsFull(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.replica(t)
		b.outage(t, e)
		a := take(t, e, 15, failing("k", setOf(perMinute(20)), engine.FailLocal))
		require.Equal(t, rules.Verdict{Allowed: true, Granted: 15, ResetAfter: 90 * time.Second}, a.Verdict)
		a = take(t, e, 21, failing("k", setOf(perMinute(20)), engine.FailLocal))
		require.Equal(t, rules.Never, a.RetryAfter)

		set := daily(20)
		for _, row := range []struct {
			n     int64
			f     engine.Failure
			after time.Duration
		}{
			{20, engine.FailLocal, time.Until(time.UnixMilli(set.Ends()))},
			{21, engine.FailLocal, rules.Never},
			{21, engine.FailOpen, rules.Never},
		} {
			a := take(t, e, row.n, failing("k", set, row.f))
			require.False(t, a.Allowed)
			require.Equal(t, row.after, a.RetryAfter, row)
		}
		require.True(t, take(t, e, 10, failing("k", set, engine.FailLocal)).Allowed)
		a = take(t, e, 10, failing("k", set, engine.FailLocal))
		require.Equal(t, time.Until(time.UnixMilli(set.Ends())), a.RetryAfter)
	})
}

// TestMoreThanAShareWaitsForItsOwnPeriod, not for one that ends sooner.
func TestMoreThanAShareWaitsForItsOwnPeriod(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.replica(t)
		b.outage(t, e)
		set := func(month, day int64) *rules.Set {
			s := new(rules.Set)
			require.True(t, s.AddCalendar(calendar.Rule{Unit: calendar.Month, First: 1, Zone: time.UTC}, month))
			require.True(t, s.AddCalendar(calendar.Rule{Unit: calendar.Day, Zone: time.UTC}, day))
			return s
		}
		now := time.Now().UTC()
		untilMonth := time.Until(time.Date(now.Year(), now.Month()+1, 1, 0, 0, 0, 0, time.UTC))
		untilDay := time.Until(time.Date(now.Year(), now.Month(), now.Day()+1, 0, 0, 0, 0, time.UTC))
		for _, row := range []struct {
			client     string
			month, day int64
			after      time.Duration
		}{
			{"month", 20, 100, untilMonth},
			{"day", 100, 20, untilDay},
			{"both", 20, 20, untilMonth},
		} {
			a := take(t, e, 15, failing(row.client, set(row.month, row.day), engine.FailLocal))
			require.False(t, a.Allowed, row.client)
			require.Equal(t, row.after, a.RetryAfter, row.client)
		}
		usedUp := set(40, 20)
		require.True(t, take(t, e, 10, failing("used", usedUp, engine.FailLocal)).Allowed)
		a := take(t, e, 15, failing("used", usedUp, engine.FailLocal))
		require.Equal(t, untilMonth, a.RetryAfter, "the month's share has only ten left")
	})
}

// TestAnAnswerThatIsLateIsDecidedWithoutRedis after the timeout, or never after the caller's
// context.
func TestAnAnswerThatIsLateIsDecidedWithoutRedis(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		asks, answers := []engine.Ask{failing("k", setOf(perMinute(20)), engine.FailLocal)}, make([]engine.Answer, 1)
		take(t, e, 1, asks[0])
		b.Delay.Store(int64(time.Second))
		start := time.Now()
		require.NoError(t, takeN(t.Context(), e, 5, asks, answers))
		require.Equal(t, timeout+timeout/10, time.Since(start))
		require.Equal(t, engine.FromLocal, answers[0].Source)
		require.EqualValues(t, 15, answers[0].Remaining)
		require.Equal(t, "late", engine.Reason(answers[0].Err))

		ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
		defer cancel()
		err := takeN(ctx, e, 5, asks, answers)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, engine.ErrUnavailable)
		require.False(t, answers[0].Decided)
		require.EqualValues(t, 15, take(t, e, 0, asks[0]).Remaining)
	})
}

// TestALeasedCallThatFailsIsDecidedAsItWasAsked, not as what it would have taken ahead.
func TestALeasedCallThatFailsIsDecidedAsItWasAsked(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), leasing("k")
		one.Failure = engine.FailLocal
		require.Equal(t, "ssssl", sources(t, e, 5, one))
		b.Delay.Store(int64(time.Second)) // it would take 3 ahead
		a := take(t, e, 1, one)
		require.Equal(t, engine.FromLocal, a.Source)
		require.EqualValues(t, 1, a.Granted)
		require.EqualValues(t, leaseBurst-1, a.Remaining)
	})
}

// TestACloseInBetweenIsNoOutage: nobody decides without Redis on what Close has ended.
func TestACloseInBetweenIsNoOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		take(t, e, 1, ask("k", setOf(perMinute(20))))
		b.Delay.Store(int64(40 * ms))
		// All places are taken, so the third call is queued when the engine is closed.
		var done []<-chan error
		answers := make([]engine.Answer, 3)
		for i := range answers {
			asks := []engine.Ask{failing("k", setOf(perMinute(20)), engine.FailLocal)}
			done = append(done, goes(func() error { return takeN(t.Context(), e, 1, asks, answers[i:i+1]) }))
		}
		e.Close()
		require.NoError(t, <-done[0])
		for i := range answers[1:] {
			if err := <-done[1+i]; err != nil {
				require.True(t, errors.Is(err, engine.ErrClosed))
				require.ErrorIs(t, err, engine.ErrUnavailable)
			}
		}
	})
}

// TestTheErrorIsOfTheAskThatFailsClosed, not of those on which this process would have decided.
func TestTheErrorIsOfTheAskThatFailsClosed(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, answers := b.redis(t), make([]engine.Answer, 3)
		asks := []engine.Ask{
			failing("a", setOf(perMinute(20)), engine.FailLocal), failing("b", setOf(perMinute(20)), engine.FailClosed),
			failing("c", setOf(perMinute(20)), engine.FailOpen),
		}
		b.Cut.Store(true)
		require.ErrorIs(t, takeN(t.Context(), e, 1, asks, answers), engine.ErrUnavailable)
		require.Equal(t, []bool{false, true, false},
			[]bool{answers[0].Err != nil, answers[1].Err != nil, answers[2].Err != nil})
	})
}

// TestSeveralAsksInAnOutageAreDecidedAsOne: nothing is taken if one is denied.
func TestSeveralAsksInAnOutageAreDecidedAsOne(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*bench, testing.TB) *engine.Engine{
		"together": (*bench).redis, "in turn": (*bench).turns,
	} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			e := start(b, t)
			b.outage(t, e)
			one := failing("one", setOf(perMinute(10)), engine.FailLocal)
			two := failing("two", setOf(perMinute(5)), engine.FailLocal)
			free := ask("free", new(rules.Set))
			asks, answers := []engine.Ask{one, free, two}, make([]engine.Answer, 3)
			require.NoError(t, takeN(t.Context(), e, 4, asks, answers))
			static := outcome{true, true, 4, 1<<63 - 1, engine.FromStatic}
			require.Equal(t, []outcome{
				{true, true, 4, 6, engine.FromLocal}, static, {true, true, 4, 1, engine.FromLocal},
			}, outcomes(answers))
			require.Equal(t, e.Hash(&one.Subject), answers[0].Hash)
			asks = []engine.Ask{one, free, two}
			require.NoError(t, takeN(t.Context(), e, 4, asks, answers))
			require.Equal(t, []outcome{
				{true, true, 0, 6, engine.FromLocal}, static, {true, false, 0, 1, engine.FromLocal},
			}, outcomes(answers))
			require.Equal(t, []rules.Status{{Remaining: 6, Full: 10, More: 6 * time.Second}}, answers[0].Statuses)
			require.EqualValues(t, 6, left(t, e, one))
			require.NoError(t, takeN(t.Context(), e, 0, asks, answers))
			require.True(t, answers[2].Allowed)
			require.NoError(t, takeN(t.Context(), e, 1, asks, answers))
			require.NoError(t, takeN(t.Context(), e, 0, asks, answers))
			require.True(t, answers[2].Allowed)
			require.Zero(t, answers[2].RetryAfter)

			asks[2].Failure = engine.FailClosed
			require.ErrorIs(t, takeN(t.Context(), e, 1, asks, answers), engine.ErrUnavailable)
			require.EqualValues(t, 5, left(t, e, one))
		})
	}
}

// TestLocalSlotsAreThoseOfThisProcess in an outage, and are released.
func TestLocalSlotsAreThoseOfThisProcess(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.replica(t)
		one := failing("k", setOf(perMinute(20), bucket.NewSlots(5)), engine.FailLocal)
		held := take(t, e, 1, one)
		require.True(t, held.HasSlot())
		b.outage(t, e)
		second := take(t, e, 1, one)
		require.Equal(t, engine.FromLocal, second.Source)
		require.True(t, second.HasSlot())
		a := take(t, e, 1, one)
		require.False(t, a.Allowed, "the share is 2")
		require.Equal(t, 1, a.Resource)
		require.False(t, a.HasSlot())
		require.Equal(t, 2, e.Stats().Slots)
		var peeked [1]engine.Answer
		require.NoError(t, e.Peek(t.Context(), &one, &peeked[0]))
		require.Equal(t, 1, peeked[0].Resource)
		require.False(t, peeked[0].Allowed)
		charge := held.Charge(&one)
		e.Release(&charge)
		require.Equal(t, 1, e.Stats().Slots)
		require.NoError(t, e.Peek(t.Context(), &one, &peeked[0]))
		require.True(t, peeked[0].Allowed)
		last := take(t, e, 1, one)
		require.True(t, last.HasSlot())
		b.repair()
		a = take(t, e, 1, one)
		require.True(t, a.HasSlot(), "of 5 in Redis, 2 are held")
		require.EqualValues(t, 2, a.Statuses[1].Remaining)
	})
}

// TestAllowedSlotsAreHeldInAnOutage too, where everything is allowed.
func TestAllowedSlotsAreHeldInAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		b.outage(t, e)
		one := acquiring("k", 1)
		one.Failure = engine.FailOpen
		first, second := take(t, e, 1, one), take(t, e, 1, one)
		require.True(t, first.HasSlot())
		require.True(t, second.HasSlot())
		require.Equal(t, 2, e.Stats().Slots)
		release(e, one, first)
		require.Equal(t, 1, e.Stats().Slots)
	})
}

// TestASlotThatRedisGrantedAndThisProcessDidNotIsFree when Redis hears of it. One that Redis
// denied needs no report.
func TestASlotThatRedisGrantedAndThisProcessDidNotIsFree(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other := b.redis(t), b.redis(t)
		one := failing("k", setOf(perHour(5), bucket.NewSlots(1)), engine.FailLocal)
		tokens := scoped(one, rules.Tokens)
		take(t, other, 1, ask("warm", one.Set))
		b.Cut.Store(true)
		require.Equal(t, engine.FromLocal, take(t, e, 5, tokens).Source)
		b.Cut.Store(false)
		time.Sleep(time.Second)
		b.CutAfter.Store(true)
		a := take(t, e, 1, one)
		require.Equal(t, engine.FromLocal, a.Source)
		require.False(t, a.Allowed)
		b.CutAfter.Store(false)
		time.Sleep(time.Second)
		require.True(t, take(t, other, 1, one).Allowed)

		testkit.Must(b.Mini.Lpush("test:{foreign}:h", "x"))
		one.Client, tokens.Client = "foreign", "foreign"
		take(t, e, 5, tokens)
		b.Sent.Store(0)
		require.False(t, take(t, e, 1, one).Allowed)
		synctest.Wait()
		require.EqualValues(t, 1, b.Sent.Load())
	})
}

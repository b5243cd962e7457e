package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// acquiring returns an Ask that takes one of so many slots, and tokens of an hour.
func acquiring(client string, slots int64) engine.Ask {
	one := ask(client, setOf(perHour(1000), bucket.NewSlots(slots)))
	return one
}

// release gives the slot of a decision back, and waits until Redis knows.
func release(e *engine.Engine, ask engine.Ask, answer engine.Answer) {
	charge := answer.Charge(&ask)
	e.Release(&charge)
	synctest.Wait()
}

// noSlot is the verdict if there is no slot.
var noSlot = rules.Verdict{Resource: 1, RetryAfter: time.Second, ResetAfter: time.Second}

// TestASlotIsHeldUntilItIsReleased.
func TestASlotIsHeldUntilItIsReleased(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one := acquiring("k", 2)
		first, second := take(t, e, 1, one), take(t, e, 1, one)
		require.True(t, first.HasSlot())
		require.True(t, second.HasSlot())
		require.Equal(t, 2, e.Stats().Slots)
		for range 2 { // the second time from the cache, if there is one
			a := take(t, e, 1, one)
			require.Equal(t, noSlot, a.Verdict)
			require.False(t, a.HasSlot())
			require.Equal(t, e.Hash(&one.Subject), a.Hash)
			release(e, one, a) // nothing
		}
		tokens := scoped(one, rules.Tokens)
		a := take(t, e, 1, tokens)
		require.True(t, a.Allowed)
		require.False(t, a.HasSlot())
		require.Equal(t, 2, e.Stats().Slots)
		release(e, one, first)
		require.Equal(t, 1, e.Stats().Slots)
		require.True(t, take(t, e, 1, one).Allowed)
		require.EqualValues(t, 1000-4, left(t, e, one))
	})
}

// TestALookTakesNoSlot, and sees those that are held.
func TestALookTakesNoSlot(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one := acquiring("k", 1)
		tokens := scoped(one, rules.Tokens)
		take(t, e, 5, tokens)
		asks, answers := []engine.Ask{one}, make([]engine.Answer, 1)
		for range 2 {
			require.NoError(t, e.Peek(t.Context(), asks, answers))
			require.True(t, answers[0].Allowed)
			require.EqualValues(t, 995, answers[0].Statuses[0].Remaining)
			require.False(t, answers[0].HasSlot())
			require.True(t, take(t, e, 0, one).Allowed)
		}
		require.Zero(t, e.Stats().Slots)
		take(t, e, 1, one)
		require.NoError(t, e.Peek(t.Context(), asks, answers))
		require.Equal(t, noSlot, answers[0].Verdict)
	})
}

// TestASlotOfAnAnswerThatWasLostIsFree when Redis hears of it, though it has granted the slot.
func TestASlotOfAnAnswerThatWasLostIsFree(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other := b.redis(t), b.redis(t)
		one := acquiring("k", 1)
		b.CutAfter.Store(true)
		asks, answers := []engine.Ask{one}, make([]engine.Answer, 1)
		require.ErrorIs(t, takeN(t.Context(), e, 1, asks, answers), engine.ErrUnavailable)
		require.False(t, answers[0].HasSlot())
		require.Zero(t, e.Stats().Slots)
		b.CutAfter.Store(false)
		time.Sleep(time.Second)
		a := take(t, other, 1, one)
		require.True(t, a.HasSlot())
	})
}

// TestCloseReportsASlotThatACallInFlightHasLost, as it waits for that call.
func TestCloseReportsASlotThatACallInFlightHasLost(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other, one := b.redis(t), b.redis(t), acquiring("k", 1)
		take(t, other, 1, acquiring("warm", 1))
		b.Delay.Store(int64(10 * ms))
		b.CutAfter.Store(true)
		done := goes(func() error { return takeN(t.Context(), e, 1, []engine.Ask{one}, make([]engine.Answer, 1)) })
		time.AfterFunc(15*ms, func() { b.CutAfter.Store(false) })
		e.Close()
		require.ErrorIs(t, <-done, engine.ErrUnavailable)
		require.True(t, take(t, other, 1, one).Allowed)
	})
}

// TestSlotsNeedNoLimits, and where there are none nobody has one.
func TestSlotsNeedNoLimits(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one := ask("slots", setOf(bucket.NewSlots(1)))
		a := take(t, e, 1, one)
		require.True(t, a.HasSlot())
		require.False(t, take(t, e, 1, one).Allowed)
		none := ask("none", setOf(perMinute(10)))
		a = take(t, e, 1, none)
		require.False(t, a.HasSlot())
		require.Equal(t, 1, e.Stats().Slots)
	})
}

// TestASlotThatIsReleasedIsFreeForOtherProcesses at once, and when the process closes.
func TestASlotThatIsReleasedIsFreeForOtherProcesses(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other := b.redis(t), b.redis(t)
		one := acquiring("k", 1)
		a := take(t, e, 1, one)
		require.False(t, take(t, other, 1, one).Allowed)
		release(e, one, a)
		a = take(t, other, 1, one)
		require.True(t, a.HasSlot())
		b.Delay.Store(int64(20 * ms))
		charge := a.Charge(&one)
		other.Release(&charge)
		start := time.Now()
		other.Close()
		require.Equal(t, 20*ms, time.Since(start), "until Redis knows")
		b.Delay.Store(0)
		require.True(t, take(t, e, 1, one).Allowed)
	})
}

// TestADenialNeedsNoReport: Redis knows that the attempt has no slot.
func TestADenialNeedsNoReport(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other, one := b.redis(t), b.redis(t), acquiring("k", 1)
		take(t, other, 1, one)
		take(t, e, 1, acquiring("warm", 1))
		b.Sent.Store(0)
		require.False(t, take(t, e, 1, one).Allowed)
		synctest.Wait()
		require.EqualValues(t, 1, b.Sent.Load())
	})
}

// TestALookKnowsOfAReleaseThatRedisHasNotHeardOf.
func TestALookKnowsOfAReleaseThatRedisHasNotHeardOf(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), acquiring("k", 1)
		held := take(t, e, 1, one)
		b.Cut.Store(true)
		release(e, one, held)
		b.Cut.Store(false)
		var answers [1]engine.Answer
		require.NoError(t, e.Peek(t.Context(), []engine.Ask{one}, answers[:]))
		require.True(t, answers[0].Allowed)
	})
}

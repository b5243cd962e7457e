package engine_test

import (
	"context"
	"fmt"
	"math"
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

// TestTheNextAttemptReportsARelease, unless that was of the last slot: other processes may wait for it.
func TestTheNextAttemptReportsARelease(t *testing.T) {
	for slots, scripts := range map[int64]int64{2: 1, 1: 2} {
		inBubbleRun(t, fmt.Sprint(slots), func(t *testing.T, b *bench) {
			e, one, other := b.redis(t), acquiring("k", slots), acquiring("other", 2)
			release(e, other, take(t, e, 1, other)) // Redis knows the script of reports
			held, busy := take(t, e, 1, one), take(t, e, 1, other)
			b.Delay.Store(int64(10 * time.Millisecond))
			release(e, other, busy) // its report is on its way, and the next one comes after it
			b.Delay.Store(int64(30 * time.Millisecond))
			sent := b.Sent.Load()
			release(e, one, held)
			next := take(t, e, 1, one)
			require.True(t, next.Allowed)
			require.Equal(t, scripts, b.Sent.Load()-sent)
			release(e, one, next)
		})
	}
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
		require.NoError(t, e.Peek(t.Context(), &one, &answers[0]))
		require.True(t, answers[0].Allowed)
	})
}

// TestSetsThatCountNothingAreAnsweredAtOnce, by every method.
func TestSetsThatCountNothingAreAnsweredAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		free := func(n int64) rules.Verdict {
			return rules.Verdict{Allowed: true, Granted: n, Resource: rules.Uncounted, Remaining: math.MaxInt64}
		}
		never := rules.Verdict{Resource: rules.Prohibited, RetryAfter: rules.Never}
		denies := []rules.Status{{Resource: rules.Prohibited, Denies: true}}
		for name, row := range map[string]struct {
			set      *rules.Set
			want     func(n int64) rules.Verdict
			statuses []rules.Status
		}{
			"nothing is counted": {new(rules.Set), free, nil},
			"prohibited":         {prohibiting(), func(int64) rules.Verdict { return never }, denies},
		} {
			one := ask("k", row.set)
			asks, answers := []engine.Ask{one}, make([]engine.Answer, 1)
			check := func(n int64, err error) {
				t.Helper()
				require.NoError(t, err, name)
				require.Equal(t, engine.Answer{
					Verdict: row.want(n), Decided: true, Source: engine.FromStatic, Statuses: answers[0].Statuses,
				}, answers[0], name)
				require.ElementsMatch(t, row.statuses, answers[0].Statuses, name)
			}
			check(3, takeN(t.Context(), e, 3, asks, answers))
			check(3, takeUpTo(t.Context(), e, 3, &asks[0], &answers[0]))
			check(0, e.Peek(t.Context(), &asks[0], &answers[0]))
			check(3, waitN(t.Context(), e, 3, &asks[0], &answers[0]))
			check(3, takeQueued(t.Context(), e, 3, &asks[0], &answers[0], 1, time.Second))
			asks[0].Report, row.statuses = rules.ReportNone, nil
			check(3, takeN(t.Context(), e, 3, asks, answers))
		}
		require.Zero(t, b.Sent.Load())
	})
}

// TestALookThatFindsTokensEndsTheDenialThatWasRemembered: whoever hears of them gets them.
func TestALookThatFindsTokensEndsTheDenialThatWasRemembered(t *testing.T) {
	for name, set := range map[string]*rules.Set{
		"a limit": setOf(perHour(1)), "beside a ban": setOf(perHour(1), bucket.NewBan(60_000, 60_000)),
		"beside slots": setOf(perHour(1), bucket.NewSlots(5)),
	} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			e, one := b.redis(t), ask("k", set)
			take(t, e, 1, one)
			require.False(t, take(t, e, 1, one).Allowed)
			require.NoError(t, b.redis(t).Reset(t.Context(), &one))
			var answer engine.Answer
			require.NoError(t, e.Peek(t.Context(), &one, &answer))
			require.True(t, answer.Allowed)
			require.True(t, take(t, e, 1, one).Allowed)
		})
	}
}

// TestADenialIsRememberedUntilTokensAreTaken or a second is over.
func TestADenialIsRememberedUntilTokensAreTaken(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other := b.redis(t), b.redis(t)
		one := ask("k", setOf(perMinute(10)))
		require.True(t, take(t, e, 8, one).Allowed)
		require.Zero(t, e.Stats().Denials)
		for _, source := range []engine.Source{engine.FromStore, engine.FromCache, engine.FromCache} {
			a := take(t, e, 5, one)
			require.Equal(t, source, a.Source)
			require.Equal(t, rules.Verdict{
				Remaining: 2, RetryAfter: 18 * time.Second, ResetAfter: 48 * time.Second,
			}, a.Verdict)
			require.Equal(t, []rules.Status{{Remaining: 2, Full: 10, More: 6 * time.Second, Denies: true}}, a.Statuses)
			require.Equal(t, e.Hash(&one.Subject), a.Hash)
			require.True(t, a.Decided)
			require.Equal(t, 1, e.Stats().Denials)
		}
		require.Equal(t, engine.FromStore, take(t, other, 5, one).Source)
		require.Equal(t, engine.FromStore, take(t, e, 11, one).Source, "a look is no charge")
		require.Equal(t, 1, e.Stats().Denials)
		require.True(t, take(t, e, 1, one).Allowed)
		require.Zero(t, e.Stats().Denials)
		require.Equal(t, engine.FromStore, take(t, e, 5, one).Source)
		time.Sleep(time.Second - ms)
		require.Equal(t, engine.FromCache, take(t, e, 5, one).Source)
		time.Sleep(ms)
		require.Equal(t, engine.FromStore, take(t, e, 5, one).Source)

		never := ask("never", setOf(perMinute(10)))
		require.False(t, take(t, e, 11, never).Allowed)
		require.Equal(t, 1, e.Stats().Denials, "a look is not remembered")
		require.Equal(t, engine.FromStore, take(t, e, 11, never).Source)
	})
}

func TestPeekTakesNothingAndEndsWhereNoWaitingHelps(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one, two := ask("one", setOf(perMinute(10))), ask("two", setOf(perHour(10)))
		free, prohibited := ask("free", new(rules.Set)), ask("no", prohibiting())
		take(t, e, 10, one)
		take(t, e, 3, two)
		asks := []engine.Ask{one, free, two, prohibited}
		answers := make([]engine.Answer, 4)
		for i := range answers {
			answers[i] = engine.Answer{Decided: true, Statuses: make([]rules.Status, 3)}
			require.NoError(t, e.Peek(t.Context(), &asks[i], &answers[i]))
		}
		require.Equal(t, rules.Verdict{RetryAfter: 6 * time.Second, ResetAfter: time.Minute}, answers[0].Verdict)
		require.Equal(t, engine.FromStore, answers[0].Source)
		require.True(t, answers[1].Allowed)
		require.Equal(t, engine.FromStatic, answers[1].Source)
		require.Equal(t, rules.Verdict{Allowed: true, Remaining: 7, ResetAfter: 18 * time.Minute}, answers[2].Verdict)
		require.Equal(t, rules.Never, answers[3].RetryAfter)
		for i, want := range []int{1, 0, 1, 1} {
			require.True(t, answers[i].Decided)
			require.Len(t, answers[i].Statuses, want)
		}
		require.EqualValues(t, 7, left(t, e, two))
	})
}

// TestPeekHasTheTimeOfACall.
func TestPeekHasTheTimeOfACall(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), ask("one", setOf(perMinute(10)))
		take(t, e, 1, one)
		var answer engine.Answer
		b.Delay.Store(int64(timeout + 2*ms)) // it may be a tenth late
		require.NoError(t, e.Peek(t.Context(), &one, &answer))
		require.True(t, answer.Decided)
		b.Delay.Store(int64(2 * timeout))
		require.ErrorIs(t, e.Peek(t.Context(), &one, &answer), engine.ErrUnavailable)
		require.False(t, answer.Decided)
	})
}

// TestNothingIsDecidedAfterTheContext or the engine has ended, and the answer is empty.
func TestNothingIsDecidedAfterTheContext(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, row := range []struct {
			ctx  context.Context
			want error
		}{{ended, context.Canceled}, {t.Context(), engine.ErrUnavailable}} {
			if row.want == engine.ErrUnavailable {
				e.Close()
			}
			asks := []engine.Ask{ask("one", setOf(perMinute(10))), ask("two", setOf(perMinute(10)))}
			answers := make([]engine.Answer, 2)
			answers[0].Decided = true
			require.ErrorIs(t, takeN(row.ctx, e, 1, asks[:1], answers[:1]), row.want)
			require.False(t, answers[0].Decided)
			require.ErrorIs(t, takeN(row.ctx, e, 1, asks, answers), row.want)
			require.ErrorIs(t, takeUpTo(row.ctx, e, 1, &asks[0], &answers[0]), row.want)
			require.ErrorIs(t, e.Peek(row.ctx, &asks[0], &answers[0]), row.want)
			require.ErrorIs(t, waitN(row.ctx, e, 1, &asks[0], &answers[0]), row.want)
			require.ErrorIs(t, takeQueued(row.ctx, e, 1, &asks[0], &answers[0], 1, time.Second), row.want)
			require.ErrorIs(t, e.Refund(row.ctx, 1, &asks[0]), row.want)
			require.ErrorIs(t, e.Block(row.ctx, time.Second, &asks[0]), row.want)
			require.ErrorIs(t, e.Reset(row.ctx, &asks[0]), row.want)
			require.ErrorIs(t, e.Ready(row.ctx), row.want)
			require.ErrorIs(t, e.Ping(row.ctx), row.want)
		}
	})
}

func TestStatsWithoutRedisCountItsBuckets(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *bench) {
		e := local(t)
		take(t, e, 1, acquiring("slot", 2))
		take(t, e, 1, ask("two", setOf(perHour(10), perMinute(10))))
		require.Equal(t, engine.Stats{Replicas: 1, Slots: 1, Local: 3}, e.Stats())
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

package engine_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// takeQueued takes n tokens of one Ask, and a slot if it has any.
func takeQueued(ctx context.Context, e *engine.Engine, n int64, ask *engine.Ask, answer *engine.Answer, length int,
	wait time.Duration) error {
	asks, answers := []engine.Ask{*ask}, []engine.Answer{*answer}
	err := takeInLine(ctx, e, n, asks, answers, engine.Queue{Length: length, Wait: wait})
	*ask, *answer = asks[0], answers[0]
	return err
}

// queued takes a token and a slot in the background.
func queued(ctx context.Context, e *engine.Engine, ask engine.Ask, answer *engine.Answer, length int,
	wait time.Duration) <-chan error {
	return goes(func() error { return takeQueued(ctx, e, 1, &ask, answer, length, wait) })
}

// TestCallersWaitForASlotInOrder, and a release wakes the first of them.
func TestCallersWaitForASlotInOrder(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one := acquiring("k", 1)
		held := engine.Answer{Statuses: make([]rules.Status, 1)}
		require.NoError(t, takeQueued(t.Context(), e, 1, &one, &held, 0, time.Minute), "nobody needs to wait")
		require.True(t, held.HasSlot())
		require.Zero(t, held.Waited)
		require.Len(t, held.Statuses, 2)
		var answers [3]engine.Answer
		var done [3]<-chan error
		start := time.Now()
		for i := range done {
			done[i] = queued(t.Context(), e, one, &answers[i], 3, time.Minute)
			time.Sleep(ms)
		}
		var full engine.Answer
		require.NoError(t, takeQueued(t.Context(), e, 1, &one, &full, 3, time.Minute))
		require.Equal(t, noSlot, full.Verdict)
		for i := range done {
			time.Sleep(10*ms + ms/2)
			require.Empty(t, done[i])
			released := time.Now()
			release(e, one, held)
			require.NoError(t, <-done[i])
			require.Zero(t, time.Since(released))
			require.True(t, answers[i].HasSlot())
			held = answers[i]
			require.Equal(t, time.Since(start)-time.Duration(i)*ms, held.Waited)
			require.Len(t, held.Statuses, 2)
		}
	})
}

// TestACallerThatFindsNoRoomToWaitIsDenied without a question to the store.
func TestACallerThatFindsNoRoomToWaitIsDenied(t *testing.T) {
	onEveryStore(t, func(t *testing.T, b *bench, e *engine.Engine) {
		one := acquiring("k", 1)
		take(t, e, 1, one)
		first := queued(t.Context(), e, one, new(engine.Answer), 1, time.Minute)
		b.Sent.Store(0)
		answer := engine.Answer{Verdict: rules.Verdict{Granted: 5}, Statuses: make([]rules.Status, 4)}
		require.NoError(t, takeQueued(t.Context(), e, 1, &one, &answer, 1, time.Minute))
		require.Equal(t, engine.Answer{
			Verdict: noSlot, Decided: true, Source: engine.FromStatic, Hash: e.Hash(&one.Subject), QueueFull: true,
			Statuses: []rules.Status{{Resource: 1, Full: 1, More: time.Second, Denies: true}},
		}, answer)
		one.Report = rules.ReportNone
		require.NoError(t, takeQueued(t.Context(), e, 1, &one, &answer, 1, time.Minute))
		require.Empty(t, answer.Statuses)
		require.Zero(t, b.Sent.Load())
		require.Empty(t, first)
		e.Close()
		require.ErrorIs(t, <-first, engine.ErrUnavailable)
	})
}

// TestACallerThatIsBannedAndFindsNoRoomIsToldWhenTheBanEnds, as far as this process knows.
func TestACallerThatIsBannedAndFindsNoRoomIsToldWhenTheBanEnds(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one := ask("k", setOf(perHour(2), bucket.NewBan(60_000, 60_000), bucket.NewSlots(1)))
		take(t, e, 1, one)
		first := queued(t.Context(), e, one, new(engine.Answer), 1, 10*time.Second)
		require.Zero(t, e.Stats().Bans, "for want of a slot nobody is banned while others wait")
		tokens := scoped(one, rules.Tokens)
		require.False(t, take(t, e, 2, tokens).Allowed)
		time.Sleep(50 * ms)
		var answer engine.Answer
		require.NoError(t, takeQueued(t.Context(), e, 1, &one, &answer, 1, time.Minute))
		require.True(t, answer.Banned)
		require.Equal(t, time.Minute-50*ms, answer.RetryAfter)
		require.NoError(t, <-first)
	})
}

// TestACallerThatFindsNoRoomIsBannedForTheTokensThatItLacks, and not while it waits for some.
func TestACallerThatFindsNoRoomIsBannedForTheTokensThatItLacks(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one := banning("k", time.Hour)
		take(t, e, 10, one)
		_, waits := takes(t, e, []engine.Ask{one}, engine.Queue{Length: 1, Wait: time.Hour})
		time.Sleep(2 * time.Second)
		require.Zero(t, e.Stats().Bans)
		answers, done := takes(t, e, []engine.Ask{one}, engine.Queue{Length: 1, Wait: time.Hour})
		require.NoError(t, <-done)
		require.True(t, answers[0].Banned)
		require.True(t, answers[0].QueueFull)
		require.Equal(t, 1, e.Stats().Bans)
		require.NoError(t, <-waits)
	})
}

// TestACallerLooksForTheSlotsOfOtherProcesses fifty times a second if it is its turn.
func TestACallerLooksForTheSlotsOfOtherProcesses(t *testing.T) {
	for name, row := range map[string]struct{ released, wait, after time.Duration }{
		"soon":             {10 * ms, time.Second, 20 * ms},
		"later":            {310 * ms, time.Second, 320 * ms},
		"before it leaves": {141 * ms, 170 * ms, 160 * ms},
		"too late":         {161 * ms, 170 * ms, 170 * ms},
	} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			e, other, one := b.redis(t), b.redis(t), acquiring("k", 1)
			held := take(t, other, 1, one)
			start := time.Now()
			var answer engine.Answer
			done := queued(t.Context(), e, one, &answer, 1, row.wait)
			time.Sleep(row.released)
			release(other, one, held)
			require.NoError(t, <-done)
			require.Equal(t, row.after, time.Since(start))
			require.Equal(t, name != "too late", answer.HasSlot())
		})
	}
}

// twoTokens is a question about a slot and one of two tokens an hour.
func twoTokens(client string) engine.Ask {
	a := ask(client, setOf(perHour(2), bucket.NewSlots(1)))
	return a
}

// TestManyCallersLookMoreSeldom, five hundred times a second together. A caller that looks sees
// here that there is no token for half an hour.
func TestManyCallersLookMoreSeldom(t *testing.T) {
	for name, row := range map[string]struct {
		callers             int
		gone, wait, noticed time.Duration
	}{
		"one":             {1, 10 * ms, 10 * time.Second, 100 * ms},
		"fifty":           {50, 10 * ms, 10 * time.Second, 100 * ms},
		"a hundred":       {100, 10 * ms, 10 * time.Second, 200 * ms},
		"a last look":     {100, 10 * ms, 240 * ms, 190 * ms},
		"none after that": {100, 200 * ms, 240 * ms, 240 * ms},
	} {
		testkit.RunSynctest(t, name, func(t *testing.T) {
			e := local(t)
			for round := range 2 {
				start, last := time.Now(), row.callers-1 // for whom all others wait already
				answers, done := make([]engine.Answer, row.callers), make([]<-chan error, row.callers)
				var one engine.Ask
				for i := range row.callers {
					one = twoTokens(fmt.Sprint(round, " ", i))
					take(t, e, 1, one)
					done[i] = queued(t.Context(), e, one, &answers[i], 1, row.wait)
				}
				time.Sleep(row.gone)
				one = scoped(one, rules.Tokens)
				take(t, e, 1, one)
				require.NoError(t, <-done[last])
				require.Equal(t, row.noticed, time.Since(start))
				require.False(t, answers[last].Allowed)
				for i := range done[:last] {
					require.NoError(t, <-done[i])
				}
			}
			alone := twoTokens("alone")
			take(t, e, 1, alone)
			start := time.Now()
			looks := queued(t.Context(), e, alone, new(engine.Answer), 1, time.Second)
			alone = scoped(alone, rules.Tokens)
			take(t, e, 1, alone)
			require.NoError(t, <-looks)
			require.Equal(t, 100*ms, time.Since(start), "nobody else looks any more")
		})
	}
}

// TestCallersThatASlotDoesNotHelpDoNotWait: they want no token, too many tokens, or lack tokens too.
func TestCallersThatASlotDoesNotHelpDoNotWait(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one := ask("k", setOf(perHour(5), bucket.NewSlots(1)))
		take(t, e, 1, one)
		first := queued(t.Context(), e, one, new(engine.Answer), 1, time.Second)
		start := time.Now()
		var answer engine.Answer
		for n, allowed := range map[int64]bool{0: true, 6: false} {
			require.NoError(t, takeQueued(t.Context(), e, n, &one, &answer, 2, time.Second))
			require.Equal(t, allowed, answer.Allowed)
		}
		free := ask("k", new(rules.Set))
		require.NoError(t, takeQueued(t.Context(), e, 1, &free, &answer, 2, time.Second))
		require.True(t, answer.Allowed)
		require.Zero(t, time.Since(start))
		require.NoError(t, <-first)
		require.Equal(t, time.Second, time.Since(start))
		tokens := scoped(one, rules.Tokens)
		take(t, e, 4, tokens)
		start = time.Now()
		require.NoError(t, takeQueued(t.Context(), e, 5, &one, &answer, 1, time.Second))
		require.False(t, answer.Allowed)
		require.Equal(t, 0, answer.Resource, "the tokens")
		require.Zero(t, time.Since(start))
	})
}

// TestCallersWaitForTokensInOrder, and are denied at once if theirs come too late: they are told when.
func TestCallersWaitForTokensInOrder(t *testing.T) {
	onEveryStore(t, func(t *testing.T, b *bench, e *engine.Engine) {
		one := ask("k", setOf(limit("s", 1, 1000)))
		take(t, e, 1, one)
		b.Sent.Store(0)
		start := time.Now()
		var answers [3]engine.Answer
		var done [3]<-chan error
		for i := range done {
			done[i] = queued(t.Context(), e, one, &answers[i], 10, 3*time.Second)
		}
		var late engine.Answer
		require.NoError(t, takeQueued(t.Context(), e, 1, &one, &late, 10, 3*time.Second))
		require.False(t, late.Allowed)
		require.Equal(t, 4*time.Second, late.RetryAfter, "three are before it")
		var full engine.Answer
		require.NoError(t, takeQueued(t.Context(), e, 1, &one, &full, 3, time.Minute))
		require.False(t, full.Allowed)
		require.Equal(t, 4*time.Second, full.RetryAfter)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		require.NoError(t, takeQueued(ctx, e, 1, &one, &late, 10, time.Hour), "its own deadline is too soon")
		require.False(t, late.Allowed)
		require.Zero(t, time.Since(start))
		for i := range done {
			require.NoError(t, <-done[i])
			require.True(t, answers[i].Allowed)
			require.Equal(t, time.Duration(i+1)*time.Second, time.Since(start))
			require.Equal(t, time.Since(start), answers[i].Waited)
		}
		require.LessOrEqual(t, b.Sent.Load(), int64(3+2*len(done)), "only the first of them tries")
	})
}

// TestACallerWaitsInTheLineOfTheKeyThatLacks, and whoever needs other keys passes.
func TestACallerWaitsInTheLineOfTheKeyThatLacks(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		busy, free := acquiring("busy", 1), acquiring("free", 1)
		client := func(name string, account engine.Ask) []engine.Ask { return []engine.Ask{acquiring(name, 1), account} }
		take := func(asks []engine.Ask) ([]engine.Answer, <-chan error) {
			answers := make([]engine.Answer, len(asks))
			return answers, goes(func() error {
				return takeInLine(t.Context(), e, 1, asks, answers, engine.Queue{Length: 2, Wait: time.Minute})
			})
		}
		first := client("a", busy)
		held, done := take(first)
		require.NoError(t, <-done)
		require.True(t, held[0].HasSlot() && held[1].HasSlot())
		start := time.Now()
		second := client("b", busy)
		waits, waiting := take(second) // for the account
		time.Sleep(ms)
		passes, passed := take(client("b", free))
		require.NoError(t, <-passed)
		require.True(t, passes[0].HasSlot() && passes[1].HasSlot(), "of the same client, and another account")
		require.Empty(t, waiting)
		time.Sleep(10 * ms)
		release(e, first[1], held[1])
		time.Sleep(ms)
		require.Empty(t, waiting, "now it lacks a slot of its own")
		release(e, client("b", free)[0], passes[0])
		require.NoError(t, <-waiting)
		require.True(t, waits[0].HasSlot() && waits[1].HasSlot())
		require.Equal(t, 12*ms, time.Since(start))
		require.Equal(t, 11*ms, waits[1].Waited, "for the account")
		require.Equal(t, ms, waits[0].Waited)
	})
}

// TestABannedClientWaitsForNothing.
func TestABannedClientWaitsForNothing(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one := ask("k", setOf(limit("s", 1, 1000), bucket.NewBan(1000, 1000), bucket.NewSlots(1)))
		take(t, e, 1, one)
		take(t, e, 1, one)
		start := time.Now()
		for _, set := range []*rules.Set{one.Set, setOf(bucket.NewBan(1000, 1000))} {
			waiting, answer := one, engine.Answer{}
			waiting.Set = set
			require.NoError(t, takeQueued(t.Context(), e, 1, &waiting, &answer, 1, time.Minute))
			require.True(t, answer.Banned)
			require.Zero(t, time.Since(start))
		}
	})
}

// TestACallerWaitsForASlotForItsTime, then it has the last denial.
func TestACallerWaitsForASlotForItsTime(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one := acquiring("k", 1)
		take(t, e, 1, one)
		var first, second engine.Answer
		start := time.Now()
		ahead := queued(t.Context(), e, one, &first, 2, 800*ms)
		behind := queued(t.Context(), e, one, &second, 2, 300*ms)
		require.NoError(t, <-behind)
		require.Equal(t, 300*ms, time.Since(start))
		require.Equal(t, noSlot, second.Verdict)
		require.True(t, second.Decided)
		require.Equal(t, 300*ms, second.Waited)
		require.NoError(t, <-ahead)
		require.Equal(t, 800*ms, time.Since(start))
		require.Equal(t, noSlot, first.Verdict)
		require.Equal(t, 800*ms, first.Waited)
		require.Zero(t, e.Stats().Bans)
	})
}

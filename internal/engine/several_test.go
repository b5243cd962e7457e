package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// outcome is what a test compares of an answer.
type outcome struct {
	decided, allowed bool
	granted, left    int64
	source           engine.Source
}

func outcomes(answers []engine.Answer) (all []outcome) {
	for i := range answers {
		a := &answers[i]
		all = append(all, outcome{a.Decided, a.Allowed, a.Granted, a.Remaining, a.Source})
	}
	return all
}

// TestEachAskHasItsOwnNumberOfTokens, in one script, one after another, and in the process: of all Asks
// the tokens are taken, or of none, also if an Ask wants none or more than its limit ever holds.
func TestEachAskHasItsOwnNumberOfTokens(t *testing.T) {
	onEveryStore(t, func(t *testing.T, b *bench, e *engine.Engine) {
		r := rand.New(rand.NewPCG(1, 2))
		for round := range 30 {
			var asks []engine.Ask
			var room []int64 // of each Ask
			for i := range 2 + r.IntN(3) {
				n := 1 + r.Int64N(30)
				of, err := bucket.New(bucket.Kind(r.IntN(bucket.Kinds)), "k", n, n, 24*3_600_000)
				require.True(t, err)
				asks, room = append(asks, ask(fmt.Sprint(round, " ", i), setOf(of))), append(room, n)
			}
			for step := range 8 {
				fits := true
				for i := range asks {
					asks[i].N = r.Int64N(8)
					fits = fits && asks[i].N <= room[i]
				}
				answers := make([]engine.Answer, len(asks))
				require.NoError(t, e.Take(t.Context(), engine.Request{Asks: asks, Answers: answers}))
				synctest.Wait()
				allowed := true
				for i := range answers {
					allowed = allowed && (!answers[i].Decided || answers[i].Allowed)
				}
				require.Equal(t, fits, allowed, "round %d, step %d: %v of %v", round, step, asks, room)
				for i := range asks {
					if fits {
						room[i] -= asks[i].N
						require.Equal(t, asks[i].N, answers[i].Granted)
						require.Equal(t, room[i], answers[i].Remaining)
					}
					require.Equal(t, room[i], left(t, e, asks[i]), "round %d, step %d", round, step)
				}
			}
		}
	})
}

// TestAnAskThatProhibitsEndsATake before anybody is asked, wherever it is.
func TestAnAskThatProhibitsEndsATake(t *testing.T) {
	onEveryStore(t, func(t *testing.T, b *bench, e *engine.Engine) {
		one, free := ask("one", setOf(perMinute(10))), ask("free", new(rules.Set))
		no, two := ask("no", prohibiting()), ask("two", setOf(perMinute(10)))
		asks, answers := []engine.Ask{free, one, no, two}, make([]engine.Answer, 4)
		answers[3].Decided = true
		answers[3].Statuses = make([]rules.Status, 1)
		require.NoError(t, takeN(t.Context(), e, 1, asks, answers))
		require.Equal(t, []bool{false, false, true}, []bool{answers[0].Decided, answers[1].Decided, answers[2].Decided})
		require.Equal(t, rules.Verdict{Resource: rules.Prohibited, RetryAfter: rules.Never}, answers[2].Verdict)
		require.EqualValues(t, 10, left(t, e, one))
		require.EqualValues(t, 10, left(t, e, two))
	})
}

// TestAsksThatCountNothingAreAnsweredBesideOthers, and alone without a question to the store.
func TestAsksThatCountNothingAreAnsweredBesideOthers(t *testing.T) {
	onEveryStore(t, func(t *testing.T, b *bench, e *engine.Engine) {
		free, one, two := ask("free", new(rules.Set)), ask("one", setOf(perMinute(10))), ask("two", setOf(perMinute(2)))
		static := outcome{true, true, 1, 1<<63 - 1, engine.FromStatic}
		answers := make([]engine.Answer, 4)
		require.NoError(t, takeN(t.Context(), e, 1, []engine.Ask{free, free}, answers[:2]))
		require.Equal(t, []outcome{static, static}, outcomes(answers[:2]))
		require.Zero(t, b.Sent.Load())
		require.NoError(t, takeN(t.Context(), e, 1, []engine.Ask{free, one}, answers[:2]))
		require.Equal(t, []outcome{static, {true, true, 1, 9, engine.FromStore}}, outcomes(answers[:2]))
		require.NoError(t, takeN(t.Context(), e, 1, []engine.Ask{one, free, two, free}, answers))
		require.Equal(t, []outcome{
			{true, true, 1, 8, engine.FromStore}, static, {true, true, 1, 1, engine.FromStore}, static,
		}, outcomes(answers))
		require.NoError(t, takeN(t.Context(), e, 2, []engine.Ask{free, two, free}, answers[:3]))
		require.True(t, answers[0].Decided)
		require.False(t, answers[1].Allowed)
	})
}

// TestOneScriptDecidesOnSeveralAsks where all keys are on one server, but for a second ban. It is one round trip
// everywhere.
func TestOneScriptDecidesOnSeveralAsks(t *testing.T) {
	one, two := ask("one", setOf(perMinute(10))), ask("two", setOf(perMinute(10)))
	banned := ask("banned", setOf(perMinute(10), bucket.NewBan(1000, 1000)))
	slots := ask("slots", setOf(perMinute(10), bucket.NewSlots(9)))
	other := slots
	other.Client = "other"
	limits := scoped(banned, rules.Limits)
	for name, row := range map[string]struct {
		asks    []engine.Ask
		turns   bool
		scripts int64
	}{
		"two":                 {[]engine.Ask{one, two}, false, 1},
		"three":               {[]engine.Ask{one, two, ask("three", setOf(perHour(10)))}, false, 1},
		"several servers":     {[]engine.Ask{one, two}, true, 2},
		"one beside nothing":  {[]engine.Ask{one, ask("free", new(rules.Set))}, false, 1},
		"a ban":               {[]engine.Ask{banned, one}, false, 1},
		"a ban at last":       {[]engine.Ask{one, banned}, false, 1},
		"two bans":            {[]engine.Ask{banned, one, ask("other", banned.Set)}, false, 2},
		"slots":               {[]engine.Ask{slots, banned, other}, false, 1},
		"the limits of a ban": {[]engine.Ask{limits, two}, false, 1},
	} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			start := (*bench).redis
			if row.turns {
				start = (*bench).turns
			}
			e := start(b, t)
			decide := func() { require.NoError(t, takeN(t.Context(), e, 1, row.asks, make([]engine.Answer, len(row.asks)))) }
			decide() // now the server knows the script
			b.Sent.Store(0)
			b.Scripts.Store(0)
			decide()
			require.EqualValues(t, row.scripts, b.Scripts.Load())
			require.EqualValues(t, 1, b.Sent.Load())
		})
	}
}

// TestADenialOfSeveralAsksGivesBackWhatWasTaken, and the statuses say so. The others are looked at.
func TestADenialOfSeveralAsksGivesBackWhatWasTaken(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*bench, testing.TB) *engine.Engine{
		"in turn": (*bench).turns, "process": func(_ *bench, t testing.TB) *engine.Engine { return local(t) },
	} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			e := start(b, t)
			one := ask("one", setOf(perMinute(10), bucket.NewSlots(2)))
			require.True(t, take(t, e, 0, one).Allowed)
			held := one
			held.Set = setOf(bucket.NewSlots(2))
			take(t, e, 1, held)
			two, three := ask("two", setOf(perMinute(2))), ask("three", setOf(perMinute(10)))
			take(t, e, 1, two)
			asks := []engine.Ask{one, ask("free", new(rules.Set)), two, three}
			answers := make([]engine.Answer, 4)
			answers[2].Statuses = make([]rules.Status, 1)
			for round := range 2 { // the slot is given back too
				require.NoError(t, takeN(t.Context(), e, 2, asks, answers))
				// What the deny cache denies costs no call, once the rest was looked at.
				decided := name == "process" || round == 0
				require.Equal(t, []bool{decided, true, true, decided},
					[]bool{answers[0].Decided, answers[1].Decided, answers[2].Decided, answers[3].Decided})
				require.False(t, answers[2].Allowed)
				require.Len(t, answers[2].Statuses, 1)
				require.Equal(t, 1, e.Stats().Slots)
				if !decided {
					continue
				}
				require.True(t, answers[0].Allowed)
				require.False(t, answers[0].HasSlot())
				require.Equal(t, []rules.Status{
					{Remaining: 10, Full: 10}, {Resource: 1, Remaining: 1, Full: 2},
				}, answers[0].Statuses)
				release(e, one, answers[0]) // nothing
				require.Equal(t, 1, e.Stats().Slots)
			}
			require.EqualValues(t, 10, left(t, e, one))
			require.EqualValues(t, 1, left(t, e, two))
			require.EqualValues(t, 10, left(t, e, three))
		})
	}
}

// TestWhatWasTakenIsGivenBackAfterAnErrorToo, as far as Redis answers then.
func TestWhatWasTakenIsGivenBackAfterAnErrorToo(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.turns(t)
		one, two := ask("one", setOf(perMinute(10))), ask("two", setOf(perMinute(10)))
		testkit.Must(b.Mini.Lpush("test:{two}:m", "foreign"))
		answers := make([]engine.Answer, 2)
		require.ErrorIs(t, takeN(t.Context(), e, 3, []engine.Ask{one, two}, answers), engine.ErrUnavailable)
		require.False(t, answers[1].Decided)
		synctest.Wait()
		require.EqualValues(t, 10, left(t, e, one))
	})
}

// TestAsksThatAServerRefusesTogetherAreAskedForApart, at the same time, and for a minute if that helps.
func TestAsksThatAServerRefusesTogetherAreAskedForApart(t *testing.T) {
	for name, row := range map[string]struct {
		refused func(b *bench)
		failure engine.Failure
		scripts int64 // now
		next    int64 // and later
	}{
		"it helps":                     {func(b *bench) { b.Mini.SetError("") }, engine.FailLocal, 3, 2},
		"it does not":                  {func(*bench) {}, engine.FailClosed, 3, 1},
		"this process decides instead": {func(b *bench) { b.Cut.Store(true) }, engine.FailLocal, 3, 1},
	} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			e := b.redis(t)
			one := failing("one", setOf(perMinute(10)), row.failure)
			two := failing("two", setOf(perMinute(20)), row.failure)
			scripts := func() (int64, error) {
				b.Scripts.Store(0)
				err := takeN(t.Context(), e, 1, []engine.Ask{one, two}, make([]engine.Answer, 2))
				return b.Scripts.Load(), err
			}
			for range 2 {
				testkit.Must(scripts())
			}
			b.Mini.SetError("CROSSSLOT Keys in request don't hash to the same slot")
			b.Refused = func() { row.refused(b) }
			n, err := scripts()
			require.Equal(t, row.failure == engine.FailClosed, err != nil)
			require.Equal(t, row.scripts, n)
			b.Cut.Store(false)
			b.Mini.SetError("")
			time.Sleep(2 * time.Second)
			require.Equal(t, row.next, testkit.Must(scripts()))
			time.Sleep(time.Minute)
			require.EqualValues(t, 1, testkit.Must(scripts()))
		})
	}
}

// TestAForeignKeySaysNothingOfTheServer: the decision fails, as each Ask says, without a second question. The Asks are
// decided on together again once it is gone.
func TestAForeignKeySaysNothingOfTheServer(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		one, two := ask("one", setOf(perHour(1))), ask("two", setOf(perHour(1)))
		testkit.Must(b.Mini.Lpush("test:{two}:h", "foreign"))
		asks, answers := []engine.Ask{one, two}, make([]engine.Answer, 2)
		require.ErrorIs(t, takeN(t.Context(), e, 1, asks, answers), engine.ErrUnavailable)
		b.Sent.Store(0)
		asks[0].Failure, asks[1].Failure = engine.FailOpen, engine.FailLocal
		require.NoError(t, takeN(t.Context(), e, 1, asks, answers))
		require.Equal(t, engine.FromOpen, answers[0].Source)
		require.Equal(t, engine.FromLocal, answers[1].Source)
		require.EqualValues(t, 1, b.Sent.Load())
		require.EqualValues(t, 1, left(t, e, one))
		b.Mini.Del("test:{two}:h")
		b.Scripts.Store(0)
		require.NoError(t, takeN(t.Context(), e, 1, asks, answers))
		require.EqualValues(t, 1, b.Scripts.Load())
	})
}

// TestAHookThatEndsTheGoroutineLeavesNothingTaken: of several calls none is sent by its caller.
func TestAHookThatEndsTheGoroutineLeavesNothingTaken(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		rdb, scripts := b.ConnectInline(t), atomic.Int64{}
		rdb.AddHook(testkit.EveryScript(func(send func() error) error {
			if scripts.Add(-1) == 0 {
				runtime.Goexit()
			}
			return send()
		}))
		e, ban := b.start(t, rdb, engine.Config{}, 64), bucket.NewBan(1000, 1000) // no script knows two bans
		one, two := ask("one", setOf(perHour(10), ban, bucket.NewSlots(2))), ask("two", setOf(perHour(10), ban))
		asks := []engine.Ask{one, two}
		require.NoError(t, takeN(t.Context(), e, 11, asks, make([]engine.Answer, 2))) // loads the scripts
		scripts.Store(1)
		require.ErrorIs(t, takeN(t.Context(), e, 1, asks, make([]engine.Answer, 2)), engine.ErrUnavailable)
		require.Zero(t, e.Stats().Slots)
		require.EqualValues(t, 10, left(t, e, one))
	})
}

// TestAsksThatFailTogetherAreNotAskedForAgain.
func TestAsksThatFailTogetherAreNotAskedForAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		one, two := ask("one", setOf(perMinute(10))), ask("two", setOf(perMinute(10)))
		asks, answers := []engine.Ask{one, two}, make([]engine.Answer, 2)
		require.NoError(t, takeN(t.Context(), e, 1, asks, answers))
		b.Cut.Store(true)
		b.Sent.Store(0)
		require.ErrorIs(t, takeN(t.Context(), e, 1, asks, answers), engine.ErrUnavailable)
		require.EqualValues(t, 1, b.Sent.Load())
	})
}

// TestAnErrorOfOneAskIsNotAskedForTwice, where the others count nothing.
func TestAnErrorOfOneAskIsNotAskedForTwice(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		testkit.Must(b.Mini.Lpush("test:{foreign}:m", "x"))
		foreign, free := ask("foreign", setOf(perMinute(10))), ask("free", new(rules.Set))
		take(t, e, 1, ask("k", setOf(perMinute(10))))
		b.Sent.Store(0)
		answers := make([]engine.Answer, 2)
		require.ErrorIs(t, takeN(t.Context(), e, 1, []engine.Ask{free, foreign}, answers), engine.ErrUnavailable)
		require.EqualValues(t, 1, b.Sent.Load())
	})
}

// TestACallerThatLeavesDoesNotWaitForWhatIsGivenBack; the engine goes on.
func TestACallerThatLeavesDoesNotWaitForWhatIsGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.turns(t)
		one, two := ask("one", setOf(perMinute(10))), ask("two", setOf(perMinute(1)))
		take(t, e, 1, two)
		b.Delay.Store(int64(10 * ms))
		ctx, cancel := context.WithTimeout(t.Context(), 15*ms)
		defer cancel()
		answers := make([]engine.Answer, 2)
		start := time.Now()
		require.NoError(t, takeN(ctx, e, 1, []engine.Ask{one, two}, answers))
		require.Equal(t, 15*ms, time.Since(start))
		require.False(t, answers[1].Allowed)
		e.Close() // waits for it
		b.Delay.Store(0)
		require.EqualValues(t, 10, left(t, b.redis(t), one))
	})
}

// TestDenialsOfSeveralAsksAreRememberedOfThoseThatDeny, one by one.
func TestDenialsOfSeveralAsksAreRememberedOfThoseThatDeny(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		one, two := ask("one", setOf(perMinute(10))), ask("two", setOf(perMinute(2)))
		three := ask("three", setOf(perMinute(10)))
		asks, answers := []engine.Ask{one, two, three}, make([]engine.Answer, 3)
		require.NoError(t, takeN(t.Context(), e, 1, asks, answers))
		time.Sleep(6 * time.Second)
		require.NoError(t, takeN(t.Context(), e, 2, asks, answers))
		require.Equal(t, []outcome{
			{true, true, 0, 10, engine.FromStore},
			{true, false, 0, 1, engine.FromStore},
			{true, true, 0, 10, engine.FromStore},
		}, outcomes(answers), "those that would allow take nothing")
		require.Equal(t, 1, e.Stats().Denials)
		sent := b.Sent.Load()
		require.NoError(t, takeN(t.Context(), e, 2, asks, answers))
		require.Equal(t, outcome{true, false, 0, 1, engine.FromCache}, outcomes(answers)[1])
		require.Equal(t, []bool{false, true, false}, []bool{answers[0].Decided, answers[1].Decided, answers[2].Decided})
		require.Equal(t, 24*time.Second, answers[1].RetryAfter)
		require.Equal(t, engine.FromCache, take(t, e, 2, two).Source)
		require.Equal(t, sent, b.Sent.Load())
		require.NoError(t, takeN(t.Context(), e, 1, asks, answers))
		require.Equal(t, []outcome{
			{true, true, 1, 9, engine.FromStore},
			{true, true, 1, 0, engine.FromStore},
			{true, true, 1, 9, engine.FromStore},
		}, outcomes(answers))
		require.Zero(t, e.Stats().Denials, "as tokens were taken")
	})
}

// sharing returns an Ask of a tenant that shares tokens per minute.
func sharing(client string, n int64) engine.Ask {
	set := setOf(perMinute(n))
	set.Divide()
	one := ask(client, set)
	one.Tenant = bucket.Tenant{Name: ":a", Weight: 1}
	return one
}

// TestAllAreAskedForInTheTimeOfOne: a tenant, a second ban, one without a cost, and whatever has a server of its own.
func TestAllAreAskedForInTheTimeOfOne(t *testing.T) {
	for name, start := range map[string]func(*bench, testing.TB) *engine.Engine{
		"one server": (*bench).redis, "several servers": (*bench).turns,
	} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			e, ban := start(b, t), bucket.NewBan(1000, 1000)
			one, two, free := ask("one", setOf(perMinute(10), ban)), sharing("two", 100), ask("free", setOf(perMinute(5)))
			three := ask("three", setOf(perMinute(10), ban))
			one.N, two.N, three.N = 1, 1, 1
			asks, answers := []engine.Ask{one, two, free, three}, make([]engine.Answer, 4)
			require.NoError(t, e.Take(t.Context(), engine.Request{Asks: asks, Answers: answers}))
			b.Delay.Store(int64(timeout * 3 / 5))
			began := time.Now()
			require.NoError(t, e.Take(t.Context(), engine.Request{Asks: asks, Answers: answers}))
			require.Equal(t, timeout*3/5, time.Since(began))
			b.Delay.Store(0)
			for _, row := range []struct {
				ask  engine.Ask
				left int64
			}{{one, 8}, {two, 98}, {free, 5}, {three, 8}} {
				require.Equal(t, row.left, left(t, e, row.ask))
			}
			asks[3].N = 9
			require.NoError(t, e.Take(t.Context(), engine.Request{Asks: asks, Answers: answers}))
			require.True(t, denied(answers[3]))
			for _, row := range []struct {
				ask  engine.Ask
				left int64
			}{{one, 8}, {two, 98}, {free, 5}} {
				require.Equal(t, row.left, left(t, e, row.ask), "it is given back")
			}
		})
	}
}

func denied(a engine.Answer) bool { return a.Decided && !a.Allowed }

// TestTakeTakesOfEveryAskOrOfNone, in one script, one after another, and in the process.
func TestTakeTakesOfEveryAskOrOfNone(t *testing.T) {
	onEveryStore(t, func(t *testing.T, b *bench, e *engine.Engine) {
		one, two := ask("one", setOf(perMinute(20))), ask("two", setOf(perMinute(5), perHour(50)))
		asks, answers := []engine.Ask{one, two}, make([]engine.Answer, 2)
		require.NoError(t, takeN(t.Context(), e, 3, asks, answers))
		require.Equal(t, rules.Verdict{
			Allowed: true, Granted: 3, Remaining: 17, ResetAfter: 9 * time.Second,
		}, answers[0].Verdict)
		require.Equal(t, rules.Verdict{
			Allowed: true, Granted: 3, Remaining: 2, ResetAfter: 36 * time.Second,
		}, answers[1].Verdict)
		require.Equal(t, e.Hash(&one.Subject), answers[0].Hash)
		require.Equal(t, e.Hash(&two.Subject), answers[1].Hash)
		require.Len(t, answers[0].Statuses, 1)
		require.Len(t, answers[1].Statuses, 2)

		require.NoError(t, takeN(t.Context(), e, 0, asks, answers))
		for i := range answers {
			require.True(t, answers[i].Allowed)
			require.Zero(t, answers[i].Granted)
		}
		require.NoError(t, takeN(t.Context(), e, 3, asks, answers))
		require.False(t, answers[1].Allowed)
		require.Equal(t, 12*time.Second, answers[1].RetryAfter)
		require.EqualValues(t, 2, answers[1].Remaining)
		synctest.Wait()
		require.EqualValues(t, 17, left(t, e, one))
		require.EqualValues(t, 2, left(t, e, two))
		require.NoError(t, takeN(t.Context(), e, 2, asks, answers))
		require.NoError(t, takeN(t.Context(), e, 0, asks, answers))
		require.True(t, answers[1].Allowed)
		require.Zero(t, answers[1].RetryAfter)
		require.NoError(t, takeN(t.Context(), e, 6, asks, answers), "more than two ever holds")
		require.False(t, answers[1].Allowed)
		require.Equal(t, rules.Never, answers[1].RetryAfter)
		synctest.Wait()
		require.EqualValues(t, 15, left(t, e, one))
	})
}

// TestARememberedDenialHidesNoLongerOne: the others are looked at once, and no more while it is remembered.
func TestARememberedDenialHidesNoLongerOne(t *testing.T) {
	t.Parallel()
	longs := map[string]engine.Ask{
		"a limit": ask("long", setOf(perHour(1))), "a ban": ask("long", setOf(perHour(1), bucket.NewBan(1000, 1000))),
		"slots": ask("long", setOf(perHour(1), bucket.NewSlots(5))),
	}
	for name, start := range map[string]func(*bench, testing.TB) *engine.Engine{
		"one server": (*bench).redis, "several servers": (*bench).turns,
	} {
		for of, long := range longs {
			for _, turned := range []bool{false, true} {
				inBubbleRun(t, fmt.Sprint(name, ", ", of, ", turned: ", turned), func(t *testing.T, b *bench) {
					hidesNoLongerOne(t, b, start(b, t), long, turned)
				})
			}
		}
	}
}

func hidesNoLongerOne(t *testing.T, b *bench, e *engine.Engine, long engine.Ask, turned bool) {
	short, third := ask("short", setOf(limit("s", 1, 5000))), ask("third", setOf(perMinute(10)))
	short.N, long.N, third.N = 1, 1, 1
	take(t, e, 1, short)
	require.Equal(t, engine.FromStore, take(t, e, 1, short).Source)
	take(t, b.redis(t), 1, long)
	asks := []engine.Ask{short, long, third}
	if turned {
		slices.Reverse(asks)
	}
	for round := range 3 {
		answers := make([]engine.Answer, 3)
		b.Sent.Store(0)
		require.NoError(t, e.Take(t.Context(), engine.Request{Asks: asks, Answers: answers}))
		require.Equal(t, engine.FromCache, answers[slices.IndexFunc(asks, isOf("short"))].Source)
		a := answers[slices.IndexFunc(asks, isOf("long"))]
		require.True(t, denied(a))
		require.Equal(t, time.Hour, a.RetryAfter)
		require.EqualValues(t, max(0, 1-round), b.Sent.Load())
	}
	require.EqualValues(t, 10, left(t, e, third))
	require.NoError(t, takeN(t.Context(), e, 1, []engine.Ask{short, third}, make([]engine.Answer, 2)))
	b.Sent.Store(0)
	require.NoError(t, e.Take(t.Context(), engine.Request{Asks: asks, Answers: make([]engine.Answer, 3)}))
	require.LessOrEqual(t, b.Sent.Load(), int64(1), "others beside the denial")
}

func isOf(client string) func(engine.Ask) bool {
	return func(a engine.Ask) bool { return a.Client == client }
}

// TestTrialsAreDecidedAtTheSameTime as the Asks in force, and never change what these get.
func TestTrialsAreDecidedAtTheSameTime(t *testing.T) {
	onEveryStore(t, func(t *testing.T, b *bench, e *engine.Engine) {
		var asks []engine.Ask
		for i := range 7 {
			asks = append(asks, ask(fmt.Sprint(i), setOf(perMinute(int64(i)+1))))
			asks[i].N = 2
		}
		take(t, e, 1, asks[3])
		answers := make([]engine.Answer, 7)
		b.Delay.Store(int64(5 * ms))
		start := time.Now()
		require.NoError(t, e.Take(t.Context(), engine.Request{Asks: asks[1:], Answers: answers[1:], Trials: 5}))
		if !e.IsLocal() {
			require.Equal(t, 5*ms, time.Since(start))
		}
		b.Delay.Store(0)
		for i, a := range answers[1:] {
			require.True(t, a.Allowed)
			require.EqualValues(t, map[bool]int{true: i, false: i - 1}[i != 2], a.Remaining)
		}
		require.NoError(t, e.Take(t.Context(), engine.Request{Asks: asks[:1], Answers: answers[:1], Trials: 1}))
		require.True(t, denied(answers[0]), "a trial alone")
	})
}

// TestATrialThatFailsSaysSo, and the Asks in force are decided.
func TestATrialThatFailsSaysSo(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		one, foreign := ask("one", setOf(perMinute(10))), ask("foreign", setOf(perMinute(10)))
		testkit.Must(b.Mini.Lpush("test:{foreign}:m", "x"))
		one.N, foreign.N = 1, 1
		answers := make([]engine.Answer, 2)
		require.NoError(t, e.Take(t.Context(),
			engine.Request{Asks: []engine.Ask{one, foreign}, Answers: answers, Trials: 1}))
		require.True(t, answers[0].Allowed)
		require.False(t, answers[1].Decided)
		require.ErrorIs(t, answers[1].Failed, engine.ErrUnavailable)
	})
}

// TestADenialGivesBackNoSlotThatWasNotTaken: at a cost of 0 none is.
func TestADenialGivesBackNoSlotThatWasNotTaken(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		for cost := range int64(2) {
			slots, hour := acquiring(fmt.Sprint("slots ", cost), 5), ask(fmt.Sprint("hour ", cost), setOf(perHour(1)))
			take(t, e, 1, slots)
			take(t, e, 1, hour)
			asks, answers := []engine.Ask{slots, hour}, make([]engine.Answer, 2)
			asks[0].N, asks[1].N = cost, 1
			require.NoError(t, e.Take(t.Context(), engine.Request{Asks: asks, Answers: answers}))
			require.False(t, answers[1].Allowed)
			require.EqualValues(t, 4, answers[0].Statuses[1].Remaining, "at a cost of %d", cost)
			require.EqualValues(t, 999, answers[0].Statuses[0].Remaining, "at a cost of %d", cost)
		}
	})
}

package engine_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
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

// banning returns an Ask of which every denial bans the client for a time.
func banning(client string, d time.Duration) engine.Ask {
	one := ask(client, setOf(perHour(10), bucket.NewBan(d.Milliseconds(), d.Milliseconds())))
	return one
}

// TestADenialWithoutABanEndsTheBanThatWasKnown: somebody else has ended it.
func TestADenialWithoutABanEndsTheBanThatWasKnown(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other := b.redis(t), b.redis(t)
		one := banning("k", time.Hour)
		take(t, e, 10, one)
		take(t, e, 1, one)
		require.NoError(t, other.Reset(t.Context(), &one))
		take(t, other, 10, one)
		time.Sleep(time.Second) // in which e believes its denial
		require.Equal(t, 1, e.Stats().Bans)
		one.UpTo = true
		require.Less(t, take(t, e, 1, one).RetryAfter, time.Hour)
		require.Zero(t, e.Stats().Bans)
	})
}

// TestADenialFromTheCacheBansWhomTheOneBeforeDidNot: Redis is asked again.
func TestADenialFromTheCacheBansWhomTheOneBeforeDidNot(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), banning("k", time.Hour)
		take(t, e, 10, one)
		one.UpTo = true
		require.Equal(t, engine.FromStore, take(t, e, 1, one).Source)
		require.Equal(t, engine.FromCache, take(t, e, 1, one).Source)
		require.Zero(t, e.Stats().Bans)
		one.UpTo = false
		require.Equal(t, engine.FromStore, take(t, e, 1, one).Source)
		require.Equal(t, 1, e.Stats().Bans)
		require.Equal(t, engine.FromCache, take(t, e, 1, one).Source)
	})
}

// TestEveryAskThatDeniesForGoodBans, in whatever order, and not one whose queue would have had the tokens in time.
func TestEveryAskThatDeniesForGoodBans(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		for name, row := range map[string]struct {
			own, other time.Duration // that the queue of each waits; 0 is no queue
			bans       []int
		}{
			"no queue":                 {0, 0, []int{0, 1}},
			"a queue that is too late": {time.Minute, 0, []int{0, 1}},
			"two that are too late":    {time.Minute, time.Minute, []int{0, 1}},
			"a queue in time":          {time.Hour, 0, []int{1}},
		} {
			for _, turned := range []bool{false, true} {
				own := banning(fmt.Sprint(name, turned, "own"), 10*time.Hour)
				other := banning(fmt.Sprint(name, turned, "other"), 9*time.Hour)
				take(t, e, 10, own)
				take(t, e, 10, other)
				own.N, other.N = 1, 1
				own.Queue, other.Queue = engine.Queue{Length: 1, Wait: row.own}, engine.Queue{Length: 1, Wait: row.other}
				for _, q := range []*engine.Queue{&own.Queue, &other.Queue} {
					if q.Wait == 0 {
						*q = engine.Queue{}
					}
				}
				asks := []engine.Ask{own, other}
				if turned {
					slices.Reverse(asks)
				}
				require.NoError(t, e.Take(t.Context(), engine.Request{Asks: asks, Answers: make([]engine.Answer, 2)}))
				var banned []int
				for i, a := range []engine.Ask{own, other} {
					answers := make([]engine.Answer, 1)
					require.NoError(t, e.Peek(t.Context(), &a, &answers[0]))
					if answers[0].Banned {
						banned = append(banned, i)
					}
				}
				require.Equal(t, row.bans, banned, "%s, turned: %v", name, turned)
			}
		}
	})
}

// TestTokensThatComeTooLateBanAlsoWhileASlotIsMissing, but a slot that is waited for in vain does not.
func TestTokensThatComeTooLateBanAlsoWhileASlotIsMissing(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		for name, row := range map[string]struct {
			taken  int64 // of 10 tokens a minute
			wait   time.Duration
			banned bool
		}{
			"too late": {10, 5 * time.Second, true},
			"in time":  {10, 7 * time.Second, false},
			"at once":  {9, 5 * time.Second, false},
		} {
			ban, slot := bucket.NewBan((10*time.Hour).Milliseconds(), (10*time.Hour).Milliseconds()), bucket.NewSlots(1)
			one := ask(name, setOf(perMinute(10), ban, slot))
			held := take(t, e, row.taken, one)
			require.True(t, held.HasSlot(), name)
			start, denied := time.Now(), engine.Answer{}
			require.NoError(t, takeQueued(t.Context(), e, 1, &one, &denied, 1, row.wait), name)
			require.False(t, denied.Allowed, name)
			require.Equal(t, row.banned, denied.Banned, name)
			require.Equal(t, row.banned, time.Since(start) < time.Second, name)
		}
	})
}

// TestNobodyIsBannedUnlessTheAskSaysSo.
func TestNobodyIsBannedUnlessTheAskSaysSo(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*engine.Ask)
		bans   int
	}{
		"every denial":         {func(*engine.Ask) {}, 1},
		"fewer tokens will do": {func(a *engine.Ask) { a.UpTo = true }, 0},
		"a queue":              {func(a *engine.Ask) { a.Queue = engine.Queue{Length: 1, Wait: time.Second} }, 1},
		"there is no ban":      {func(a *engine.Ask) { a.Set = setOf(perHour(10)) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
				one := banning("k", time.Hour)
				row.change(&one)
				take(t, e, 10, one)
				require.False(t, take(t, e, 1, one).Allowed)
				require.Equal(t, row.bans, e.Stats().Bans)
			})
		})
	}
}

// TestDecisionsOnLimitsAloneLeaveTheBanThatIsKnown, allowed and denied, and so do a refund and a block.
func TestDecisionsOnLimitsAloneLeaveTheBanThatIsKnown(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one := banning("k", time.Hour)
		take(t, e, 10, one)
		take(t, e, 1, one)
		time.Sleep(10 * time.Minute)
		limits, other := scoped(one, rules.Limits), ask("k", setOf(perMinute(10)))
		for range 2 {
			for _, another := range []engine.Ask{limits, other} {
				take(t, e, 1, another)
				take(t, e, 10, another)
				require.Equal(t, 1, e.Stats().Bans)
			}
			require.NoError(t, e.Refund(t.Context(), 10, &one))
			require.NoError(t, e.Block(t.Context(), time.Minute, &one))
			require.Equal(t, 1, e.Stats().Bans)
		}
		require.Equal(t, 50*time.Minute, take(t, e, 1, one).RetryAfter)
	})
}

// TestBansInAnOutageAreNotCounted, as others do not hold them.
func TestBansInAnOutageAreNotCounted(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		b.outage(t, e)
		one := banning("k", time.Hour)
		one.Failure = engine.FailLocal
		take(t, e, 10, one)
		require.Equal(t, time.Hour, take(t, e, 1, one).RetryAfter)
		require.Zero(t, e.Stats().Bans)
	})
}

// TestADenialInAnOutageBans, whether the request would have waited for its tokens or not: once it is denied.
func TestADenialInAnOutageBans(t *testing.T) {
	for _, length := range []int{0, 1} {
		for _, before := range []bool{false, true} { // another Ask of the request denies first
			for _, slots := range []bool{false, true} {
				inBubbleRun(t, fmt.Sprint(length, before, slots), func(t *testing.T, b *bench) {
					e := b.redis(t)
					b.outage(t, e)
					one, first := banning("k", time.Hour), ask("first", setOf(perHour(1)))
					if slots {
						one.Set = setOf(perHour(10), bucket.NewBan(time.Hour.Milliseconds(), time.Hour.Milliseconds()), bucket.NewSlots(20))
					}
					one.Failure, first.Failure = engine.FailLocal, engine.FailLocal
					take(t, e, 10, one)
					asks := []engine.Ask{one}
					if before {
						take(t, e, 1, first)
						asks = []engine.Ask{first, one}
					}
					answers := make([]engine.Answer, len(asks))
					require.NoError(t, takeInLine(t.Context(), e, 1, asks, answers, engine.Queue{Length: length, Wait: time.Second}))
					last := answers[len(asks)-1]
					require.False(t, last.Allowed)
					require.True(t, last.Banned)
					require.Equal(t, time.Hour, take(t, e, 1, one).RetryAfter)
				})
			}
		}
	}
}

// TestBansThatAProcessKnowsAreBounded: when it knows of as many as it can, it learns of another once one has ended. It
// looks for that once a second at most.
func TestBansThatAProcessKnowsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := local(t)
		const most = 1 << 16
		asks, answers := make([]engine.Ask, 1), make([]engine.Answer, 1)
		sets := map[time.Duration]*rules.Set{}
		bans := func(client string, d time.Duration) {
			if sets[d] == nil {
				sets[d] = setOf(perHour(1), bucket.NewBan(d.Milliseconds(), d.Milliseconds()))
			}
			asks[0] = engine.Ask{Subject: engine.Subject{Client: client, Set: sets[d]}}
			for range 2 {
				_ = takeN(t.Context(), e, 1, asks, answers)
			}
		}
		for i := range most - 1 {
			bans(strconv.Itoa(i), time.Hour)
		}
		bans("short", time.Second/2)
		require.Equal(t, most, e.Stats().Bans)
		time.Sleep(time.Second - ms)
		bans("too soon", 2*time.Hour)
		time.Sleep(ms)
		bans("in time", 3*time.Hour)
		time.Sleep(time.Minute)
		bans("one too many", 2*time.Hour)
		bans("0", 3*time.Hour) // is known
		require.Equal(t, most, e.Stats().Bans)
		time.Sleep(time.Hour)
		require.Equal(t, 1, e.Stats().Bans)
		time.Sleep(time.Hour)
		require.Equal(t, 1, e.Stats().Bans, "the one in time")
	})
}

// TestADenialBansTheClient, and this process knows of the ban until it ends.
func TestADenialBansTheClient(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		one, two := banning("one", time.Hour), banning("two", 2*time.Hour)
		take(t, e, 10, one)
		require.Zero(t, e.Stats().Bans)
		a := take(t, e, 1, one)
		require.Equal(t, time.Hour, a.RetryAfter)
		require.Equal(t, 1, e.Stats().Bans)
		take(t, e, 10, two)
		take(t, e, 1, two)
		require.Equal(t, 2, e.Stats().Bans)
		time.Sleep(time.Hour - ms)
		require.Equal(t, 2, e.Stats().Bans)
		require.False(t, take(t, e, 1, one).Allowed)
		time.Sleep(ms)
		require.Equal(t, 1, e.Stats().Bans)
		require.True(t, take(t, e, 1, one).Allowed)
		require.Equal(t, time.Hour, take(t, e, 1, two).RetryAfter)
		time.Sleep(time.Hour)
		require.Zero(t, e.Stats().Bans)
	})
}

// onceAfter returns an engine, after whose next script but some a function is called.
func (b *bench) onceAfter(t *testing.T) (e *engine.Engine, once func(f func())) {
	var next atomic.Pointer[func()]
	rdb := b.client(t)
	rdb.AddHook(testkit.EveryScript(func(send func() error) error {
		err := send()
		if f := next.Swap(nil); f != nil {
			(*f)()
		}
		return err
	}))
	return b.start(t, rdb, engine.Config{}, 64), func(f func()) { next.Store(&f) }
}

// TestWhatABanFindsIsGivenBack, though the client was denied when the request looked: also while the engine ends, and
// if there is no decision on another Ask.
func TestWhatABanFindsIsGivenBack(t *testing.T) {
	for name, ends := range map[string]bool{"Close": true, "an error": false} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			e, after := b.onceAfter(t)
			line, banned := ask("line", setOf(limit("s", 1, 1000))), ask("k", setOf(perHour(1), bucket.NewBan(60_000, 60_000)))
			other := ask("other", setOf(perHour(1), bucket.NewBan(60_000, 60_000)))
			line.N, line.Queue, banned.N, other.N = 1, engine.Queue{Length: 5, Wait: 3 * time.Second}, 1, 1
			alone := func() error {
				return e.Take(t.Context(), engine.Request{Asks: []engine.Ask{line}, Answers: make([]engine.Answer, 1)})
			}
			require.NoError(t, alone())
			take(t, e, 1, banned)
			take(t, e, 1, other)
			waits := goes(alone)
			synctest.Wait()
			b.Delay.Store(int64(10 * ms))
			after(func() {
				b.Mini.Del("test:{k}:h")
				if !ends {
					b.Mini.Del("test:{other}:h")
					require.NoError(t, b.Mini.Set("test:{other}:ban", "foreign"))
				}
			})
			done := goes(func() error {
				return e.Take(t.Context(), engine.Request{
					Asks: []engine.Ask{line, banned, other}, Answers: make([]engine.Answer, 3),
				})
			})
			time.Sleep(15 * ms)
			if ends {
				e.Close()
			}
			require.Error(t, <-done)
			b.Delay.Store(0)
			time.Sleep(timeout)
			require.EqualValues(t, 1, left(t, b.redis(t), banned))
			require.Equal(t, ends, <-waits != nil)
		})
	}
}

// TestWhoWaitsIntoAnotherPeriodIsNotBannedForTheOneBefore.
func TestWhoWaitsIntoAnotherPeriodIsNotBannedForTheOneBefore(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		time.Sleep(24*time.Hour - time.Minute)
		set, ban := daily(5), bucket.NewBan(60_000, 60_000)
		require.True(t, take(t, e, 4, ask("k", set.WithPeriods(time.Now().Add(time.Hour)))).Allowed, "of both days")
		set.Guard(&ban, nil)
		require.True(t, take(t, e, 1, ask("k", set)).Allowed)
		ctx, cancel := context.WithCancel(t.Context())
		first := waits(ctx, e, 2, ask("k", set), new(engine.Answer))
		q := engine.Queue{Length: 5, Wait: 2 * time.Minute}
		second, answers := ask("k", set), make([]engine.Answer, 1)
		require.NoError(t, takeInLine(t.Context(), e, 1, []engine.Ask{second}, answers, q))
		require.Equal(t, 2*time.Minute, answers[0].Waited.Round(time.Second))
		require.False(t, answers[0].Allowed || answers[0].Banned)
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)
		require.True(t, take(t, e, 1, ask("k", set.Now())).Allowed)
	})
}

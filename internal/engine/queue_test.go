package engine_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
)

// takes takes a token and a slot of each Ask in the background, and waits for what is missing.
func takes(t *testing.T, e *engine.Engine, asks []engine.Ask, q engine.Queue) ([]engine.Answer, <-chan error) {
	answers := make([]engine.Answer, len(asks))
	done := goes(func() error { return takeInLine(t.Context(), e, 1, asks, answers, q) })
	synctest.Wait()
	return answers, done
}

// holding is a question about slots alone.
func holding(client string, n int64) engine.Ask {
	a := ask(client, setOf(bucket.NewSlots(n)))
	return a
}

// TestWhoMayHoldMoreSlotsWaitsForLess: it has a line of its own.
func TestWhoMayHoldMoreSlotsWaitsForLess(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		batch, people := holding("k", 2), holding("k", 3)
		q := engine.Queue{Length: 9, Wait: time.Minute}
		held := take(t, e, 1, batch)
		take(t, e, 1, batch)
		_, waits := takes(t, e, []engine.Ask{batch}, q)
		answers, done := takes(t, e, []engine.Ask{people}, q)
		require.NoError(t, <-done)
		require.True(t, answers[0].HasSlot())
		release(e, people, answers[0])
		synctest.Wait()
		require.Empty(t, waits)
		start := time.Now()
		release(e, batch, held)
		require.NoError(t, <-waits)
		require.Zero(t, time.Since(start))
	})
}

// TestARequestThatPanicsAsItBeginsToWaitLeavesItsLine, so that those behind it go on.
func TestARequestThatPanicsAsItBeginsToWaitLeavesItsLine(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		q := engine.Queue{Length: 9, Wait: time.Minute}
		one := holding("k", 1)
		held := take(t, e, 1, one)
		queued := one
		queued.N, queued.Queue = 1, q
		require.Panics(t, func() {
			_ = e.Take(t.Context(), engine.Request{Asks: []engine.Ask{queued}, Answers: make([]engine.Answer, 1),
				Waits: func() { panic("a context of the application") }})
		})
		answers, waits := takes(t, e, []engine.Ask{one}, q)
		release(e, one, held)
		require.NoError(t, <-waits)
		require.True(t, answers[0].HasSlot())
	})
}

// TestWhoIsNotHelpedByWaitingDoesNotWait behind others either.
func TestWhoIsNotHelpedByWaitingDoesNotWait(t *testing.T) {
	onEveryStore(t, func(t *testing.T, b *bench, e *engine.Engine) {
		account, q := holding("account", 1), engine.Queue{Length: 3, Wait: 2 * time.Second}
		take(t, e, 1, account)
		_, waits := takes(t, e, []engine.Ask{ask("first", setOf(perHour(1))), account}, q)
		start := time.Now()

		banned := ask("banned", setOf(perHour(5), bucket.NewBan(3_600_000, 3_600_000)))
		require.False(t, take(t, e, 6, banned).Allowed)
		require.True(t, take(t, e, 5, banned).Allowed)
		require.True(t, take(t, e, 1, banned).Banned)
		answers, done := takes(t, e, []engine.Ask{banned, account}, q)
		require.NoError(t, <-done)
		require.True(t, answers[0].Banned)

		late := ask("late", setOf(perHour(1)))
		take(t, e, 1, late)
		answers, done = takes(t, e, []engine.Ask{late, account}, q)
		require.NoError(t, <-done)
		require.False(t, answers[0].Allowed)
		require.Equal(t, time.Hour, answers[0].RetryAfter.Round(time.Second))
		require.Zero(t, time.Since(start))
		require.Empty(t, waits)
		require.NoError(t, <-waits)
	})
}

// TestARequestWaitsOnlyInQueuesOfItsAsks: what it lacks of another Ask denies it at once, and bans.
func TestARequestWaitsOnlyInQueuesOfItsAsks(t *testing.T) {
	onEveryStore(t, func(t *testing.T, b *bench, e *engine.Engine) {
		q := engine.Queue{Length: 9, Wait: time.Second}
		account, key := holding("account", 1), ask("key", setOf(perHour(1), bucket.NewBan(7_200_000, 7_200_000)))
		account.N, account.Queue = 1, q
		key.N = 1
		both := func() ([]engine.Answer, <-chan error) {
			answers := make([]engine.Answer, 2)
			return answers, goes(func() error {
				return e.Take(t.Context(), engine.Request{Asks: []engine.Ask{account, key}, Answers: answers})
			})
		}
		held, done := both()
		require.NoError(t, <-done)
		require.True(t, held[0].HasSlot() && held[1].Allowed)

		_, waits := takes(t, e, []engine.Ask{account}, q)
		start := time.Now()
		answers, done := both()
		require.NoError(t, <-done, "behind one that waits")
		require.Zero(t, time.Since(start))
		require.False(t, answers[1].Allowed)
		require.True(t, answers[1].Banned)
		require.False(t, answers[1].QueueFull)
		release(e, account, held[0])
		require.NoError(t, <-waits)

		require.NoError(t, e.Reset(t.Context(), &key))
		time.Sleep(time.Second) // soon after a reset nothing is given back, as it may have come later than what was taken
		start = time.Now()
		answers, done = both() // nobody stands before it
		require.NoError(t, <-done)
		require.Equal(t, time.Second, time.Since(start).Round(10*ms))
		require.False(t, answers[0].Allowed)
		require.False(t, answers[0].QueueFull, "it waited in vain")
		require.Equal(t, time.Second, answers[0].Waited.Round(10*ms))
		require.Equal(t, int64(1), left(t, e, key))

		take(t, e, 1, key)
		start = time.Now()
		answers, done = both()
		require.NoError(t, <-done, "also where no script decides on both")
		require.Zero(t, time.Since(start))
		require.True(t, answers[1].Banned)
	})
}

// TestAFullQueueBansNobodyForWhatComesInTime: the request is denied for want of a place, and not for tokens for
// which it would have waited.
func TestAFullQueueBansNobodyForWhatComesInTime(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		account, key := holding("account", 1), ask("key", setOf(perMinute(60), bucket.NewBan(60_000, 60_000)))
		take(t, e, 1, account)
		take(t, e, 60, key)
		q := engine.Queue{Length: 1, Wait: 2 * time.Second}
		_, waits := takes(t, e, []engine.Ask{account}, q)
		answers, done := takes(t, e, []engine.Ask{account, key}, q)
		require.NoError(t, <-done)
		require.True(t, answers[0].QueueFull)
		require.False(t, answers[1].Decided)
		require.Zero(t, e.Stats().Bans)
		require.NoError(t, <-waits)
	})
}

// TestEachQueueHasItsWait: a request waits no longer in it, and in all no longer than the longest.
func TestEachQueueHasItsWait(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		user, account := holding("user", 1), holding("account", 1)
		user.Queue, account.Queue = engine.Queue{Length: 1, Wait: time.Second}, engine.Queue{Length: 1, Wait: 3 * time.Second}
		user.N, account.N = 1, 1
		ofUser, ofAccount := take(t, e, 1, user), take(t, e, 1, account)
		both := func() ([]engine.Answer, <-chan error) {
			answers := make([]engine.Answer, 2)
			return answers, goes(func() error {
				return e.Take(t.Context(), engine.Request{Asks: []engine.Ask{user, account}, Answers: answers})
			})
		}
		start := time.Now()
		answers, done := both()
		require.NoError(t, <-done)
		require.Equal(t, time.Second, time.Since(start).Round(10*ms))
		require.False(t, answers[0].Allowed || answers[0].QueueFull)

		release(e, user, ofUser)
		start = time.Now()
		answers, done = both()
		time.Sleep(2450 * ms) // for the account
		take(t, e, 1, user)
		release(e, account, ofAccount)
		require.NoError(t, <-done)
		require.Equal(t, 3*time.Second, time.Since(start).Round(10*ms), "in all")
		require.False(t, answers[0].Allowed || answers[0].QueueFull)
		require.Equal(t, 3*time.Second, (answers[0].Waited + answers[1].Waited).Round(10*ms))

		_, done = both()
		synctest.Wait()
		full, denied := both()
		require.NoError(t, <-denied)
		require.True(t, full[0].QueueFull, "the one place is taken")
		require.NoError(t, <-done)
	})
}

// TestDenialsBehindAWaiterAreRemembered: they cost Redis one call a second.
func TestDenialsBehindAWaiterAreRemembered(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), ask("k", setOf(perMinute(6)))
		take(t, e, 6, one)
		q := engine.Queue{Length: 1, Wait: time.Minute}
		_, waits := takes(t, e, []engine.Ask{one}, q)
		b.Sent.Store(0)
		for range 100 {
			answers, done := takes(t, e, []engine.Ask{one}, q)
			require.NoError(t, <-done)
			require.False(t, answers[0].Allowed)
			require.Equal(t, 20*time.Second, answers[0].RetryAfter.Round(time.Second), "one is before it")
		}
		require.LessOrEqual(t, b.Sent.Load(), int64(2))
		require.NoError(t, <-waits)
	})
}

// TestProcessesThatMayHoldMoreSlotsWaitForLess: a free slot that another process may not hold is theirs.
func TestProcessesThatMayHoldMoreSlotsWaitForLess(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		first, second := b.redis(t), b.redis(t)
		batch, people := holding("k", 2), holding("k", 3)
		q := engine.Queue{Length: 9, Wait: time.Minute}
		held := take(t, first, 1, batch)
		take(t, first, 1, batch)
		_, waits := takes(t, first, []engine.Ask{batch}, q)
		time.Sleep(50 * ms)
		answers, done := takes(t, second, []engine.Ask{people}, q)
		require.NotEmpty(t, done, "at once")
		require.NoError(t, <-done)
		require.True(t, answers[0].HasSlot())
		release(second, people, answers[0])
		release(first, batch, held)
		require.NoError(t, <-waits)
	})
}

// TestARequestHasOneDeadline, a timeout after its wait, however many keys it has, where others wait too,
// and Redis does not answer.
func TestARequestHasOneDeadline(t *testing.T) {
	for name, start := range map[string]func(*bench, testing.TB) *engine.Engine{
		"together": (*bench).redis, "in turn": (*bench).turns,
	} {
		for _, failure := range []engine.Failure{engine.FailLocal, engine.FailOpen, engine.FailClosed} {
			for _, first := range []bool{true, false} {
				inBubbleRun(t, fmt.Sprint(name, " ", failure, " ", first), func(t *testing.T, b *bench) {
					e, q := start(b, t), engine.Queue{Length: 9, Wait: 70 * ms}
					asks := func() (all []engine.Ask) {
						for _, client := range []string{"k", "u"} {
							one := failing(client, setOf(perHour(9), bucket.NewBan(1000, 1000), bucket.NewSlots(1)), failure)
							all = append(all, one)
						}
						return all
					}
					require.NoError(t, takeN(t.Context(), e, 1, asks(), make([]engine.Answer, 2)))
					if !first {
						_, _ = takes(t, e, asks(), q)
					}
					b.Delay.Store(int64(time.Second))
					began := time.Now()
					_ = takeInLine(t.Context(), e, 1, asks(), make([]engine.Answer, 2), q)
					require.LessOrEqual(t, time.Since(began), q.Wait+timeout)
					b.Delay.Store(0)
					time.Sleep(3 * time.Second)
				})
			}
		}
	}
}

// TestACallerWhoseTurnNeverCameIsToldWhenTheLineHasItsTokens, without its own, and leaves the line.
func TestACallerWhoseTurnNeverCameIsToldWhenTheLineHasItsTokens(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, other := b.redis(t), b.redis(t)
		one := ask("k", setOf(limit("s", 10, 1000)))
		take(t, e, 10, one)
		var first, second engine.Answer
		served := goes(func() error { own := one; return takeQueued(t.Context(), e, 5, &own, &first, 2, time.Minute) })
		leaves := queued(t.Context(), e, one, &second, 2, 700*ms)
		for range 4 {
			time.Sleep(100 * ms)
			require.True(t, take(t, other, 1, one).Allowed)
		}
		require.NoError(t, <-leaves)
		require.Equal(t, 700*ms, second.Waited)
		require.Equal(t, 300*ms, second.RetryAfter, "the first has its tokens after 900 ms")
		require.NoError(t, <-served)
		require.Equal(t, 900*ms, first.Waited)
		var next engine.Answer
		require.NoError(t, takeQueued(t.Context(), e, 1, &one, &next, 2, time.Minute))
		require.Equal(t, 100*ms, next.Waited, "nobody stands before it")
	})
}

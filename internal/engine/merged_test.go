package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Decisions on several keys that one call of a script makes for several callers.

// together makes decisions that share a call, and returns their answers. Those that fail have none.
func (b *bench) together(t testing.TB, e *engine.Engine, n int, asks func() []engine.Ask) (all [][]engine.Answer) {
	b.Delay.Store(int64(10 * time.Millisecond))
	var callers sync.WaitGroup
	for range 2 { // these take the places in flight
		callers.Go(func() {
			assert.NoError(t, takeN(t.Context(), e, 1, []engine.Ask{ask("x", setOf(perHour(100)))}, make([]engine.Answer, 1)))
		})
		synctest.Wait()
	}
	sent := b.Sent.Load()
	all = make([][]engine.Answer, n)
	for i := range all {
		callers.Go(func() {
			a := asks()
			all[i] = make([]engine.Answer, len(a))
			for j := range a {
				a[j].N = max(1, a[j].N)
			}
			assert.NoError(t, e.Take(t.Context(), engine.Request{Asks: a, Answers: all[i]}))
		})
		synctest.Wait()
	}
	callers.Wait()
	require.EqualValues(t, 1, b.Sent.Load()-sent, "one batch")
	b.Delay.Store(0)
	return all
}

// TestCallersOfOneCallTakeTheNumberOfEachAsk: three of four callers take two and three tokens.
func TestCallersOfOneCallTakeTheNumberOfEachAsk(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.start(t, b.client(t), engine.Config{Timeout: time.Second}, 0)
		user, account := ask("user", setOf(perHour(100))), ask("account", setOf(perHour(10)))
		user.N, account.N = 2, 3
		for i, answers := range b.together(t, e, 4, func() []engine.Ask { return []engine.Ask{user, account} }) {
			require.Equal(t, i < 3, answers[0].Allowed && answers[1].Allowed)
			require.EqualValues(t, 10-3*min(i+1, 3), answers[1].Remaining)
		}
		require.EqualValues(t, 94, left(t, e, user))
		require.EqualValues(t, 1, left(t, e, account))
	})
}

// TestCallersOfOneCallAreAnsweredInOrder: each is told what it would be alone.
func TestCallersOfOneCallAreAnsweredInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.start(t, b.client(t), engine.Config{Timeout: time.Second}, 0)
		inFlight := func(client string, n int64) engine.Ask {
			a := ask(client, setOf(perHour(10), bucket.NewSlots(n)))
			return a
		}
		all := b.together(t, e, 5, func() []engine.Ask { return []engine.Ask{inFlight("user", 4), inFlight("account", 3)} })
		for i, answers := range all {
			require.Equal(t, i < 3, answers[0].Allowed && answers[1].Allowed, i)
			require.EqualValues(t, 10-min(i+1, 3), answers[0].Status(0).Remaining, i)
			require.EqualValues(t, max(0, 3-i-1), answers[1].Status(1).Remaining, i)
			require.Equal(t, i < 3, answers[1].HasSlot(), i)
		}
		require.Equal(t, 6, e.Stats().Slots)
		slots := b.Mini.HGet("test:{account}:slots", "all")
		require.Regexp(t, "^10000 10000 3 1$", slots, "a slot for each")
	})
}

// TestCallersOfOneCallAreBannedForWhatTheirKeyLacks, and not for what another key lacks.
func TestCallersOfOneCallAreBannedForWhatTheirKeyLacks(t *testing.T) {
	for name, row := range map[string]struct {
		own, other int64
		banned     bool
	}{
		"another key lacks":      {3, 1, false},
		"the own key lacks":      {1, 3, true},
		"both lack":              {1, 1, true},
		"another key lacks more": {2, 0, false},
	} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			e := b.start(t, b.client(t), engine.Config{Timeout: time.Second}, 0)
			ban := bucket.NewBan(60_000, 3_600_000)
			if row.other == 0 {
				take(t, e, 1, ask("other", setOf(perHour(1))))
				row.other = 1
			}
			b.together(t, e, 4, func() []engine.Ask {
				own := ask("own", setOf(perHour(row.own), ban))
				return []engine.Ask{own, ask("other", setOf(perHour(row.other)))}
			})
			require.Equal(t, row.banned, b.Mini.Exists("test:{own}:ban"))
		})
	}
}

// TestACallerThatLeftAGroupLeavesNoSlot: Redis hears of its leaving before the call arrives, in which another
// caller waits for the same slot.
func TestACallerThatLeftAGroupLeavesNoSlot(t *testing.T) {
	for _, levels := range []int{1, 2} {
		inBubbleRun(t, fmt.Sprint(levels, " levels"), func(t *testing.T, b *bench) {
			rdb := b.client(t)
			var scripts atomic.Int64
			rdb.AddHook(testkit.EveryScript(func(send func() error) error {
				switch scripts.Add(1) {
				case 1:
					time.Sleep(10 * time.Millisecond)
				case 2: // the report overtakes it
					time.Sleep(60 * time.Millisecond)
				}
				return send()
			}))
			e := b.start(t, rdb, engine.Config{Timeout: 200 * time.Millisecond}, 0)
			asks := func() (all []engine.Ask) {
				for i := range levels {
					a := ask(fmt.Sprint("k", i), setOf(bucket.NewSlots(1)))
					all = append(all, a)
				}
				return all
			}
			var callers sync.WaitGroup
			for range 2 {
				callers.Go(func() {
					assert.NoError(t, takeN(t.Context(), e, 1, []engine.Ask{ask("x", setOf(perHour(100)))}, make([]engine.Answer, 1)))
				})
				synctest.Wait()
			}
			leaves, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			defer cancel()
			answers := make([]engine.Answer, levels)
			for _, ctx := range []context.Context{leaves, t.Context()} {
				callers.Go(func() {
					if ctx == leaves {
						assert.ErrorIs(t, takeN(ctx, e, 1, asks(), make([]engine.Answer, levels)), context.DeadlineExceeded)
					} else {
						assert.NoError(t, takeN(ctx, e, 1, asks(), answers))
					}
				})
				synctest.Wait()
			}
			callers.Wait()
			time.Sleep(time.Second)
			require.Equal(t, answers[levels-1].Allowed, e.Stats().Slots > 0)
			for i := range answers {
				charge := answers[i].Charge(&asks()[i])
				e.Release(&charge)
			}
			time.Sleep(time.Second)
			other := b.redis(t)
			answers = make([]engine.Answer, levels)
			require.NoError(t, takeN(t.Context(), other, 1, asks(), answers))
			require.True(t, answers[levels-1].Allowed, "the slot is free")
		})
	}
}

// inFlight has an engine send a call that takes 3 tokens ahead, and returns what its caller gets.
func inFlight(t *testing.T, b *bench, e *engine.Engine, ctx context.Context, one engine.Ask) <-chan error {
	require.Equal(t, "ssssl", sources(t, e, 5, one))
	b.Delay.Store(int64(timeout / 5))
	return goes(func() error { return takeN(ctx, e, 1, []engine.Ask{one}, make([]engine.Answer, 1)) })
}

// TestCallersOfAKeyWaitForTheCallInFlight and use the tokens that it takes ahead. Who gets none
// makes a call, and waits for no other.
func TestCallersOfAKeyWaitForTheCallInFlight(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), leasing("k")
		first := inFlight(t, b, e, t.Context(), one)
		sent, start := b.Sent.Load(), time.Now()
		var others []<-chan error
		answers := make([]engine.Answer, 5)
		for i := range answers {
			others = append(others, goes(func() error {
				return takeN(t.Context(), e, 1, []engine.Ask{one}, answers[i:i+1])
			}))
		}
		time.Sleep(timeout/5 + ms)
		require.NoError(t, <-first)
		synctest.Wait()
		require.Equal(t, sent+1, b.Sent.Load(), "the calls of the two others, together")
		bySource := map[engine.Source]int{}
		for i := range answers {
			require.NoError(t, <-others[i])
			bySource[answers[i].Source]++
		}
		require.Equal(t, map[engine.Source]int{engine.FromLease: 3, engine.FromStore: 2}, bySource)
		require.Equal(t, 2*timeout/5, time.Since(start))
	})
}

// TestCallersThatWaitShareTheError of the call in flight, within the timeout.
func TestCallersThatWaitShareTheError(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), leasing("k")
		first := inFlight(t, b, e, t.Context(), one)
		b.Cut.Store(true)
		sent, answers := b.Sent.Load(), make([]engine.Answer, 1)
		second := goes(func() error { return takeN(t.Context(), e, 1, []engine.Ask{one}, answers) })
		for _, done := range []<-chan error{first, second} {
			require.ErrorIs(t, <-done, engine.ErrUnavailable)
		}
		require.ErrorContains(t, answers[0].Err, "unexpected EOF")
		require.Equal(t, sent, b.Sent.Load())
	})
}

// TestACallerWaitsForAnotherNoLongerThanTheTimeout, nor than its context lasts.
func TestACallerWaitsForAnotherNoLongerThanTheTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), leasing("k")
		require.Equal(t, "ssssl", sources(t, e, 5, one))
		b.Delay.Store(int64(time.Second))
		first := goes(func() error { return takeN(t.Context(), e, 1, []engine.Ask{one}, make([]engine.Answer, 1)) })
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
		defer cancel()
		err := takeN(ctx, e, 1, []engine.Ask{one}, make([]engine.Answer, 1))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, engine.ErrUnavailable)
		require.Equal(t, 10*ms, time.Since(start))
		err = takeN(t.Context(), e, 1, []engine.Ask{one}, make([]engine.Answer, 1))
		require.ErrorIs(t, err, engine.ErrUnavailable)
		require.LessOrEqual(t, time.Since(start), 10*ms+timeout+timeout/10)
		require.ErrorIs(t, <-first, engine.ErrUnavailable)
	})
}

// TestStatsCountWhatThisProcessKnows, with Redis.
func TestStatsCountWhatThisProcessKnows(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		blocked := ask("blocked", setOf(perHour(10), perMinute(10)))
		require.NoError(t, e.Block(t.Context(), 1, &blocked))
		time.Sleep(ms) // a block ends the leases of a few other keys, too, by chance
		sources(t, e, 10, leasing("leased"))
		slot := acquiring("slot", 2)
		take(t, e, 1, slot)
		take(t, e, 1, slot)
		banned := ask("banned", setOf(perHour(10), bucket.NewBan(60_000, 60_000)))
		take(t, e, 10, banned)
		take(t, e, 1, banned)
		stats := e.Stats()
		require.Equal(t, 1, stats.Redis.Servers)
		require.NotZero(t, stats.Redis.Calls)
		stats.Redis = engine.Stats{}.Redis
		require.Equal(t, engine.Stats{Replicas: 1, Leases: 1, Leased: 4, Slots: 2, Bans: 1, Denials: 1, Local: 2}, stats)
	})
}

// TestReasonsAreWordsForMetrics.
func TestReasonsAreWordsForMetrics(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{dispatch.ErrClosed, "closed"},
		{dispatch.ErrOpen, "breaker_open"},
		{dispatch.ErrQueueFull, "queue_full"},
		{dispatch.ErrLate, "late"},
		{context.DeadlineExceeded, "late"},
		{io.EOF, "network"},
		{syscall.ECONNREFUSED, "connection_refused"},
		{fmt.Errorf("alice"), "client"},
	} {
		require.Equal(t, row.want, engine.Reason(row.err))
		if row.err != nil {
			require.Equal(t, row.want, engine.Reason(engine.Unavailable(t.Context(), row.err)))
		}
		require.Equal(t, row.want == "closed", errors.Is(row.err, engine.ErrClosed))
	}
}

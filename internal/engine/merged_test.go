package engine_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
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
			assert.NoError(t, e.Take(t.Context(), &engine.Request{Asks: a, Answers: all[i]}))
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
		slots, _ := b.Mini.Get("test:{account}:slots")
		require.Equal(t, 3, strings.Count(slots, ","), "%s: a slot for each", slots)
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
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
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
		})
	}
}

// TestACallerThatLeftAGroupLeavesNoSlot: Redis hears of its leaving before the call arrives, in which another
// caller waits for the same slot.
func TestACallerThatLeftAGroupLeavesNoSlot(t *testing.T) {
	for _, levels := range []int{1, 2} {
		t.Run(fmt.Sprint(levels, " levels"), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
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
		})
	}
}

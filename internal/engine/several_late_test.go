package engine_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// onNodes returns an engine of two servers, and a key on each. What the second server does is late if
// that is true.
func onNodes(t *testing.T, b *bench, late *atomic.Bool) (e *engine.Engine, first, second string) {
	return onHookedNodes(t, b, func(send func() error) error {
		err := send()
		if late.Load() {
			time.Sleep(2 * timeout)
		}
		return err
	})
}

// onHookedNodes is onNodes with a hook for the scripts of the second server.
func onHookedNodes(t *testing.T, b *bench, hook func(send func() error) error) (
	e *engine.Engine, first, second string) {
	const other = "127.0.0.1:2"
	node := &testkit.Bubble{Mini: miniredis.NewMiniRedis()}
	t.Cleanup(node.Mini.Close)
	ring := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"a": "127.0.0.1:1", "b": other},
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == other {
				return node.Dial(ctx, network, addr)
			}
			return b.Dial(ctx, network, addr)
		},
		NewClient: func(o *redis.Options) *redis.Client {
			o.Protocol, o.DisableIdentity = 2, true
			rdb := redis.NewClient(o)
			if o.Addr == other {
				rdb.AddHook(testkit.EveryScript(hook))
			}
			return rdb
		},
	})
	t.Cleanup(func() { _ = ring.Close() })
	for i := 0; first == "" || second == ""; i++ {
		key := fmt.Sprint("k", i)
		if testkit.Must(ring.GetShardClientForKey("test:{"+key+"}:h")).Options().Addr == other {
			second = key
		} else {
			first = key
		}
	}
	return b.start(t, ring, engine.Config{}, 64), first, second
}

// TestADenialGivesBackWhatALateServerTakes, once that has answered, whatever happens without it.
func TestADenialGivesBackWhatALateServerTakes(t *testing.T) {
	for _, failure := range []engine.Failure{engine.FailLocal, engine.FailOpen, engine.FailClosed} {
		inBubbleRun(t, fmt.Sprint(failure), func(t *testing.T, b *bench) {
			var late atomic.Bool
			e, first, second := onNodes(t, b, &late)
			one, two := failing(first, setOf(perHour(1)), failure), failing(second, setOf(perHour(10)), failure)
			take(t, e, 1, one)
			take(t, e, 1, two)
			late.Store(true)
			err := takeN(t.Context(), e, 1, []engine.Ask{one, two}, make([]engine.Answer, 2))
			require.Equal(t, failure == engine.FailClosed, err != nil)
			late.Store(false)
			time.Sleep(3 * time.Second)
			require.EqualValues(t, 9, left(t, e, two))
		})
	}
}

// TestALateLookChangesNothing: its call is only read while it is on its way.
func TestALateLookChangesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		one := failing("one", setOf(perHour(1)), engine.FailLocal)
		two := failing("two", setOf(perHour(5)), engine.FailLocal)
		for range 2 {
			take(t, e, 1, one)
		}
		b.Late.Store(int64(2 * timeout))
		require.NoError(t, takeN(t.Context(), e, 1, []engine.Ask{one, two}, make([]engine.Answer, 2)))
		b.Late.Store(0)
		time.Sleep(4 * timeout)
		require.EqualValues(t, 5, left(t, e, two))
	})
}

// TestALookThatAServerRefusesIsMadeApart, as the keys are several.
func TestALookThatAServerRefusesIsMadeApart(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		rdb := b.client(t)
		rdb.AddHook(testkit.Hook(func(cmds []redis.Cmder, send func() error) error {
			text := fmt.Sprint(cmds[0].Args()...)
			if strings.Contains(text, "{two}") && strings.Contains(text, "{three}") {
				b.Mini.SetError("CROSSSLOT Keys in request don't hash to the same slot")
			}
			defer b.Mini.SetError("")
			return send()
		}))
		e := b.start(t, rdb, engine.Config{}, 64)
		one, two := ask("one", setOf(limit("s", 1, 20_000))), ask("two", setOf(perHour(1)))
		three := ask("three", setOf(limit("d", 5, 86_400_000)))
		take(t, e, 1, two)
		take(t, e, 1, one)
		take(t, e, 1, one)
		answers := make([]engine.Answer, 3)
		require.NoError(t, takeN(t.Context(), e, 1, []engine.Ask{one, two, three}, answers))
		require.True(t, denied(answers[1]))
		require.Equal(t, engine.FromStore, answers[1].Source)
	})
}

// TestATrialWhoseHookEndsTheGoroutineSaysSo.
func TestATrialWhoseHookEndsTheGoroutineSaysSo(t *testing.T) {
	for name, end := range map[string]func(){"goexit": runtime.Goexit, "panic": func() { panic("hook") }} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			rdb, on, together := b.ConnectInline(t), atomic.Bool{}, atomic.Bool{}
			rdb.AddHook(testkit.Hook(func(cmds []redis.Cmder, send func() error) error {
				switch {
				case on.Load() && len(cmds) > 1: // the trial and the other have one fate
					together.Store(true)
				case on.Load() && strings.Contains(fmt.Sprint(cmds[0].Args()...), "{trial}"):
					end()
				}
				return send()
			}))
			e := b.start(t, rdb, engine.Config{}, 64)
			one, trial := ask("one", setOf(perMinute(10))), ask("trial", setOf(perHour(10)))
			one.N, trial.N = 1, 1
			r := engine.Request{Asks: []engine.Ask{one, trial}, Answers: make([]engine.Answer, 2), Trials: 1}
			require.NoError(t, e.Take(t.Context(), r))
			on.Store(true)
			for again := true; again; again = together.Swap(false) {
				require.NoError(t, e.Take(t.Context(), r))
			}
			require.True(t, r.Answers[0].Allowed)
			require.False(t, r.Answers[1].Decided)
			require.Error(t, r.Answers[1].Failed)
		})
	}
}

// TestASurplusSlotIsGivenBackInTheTimeOfTheDecision.
func TestASurplusSlotIsGivenBackInTheTimeOfTheDecision(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		slot, other := acquiring("k", 1), ask("other", setOf(perHour(10)))
		slot.Failure, other.Failure = engine.FailLocal, engine.FailLocal
		take(t, e, 1, other)
		b.Late.Store(int64(timeout / 2))
		start, took := time.Now(), time.Duration(0)
		done := goes(func() error {
			err := takeN(t.Context(), e, 1, []engine.Ask{slot, other}, make([]engine.Answer, 2))
			took = time.Since(start)
			return err
		})
		b.Cut.Store(true)
		require.True(t, take(t, e, 1, slot).Allowed, "in this process")
		b.Cut.Store(false)
		b.Late.Store(int64(5 * timeout))
		require.NoError(t, <-done)
		require.LessOrEqual(t, took, timeout)
		b.Late.Store(0)
	})
}

// TestAKnownDenialCostsFewCalls, whatever else a request asks for.
func TestAKnownDenialCostsFewCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		one, two, three := ask("one", setOf(perHour(1))), ask("two", setOf(perHour(1000))), ask("three", setOf(perHour(1000)))
		one.N = 1
		take(t, e, 1, one)
		take(t, e, 1, one)
		calls := func(asks func(i int) []engine.Ask) int64 {
			b.Sent.Store(0)
			for i := range 100 {
				require.NoError(t, e.Take(t.Context(), engine.Request{Asks: asks(i), Answers: make([]engine.Answer, 2)}))
			}
			return b.Sent.Load()
		}
		require.LessOrEqual(t, calls(func(i int) []engine.Ask {
			two.N = 1 + int64(i*37%50)
			return []engine.Ask{one, two}
		}), int64(8), "the costs vary")
		require.LessOrEqual(t, calls(func(i int) []engine.Ask {
			two.N, three.N = 1, 1
			return [][]engine.Ask{{one, two}, {three, one}}[i%2]
		}), int64(2), "two routes have the policy that denies")
	})
}

// TestARequestWithoutAPlaceCostsNoCall beside another policy, nor without a deny cache more than one.
func TestARequestWithoutAPlaceCostsNoCall(t *testing.T) {
	for _, denials := range []int{0, 64} {
		inBubbleRun(t, fmt.Sprint(denials), func(t *testing.T, b *bench) {
			e := b.start(t, b.client(t), engine.Config{}, denials)
			one, two := ask("one", setOf(limit("s", 1, 1000))), ask("two", setOf(perHour(1000)))
			one.N, two.N, one.Queue = 1, 1, engine.Queue{Length: 1, Wait: 3 * time.Second}
			request := func() (answers []engine.Answer, err error) {
				answers = make([]engine.Answer, 2)
				return answers, e.Take(t.Context(), engine.Request{Asks: []engine.Ask{one, two}, Answers: answers})
			}
			testkit.Must(request())
			waits := goes(func() error { return testkit.Err(request()) })
			b.Sent.Store(0)
			for range 100 {
				require.True(t, denied(testkit.Must(request())[0]))
			}
			require.LessOrEqual(t, b.Sent.Load(), map[int]int64{0: 100, 64: 1}[denials])
			require.NoError(t, <-waits)
		})
	}
}

// TestPoliciesThatDenyOutrightBanInTheTimeOfTwoCalls: one looks, and one bans.
func TestPoliciesThatDenyOutrightBanInTheTimeOfTwoCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		one := ask("one", setOf(limit("s", 1, 1000)))
		one.N, one.Queue = 1, engine.Queue{Length: 5, Wait: 3 * time.Second}
		asks := []engine.Ask{one}
		alone := func() error {
			return e.Take(t.Context(), engine.Request{Asks: []engine.Ask{one}, Answers: make([]engine.Answer, 1)})
		}
		require.NoError(t, alone())
		for i := range 3 {
			a := ask(fmt.Sprint("ban ", i), setOf(perHour(1), bucket.NewBan(60_000, 60_000)))
			take(t, e, 1, a)
			a.N = 1
			asks = append(asks, a)
		}
		waits := goes(alone)
		delay := timeout * 2 / 5
		b.Delay.Store(int64(delay))
		start := time.Now()
		require.NoError(t, e.Take(t.Context(), engine.Request{Asks: asks, Answers: make([]engine.Answer, 4)}))
		require.LessOrEqual(t, time.Since(start), 2*delay)
		b.Delay.Store(0)
		require.NoError(t, <-waits)
		require.Equal(t, 3, e.Stats().Bans)
	})
}

// TestRequestsThatWaitWakeEachOtherNoMoreThanOnce, though each try takes for a moment what the other one lacks.
func TestRequestsThatWaitWakeEachOtherNoMoreThanOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.turns(t)
		one, two := ask("one", setOf(limit("s", 10, 10_000))), ask("two", setOf(limit("s", 10, 10_000)))
		take(t, e, 5, one)
		take(t, e, 5, two)
		b.Delay.Store(int64(ms))
		b.Sent.Store(0)
		var done []<-chan error
		for _, n := range [][2]int64{{9, 1}, {1, 9}} {
			one.N, two.N = n[0], n[1]
			q := engine.Queue{Length: 5, Wait: time.Minute}
			one.Queue, two.Queue = q, q
			asks := []engine.Ask{one, two}
			done = append(done, goes(func() error {
				return e.Take(t.Context(), engine.Request{Asks: asks, Answers: make([]engine.Answer, 2)})
			}))
		}
		for _, request := range done {
			require.NoError(t, <-request)
		}
		require.LessOrEqual(t, b.Sent.Load(), int64(60))
	})
}

// TestWhatACallerLeavesWhileTheEngineEndsIsGivenBack: Close waits for the decision, and for that.
func TestWhatACallerLeavesWhileTheEngineEndsIsGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.turns(t)
		one, two := ask("one", setOf(perHour(10))), ask("two", setOf(perHour(20)))
		one.Recalls, two.Recalls = true, true
		require.NoError(t, takeN(t.Context(), e, 1, []engine.Ask{one, two}, make([]engine.Answer, 2)))
		b.Late.Store(int64(20 * ms))
		ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
		defer cancel()
		done := goes(func() error { return takeN(ctx, e, 1, []engine.Ask{one, two}, make([]engine.Answer, 2)) })
		time.Sleep(5 * ms)
		e.Close()
		require.ErrorIs(t, <-done, context.DeadlineExceeded)
		b.Late.Store(0)
		other := b.redis(t)
		require.EqualValues(t, 9, left(t, other, one))
		require.EqualValues(t, 19, left(t, other, two))
	})
}

// TestALookServesForNoMoreTokens than each Ask wanted.
func TestALookServesForNoMoreTokens(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		short, two := ask("short", setOf(limit("s", 1, 5000))), ask("two", setOf(perHour(10)))
		three := ask("three", setOf(perHour(5)))
		take(t, e, 1, short)
		short.N, two.N, three.N = 1, 5, 1
		answers := make([]engine.Answer, 3)
		require.NoError(t, e.Take(t.Context(), engine.Request{Asks: []engine.Ask{short, two, three}, Answers: answers}))
		require.True(t, denied(answers[0]) && !denied(answers[1]) && !denied(answers[2]))
		take(t, b.redis(t), 4, three)
		two.N, three.N = 1, 5
		require.NoError(t, e.Take(t.Context(), engine.Request{Asks: []engine.Ask{short, two, three}, Answers: answers}))
		require.Equal(t, engine.FromCache, answers[0].Source)
		require.True(t, denied(answers[2]))
	})
}

// TestWhatRedisDidNotAnswerIsLookedAtAgain beside a denial that is known.
func TestWhatRedisDidNotAnswerIsLookedAtAgain(t *testing.T) {
	again := func(t *testing.T, e *engine.Engine, short, long engine.Ask) {
		answers := make([]engine.Answer, 2)
		require.NoError(t, takeN(t.Context(), e, 1, []engine.Ask{short, long}, answers))
		require.Equal(t, engine.FromCache, answers[0].Source)
		require.True(t, denied(answers[1]))
		require.Equal(t, engine.FromStore, answers[1].Source)
	}
	inBubbleRun(t, "a look", func(t *testing.T, b *bench) {
		e := b.redis(t)
		short, long := ask("short", setOf(limit("s", 1, 5000))), failing("long", setOf(perHour(1)), engine.FailLocal)
		take(t, e, 1, short)
		take(t, e, 1, short)
		take(t, b.redis(t), 1, long)
		b.Cut.Store(true)
		require.NoError(t, takeN(t.Context(), e, 1, []engine.Ask{short, long}, make([]engine.Answer, 2)))
		b.Cut.Store(false)
		again(t, e, short, long)
	})
	inBubbleRun(t, "a decision", func(t *testing.T, b *bench) {
		var late atomic.Bool
		e, first, second := onNodes(t, b, &late)
		short, long := ask(first, setOf(limit("s", 1, 5000))), failing(second, setOf(perHour(1)), engine.FailLocal)
		take(t, e, 1, short)
		take(t, e, 1, long)
		late.Store(true)
		require.NoError(t, takeN(t.Context(), e, 1, []engine.Ask{short, long}, make([]engine.Answer, 2)))
		late.Store(false)
		time.Sleep(4 * timeout)
		again(t, e, short, long)
	})
}

// TestWhatNoWaitingAllowsChargesNothing, and so gives nothing back: all keys are only looked at.
func TestWhatNoWaitingAllowsChargesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.turns(t)
		never, other := ask("never", setOf(perHour(5))), ask("other", setOf(perHour(1)))
		take(t, e, 1, never)
		never.N, other.N = 6, 1
		b.Scripts.Store(0)
		answers := make([]engine.Answer, 2)
		require.NoError(t, e.Take(t.Context(), engine.Request{Asks: []engine.Ask{never, other}, Answers: answers}))
		require.Equal(t, []bool{true, false}, []bool{denied(answers[0]), denied(answers[1])})
		require.EqualValues(t, 2, b.Scripts.Load())
	})
}

// TestWhatARequestHasWaitedBeforeIsOfItsTime: of the timeout, and of the wait in a line.
func TestWhatARequestHasWaitedBeforeIsOfItsTime(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), failing("k", setOf(bucket.NewSlots(1)), engine.FailLocal)
		take(t, e, 1, one)
		one.N = 1
		for queue, row := range map[engine.Queue][2]time.Duration{
			{}: {40 * ms, 20 * ms}, {Length: 1, Wait: time.Second}: {0, 970 * ms},
		} {
			b.Delay.Store(int64(row[0]))
			one.Queue = queue
			start := time.Now()
			require.NoError(t, e.Take(t.Context(), engine.Request{
				Asks: []engine.Ask{one}, Answers: make([]engine.Answer, 1), Waited: 30 * ms,
			}))
			require.LessOrEqual(t, time.Since(start), row[1])
			time.Sleep(time.Second)
		}
	})
}

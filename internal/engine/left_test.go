package engine_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/engine"
)

// TestAWaitThatIsBounded ends then: when its tokens would come later, behind another, and in an outage.
func TestAWaitThatIsBounded(t *testing.T) {
	const most = 3 * time.Second
	for name, row := range map[string]struct {
		outage bool
		before int // others that wait
		want   time.Duration
	}{
		"too late": {false, 0, 0}, "behind another": {false, 1, 0}, "in an outage": {true, 0, most},
		"in a line": {true, 1, most},
	} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			e, one := b.redis(t), ask("k", setOf(limit("m", 1, 10_000)))
			if row.outage {
				b.outage(t, e)
			} else {
				take(t, e, 1, one)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for range row.before {
				go func() {
					_ = waitN(ctx, e, 1, &engine.Ask{Subject: one.Subject, Failure: one.Failure}, new(engine.Answer))
				}()
				synctest.Wait()
			}
			asks, start := []engine.Ask{one}, time.Now()
			queue := engine.Queue{Length: engine.Endless, Wait: most}
			err := takeInLine(t.Context(), e, 1, asks, make([]engine.Answer, 1), queue)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, engine.ErrUnavailable)
			require.InDelta(t, row.want, time.Since(start), float64(time.Second/4))
		})
	}
}

// TestWhoLeavesALine does so when the key is changed, one after another, without a call.
func TestWhoLeavesALine(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), ask("k", setOf(perHour(1)))
		take(t, e, 1, one)
		leaves := false
		request := func() error {
			return takeRequest(t.Context(), e, 1, engine.Queue{Length: 10, Wait: 4 * time.Hour}, engine.Request{
				Asks: []engine.Ask{one}, Answers: make([]engine.Answer, 1), Leaves: func() bool { return leaves },
			})
		}
		var waiting []<-chan error
		for range 3 {
			waiting = append(waiting, goes(request))
		}
		start := time.Now()
		require.NoError(t, e.Block(t.Context(), 2*time.Hour, &one))
		synctest.Wait()
		require.Empty(t, waiting[0], "it stays")
		leaves = true
		sent := b.Sent.Load()
		require.NoError(t, e.Block(t.Context(), 2*time.Hour, &one))
		for _, done := range waiting {
			require.Equal(t, engine.ErrLeft, <-done)
		}
		require.Equal(t, sent+1, b.Sent.Load(), "the block")
		require.Zero(t, time.Since(start))
		require.Equal(t, engine.ErrLeft, request())
		require.Equal(t, sent+1, b.Sent.Load())
	})
}

// withTrial returns a request of an Ask, and if wanted of a trial beside it.
func withTrial(one engine.Ask, trial bool) engine.Request {
	if !trial {
		return engine.Request{Asks: []engine.Ask{one}, Answers: make([]engine.Answer, 1)}
	}
	two := ask("trial", setOf(perHour(1000)))
	return engine.Request{Asks: []engine.Ask{one, two}, Answers: make([]engine.Answer, 2), Trials: 1}
}

// TestWhoCameBeforeStandsBeforeOthers in a line, but for the one whose turn it is.
func TestWhoCameBeforeStandsBeforeOthers(t *testing.T) {
	for _, trial := range []bool{false, true} {
		inBubbleRun(t, fmt.Sprintf("trial %t", trial), func(t *testing.T, b *bench) {
			e, one := b.redis(t), ask("k", setOf(limit("m", 1, 1000)))
			take(t, e, 1, one)
			start, order := time.Now(), make(chan int, 4)
			for _, came := range []int{3, 2, 1, 0} {
				r := withTrial(one, trial)
				r.Since = start.Add(time.Duration(came-5) * time.Second)
				goes(func() error {
					err := takeRequest(t.Context(), e, 1, engine.Queue{Length: 10, Wait: time.Minute}, r)
					order <- came
					return err
				})
			}
			for _, want := range []int{3, 0, 1, 2} {
				require.Equal(t, want, <-order)
			}
		})
	}
}

// TestARequestWithATrialLeavesALine as it does without the trial.
func TestARequestWithATrialLeavesALine(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), ask("k", setOf(perHour(1)))
		take(t, e, 1, one)
		for _, trial := range []bool{false, true} {
			r := withTrial(one, trial)
			r.Leaves = func() bool { return true }
			err := takeRequest(t.Context(), e, 1, engine.Queue{Length: 10, Wait: 4 * time.Hour}, r)
			require.Equal(t, engine.ErrLeft, err)
		}
	})
}

// panicking is a context whose Err panics once it has ended.
type panicking struct{ context.Context }

func (c panicking) Err() error {
	if c.Context.Err() != nil {
		panic("Err")
	}
	return nil
}

// TestAContextThatPanicsDoesSoInItsOwnGoroutine, where Gin's Recovery recovers it, though several servers decide.
func TestAContextThatPanicsDoesSoInItsOwnGoroutine(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var late atomic.Bool
		e, first, second := onNodes(t, b, &late)
		one, two := ask(first, setOf(perHour(10))), ask(second, setOf(perHour(10)))
		take(t, e, 1, one)
		take(t, e, 1, two)
		late.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), timeout/4)
		defer cancel()
		require.Panics(t, func() {
			_ = takeN(panicking{ctx}, e, 1, []engine.Ask{one, two}, make([]engine.Answer, 2))
		})
		late.Store(false)
		time.Sleep(3 * timeout)
		require.True(t, take(t, e, 1, two).Allowed)
	})
}

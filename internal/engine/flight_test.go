package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/engine"
)

// inFlight has an engine send a call that takes 3 tokens ahead, and returns what its caller gets.
func inFlight(t *testing.T, b *bench, e *engine.Engine, ctx context.Context, one engine.Ask) <-chan error {
	require.Equal(t, "ssssl", sources(t, e, 5, one))
	b.Delay.Store(int64(timeout / 5))
	return goes(func() error { return takeN(ctx, e, 1, []engine.Ask{one}, make([]engine.Answer, 1)) })
}

// TestACallerThatLeavesLosesNothing of what its call takes ahead.
func TestACallerThatLeavesLosesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e, one := b.redis(t), leasing("k")
		ctx, cancel := context.WithCancel(t.Context())
		done := inFlight(t, b, e, ctx, one)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.Zero(t, e.Stats().Leases)
		time.Sleep(timeout)
		b.Delay.Store(0)
		require.Equal(t, 1, e.Stats().Leases)
		require.Equal(t, "llls", sources(t, e, 4, one))
	})
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

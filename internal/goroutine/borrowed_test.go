package goroutine

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

type spanKey struct{}

// spanOf returns the value that tests give to contexts.
func spanOf(ctx context.Context) any { return ctx.Value(spanKey{}) }

// slowContext is a context whose values a function returns.
type slowContext struct {
	context.Context
	value func() any
}

func (c slowContext) Value(any) any { return c.value() }

// inBubble runs a test in simulated time. What is left running when it ends is a fault.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

func inBubbleRun(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inBubble(t, test) })
}

// TestBorrow returns a context with the end of one and the values of another.
func TestBorrow(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		ends, cancel := context.WithCancel(t.Context())
		borrowed := Borrow(ends, context.WithValue(t.Context(), spanKey{}, "span"), new(Stuck))
		require.Equal(t, "span", spanOf(borrowed))
		time.Sleep(time.Hour)
		require.Equal(t, "span", spanOf(borrowed), "only the time in which values are read counts")
		cancel()
		require.Equal(t, context.Canceled, borrowed.Err())
		borrowed.End()
		require.Nil(t, spanOf(borrowed))
	})
}

// TestACallerDoesNotLeaveWhileItsValueIsRead, unless that takes long.
func TestACallerDoesNotLeaveWhileItsValueIsRead(t *testing.T) {
	for took, waits := range map[time.Duration]time.Duration{
		valueTime / 2: valueTime/2 + valueTime/5, 100 * valueTime: valueTime,
	} {
		inBubbleRun(t, took.String(), func(t *testing.T) {
			borrowed := Borrow(t.Context(), slowContext{t.Context(), func() any { time.Sleep(took); return nil }}, new(Stuck))
			start := time.Now()
			for i := range 3 {
				time.Sleep(valueTime / 10 * time.Duration(min(i, 1)))
				go spanOf(borrowed)
			}
			synctest.Wait()
			borrowed.End()
			require.Equal(t, waits, time.Since(start))
			time.Sleep(took)
		})
	}
}

// TestValuesThatNeverReturnAreFew: further ones of the same owner are not read until some have returned.
func TestValuesThatNeverReturnAreFew(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var stuck Stuck
		known := context.WithValue(t.Context(), spanKey{}, "span")
		release := make(chan struct{})
		var began atomic.Int32
		hangs := slowContext{t.Context(), func() any { began.Add(1); <-release; return nil }}
		for range 2 * maxStuckValues {
			borrowed := Borrow(t.Context(), hangs, &stuck)
			require.Nil(t, spanOf(borrowed))
			borrowed.End()
		}
		require.EqualValues(t, maxStuckValues, began.Load())
		require.Nil(t, spanOf(Borrow(t.Context(), known, &stuck)))
		require.Equal(t, "span", spanOf(Borrow(t.Context(), known, new(Stuck))), "of another owner")
		close(release)
		synctest.Wait()
		require.Equal(t, "span", spanOf(Borrow(t.Context(), known, &stuck)))
	})
}

package dispatch

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// oddContext is a context of an application, whose methods do what a test wants.
type oddContext struct {
	context.Context
	method string             // that does it
	does   func()             // before it returns
	on     atomic.Bool        // it does
	end    context.CancelFunc // ends the context
}

// newOddContext returns a context that can end.
func newOddContext(t *testing.T, method string, does func()) *oddContext {
	ctx, end := context.WithCancel(t.Context())
	t.Cleanup(end)
	return &oddContext{Context: ctx, method: method, does: does, end: end}
}

func (c *oddContext) call(method string) {
	if c.on.Load() && c.method == method {
		c.does()
	}
}

func (c *oddContext) Deadline() (time.Time, bool) { c.call("Deadline"); return c.Context.Deadline() }
func (c *oddContext) Done() <-chan struct{}       { c.call("Done"); return c.Context.Done() }
func (c *oddContext) Err() error                  { c.call("Err"); return c.Context.Err() }

// do makes a call, and returns what it panics with.
func (c *oddContext) do(d *Dispatcher, call *Call) (panics any) {
	defer func() { panics = recover() }()
	_ = d.Do(c, call)
	return nil
}

// forOddContexts runs a test for each method of a context, where it hangs until the test ends and where it panics.
func forOddContexts(t *testing.T, test func(t *testing.T, ctx *oddContext, opts ...func(*Server))) {
	for _, method := range []string{"Deadline", "Done", "Err"} {
		for _, hangs := range []bool{true, false} {
			for name, opts := range map[string][]func(*Server){"inline": {inline}, "in a batch": nil} {
				inBubbleRun(t, fmt.Sprintf("%s, hangs %t, %s", method, hangs, name), func(t *testing.T) {
					gate := make(chan struct{})
					defer close(gate)
					test(t, newOddContext(t, method, func() {
						if !hangs {
							panic(method)
						}
						<-gate
					}), opts...)
				})
			}
		}
	}
}

// TestAContextThatHangsOrPanicsHurtsItsOwnCaller alone: others are answered.
func TestAContextThatHangsOrPanicsHurtsItsOwnCaller(t *testing.T) {
	forOddContexts(t, func(t *testing.T, ctx *oddContext, opts ...func(*Server)) {
		d, s := newServer(t, opts...)
		one := newBuckets(t, bucket.Token, 1000)
		require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
		synctest.Wait()
		others := func() {
			t.Helper()
			require.True(t, d.mu.TryLock(), "nobody holds the mutex")
			d.mu.Unlock()
			require.NoError(t, d.Do(t.Context(), newCall("other", take(1, 1), one)))
			require.Zero(t, d.Stats().Queued)
		}
		ctx.on.Store(true)
		go ctx.do(d, newCall("comes", take(1, 1), one))
		synctest.Wait()
		others()
		ctx.on.Store(false)
		release := occupy(t, d, s)
		go ctx.do(d, newCall("waits", take(1, 1), one))
		synctest.Wait()
		ctx.on.Store(true)
		ctx.end()
		release()
		synctest.Wait()
		others()
	})
}

// TestACallWhoseContextPanicsIsNotUsedAgain while it may be answered, nor are those that left together with it.
func TestACallWhoseContextPanicsIsNotUsedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		one, gate := newBuckets(t, bucket.Token, 1000), make(chan struct{})
		require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
		s.does(func(context.Context, *Batch) error { <-gate; return nil }, nil)
		ctx := newOddContext(t, "Err", func() { panic("Err") })
		calls := []*Call{newCall("a", take(1, 1), one), newCall("b", take(1, 1), one), newCall("c", take(1, 1), one)}
		go func() { assert.Equal(t, "Err", ctx.do(d, calls[0])) }()
		go func() { assert.Panics(t, func() { d.DoAll(ctx, calls[1:]) }) }()
		synctest.Wait()
		ctx.on.Store(true)
		ctx.end()
		synctest.Wait()
		for _, c := range calls {
			require.True(t, c.Abandoned())
			require.True(t, c.InFlight())
		}
		close(gate)
		synctest.Wait()
		require.Zero(t, d.Stats().InFlight)
	})
}

// TestACallerThatHasLeftGetsAnError, also from a context that has none.
func TestACallerThatHasLeftGetsAnError(t *testing.T) {
	for _, want := range []error{context.Canceled, context.DeadlineExceeded, nil} {
		inBubbleRun(t, fmt.Sprint(want), func(t *testing.T) {
			d, s := newServer(t)
			s.does(func(context.Context, *Batch) error { time.Sleep(testTimeout / 2); return nil }, nil)
			c, ended := newCall("k", take(1, 1), newBuckets(t, bucket.Token, 10)), make(chan struct{})
			close(ended)
			require.Equal(t, cmp.Or(want, context.Canceled), d.Do(endedContext{t.Context(), ended, want}, c))
			require.True(t, c.Abandoned())
			time.Sleep(testTimeout)
		})
	}
}

// endedContext is a context that has ended, with an error or none.
type endedContext struct {
	context.Context
	done chan struct{}
	err  error
}

func (c endedContext) Done() <-chan struct{} { return c.done }
func (c endedContext) Err() error            { return c.err }

// noDeadline is a context without a deadline that names a time all the same.
type noDeadline struct{ context.Context }

func (noDeadline) Deadline() (time.Time, bool) { return time.Now(), false }

// TestATimeThatIsNoDeadlineIsNone.
func TestATimeThatIsNoDeadlineIsNone(t *testing.T) {
	t.Parallel()
	d, c := New(testTimeout, Server{}), NewCall()
	defer d.Close()
	require.NoError(t, d.begin(noDeadline{t.Context()}, c))
	d.mu.Unlock()
	require.Zero(t, c.caller.deadline)
}

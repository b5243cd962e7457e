package plancache

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// denial is an error that Redis replies.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

// inCalls runs a test in a bubble with calls that nobody has made yet.
func inCalls(t *testing.T, test func(t *testing.T, c *calls)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		test(t, &calls{timeout: timeout, places: make(places, maxCalls)})
	})
}

// TestCalls: what a call returns, and for how long none is made afterwards.
func TestCalls(t *testing.T) {
	failure := errors.New("failure")
	hangs := func(ctx context.Context) (int, error) { <-ctx.Done(); return 1, nil }
	for name, row := range map[string]struct {
		f    func(context.Context) (int, error)
		want int
		err  error
		took time.Duration
		lost bool
	}{
		"an answer": {func(context.Context) (int, error) { return 1, nil }, 1, nil, 0, false},
		"a refusal": {func(context.Context) (int, error) { return 1, refusal("OOM") }, 1, refusal("OOM"), 0, false},
		"a failure": {func(context.Context) (int, error) { return 1, failure }, 0, failure, 0, true},
		"a panic":   {func(context.Context) (int, error) { panic("fault") }, 0, dispatch.ErrPanic, 0, true},
		"no answer": {hangs, 0, context.DeadlineExceeded, timeout, true},
	} {
		t.Run(name, func(t *testing.T) {
			inCalls(t, func(t *testing.T, c *calls) {
				start := time.Now()
				got, err := call(t.Context(), c, row.f)
				require.Equal(t, row.want, got)
				require.Equal(t, row.err, err)
				require.Equal(t, row.took, time.Since(start))
				synctest.Wait()
				require.Empty(t, c.places)
				answers := func() bool {
					got, err := call(t.Context(), c, func(context.Context) (int, error) { return 2, nil })
					return got == 2 && err == nil
				}
				require.Equal(t, !row.lost, answers())
				time.Sleep(recheck - 1)
				require.Equal(t, !row.lost, answers())
				time.Sleep(time.Nanosecond)
				require.True(t, answers())
				require.True(t, answers())
			})
		})
	}
}

// TestOneCallTriesALostRedis, once a second.
func TestOneCallTriesALostRedis(t *testing.T) {
	inCalls(t, func(t *testing.T, c *calls) {
		var tries atomic.Int64
		hangs := func(ctx context.Context) (int, error) { tries.Add(1); <-ctx.Done(); return 0, ctx.Err() }
		for range 3 {
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() {
					_, err := call(t.Context(), c, hangs)
					assert.Error(t, err)
				})
			}
			all.Wait()
			time.Sleep(recheck)
		}
		require.EqualValues(t, 5+1+1, tries.Load())
	})
}

// TestPlacesOfCalls: many wait for a place while Redis is well, for as long as the source may take,
// and nobody once it is lost.
func TestPlacesOfCalls(t *testing.T) {
	inCalls(t, func(t *testing.T, c *calls) {
		occupy := func(d time.Duration) {
			for range maxCalls {
				c.places <- struct{}{}
			}
			time.AfterFunc(d, func() {
				for range maxCalls {
					c.places.leave()
				}
			})
		}
		waits := func() (time.Duration, error) {
			start := time.Now()
			_, err := call(t.Context(), c, func(context.Context) (int, error) { return 0, nil })
			return time.Since(start), err
		}
		occupy(4 * time.Second)
		took, err := waits()
		require.NoError(t, err)
		require.Equal(t, 4*time.Second, took)
		occupy(time.Minute)
		took, err = waits()
		require.Equal(t, dispatch.ErrLate, err)
		require.Equal(t, sourceTimeout, took)
		time.AfterFunc(time.Second-1, func() { now := time.Now(); c.lost.Store(&now) })
		took, err = waits()
		require.Equal(t, dispatch.ErrLate, err)
		require.Equal(t, time.Second, took)
		time.Sleep(time.Hour)
		took, err = waits()
		require.NoError(t, err)
		require.Zero(t, took)
	})
}

type spanKey struct{}

// TestCallsHaveTheValuesOfTheCaller who is waiting, but not its end.
func TestCallsHaveTheValuesOfTheCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.process(fixed("a"))
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), spanKey{}, "span"))
		cancel()
		_, err := call(ctx, &c.calls, func(ctx context.Context) (int, error) {
			require.Equal(t, "span", ctx.Value(spanKey{}))
			require.NoError(t, ctx.Err())
			deadline, ok := ctx.Deadline()
			require.True(t, ok)
			require.Equal(t, timeout, time.Until(deadline))
			return 0, nil
		})
		require.NoError(t, err)
	})
}

// TestOutagesOfRedis: the source is asked once per life, and a plan of an outage is compared with
// that of Redis afterwards.
func TestOutagesOfRedis(t *testing.T) {
	for name, refuses := range map[string]bool{"late": false, "refuses": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				set := func(lost bool) {
					if b.late.Store(lost && !refuses); refuses {
						b.mini.SetError(map[bool]string{true: "OOM command not allowed"}[lost])
					}
				}
				d := newDatabase("a")
				here, elsewhere := b.process(d.ask), b.process(d.ask)
				set(true)
				begin := time.Now()
				has(t, here, "c", "a")
				for time.Sleep(30 * time.Second); time.Since(begin) < 2*life; time.Sleep(time.Minute) {
					has(t, here, "c", "a")
					synctest.Wait() // it may serve before the source has answered
					require.EqualValues(t, 1+int64(time.Since(begin)/life), d.asked.Load())
				}
				set(false)
				d.set("b", nil)
				time.Sleep(30 * time.Second)
				require.NoError(t, elsewhere.Invalidate(t.Context(), "c"))
				has(t, here, "c", "b")
				require.EqualValues(t, 3, d.asked.Load())
				has(t, b.process(d.ask), "c", "b")
				require.EqualValues(t, 3, d.asked.Load())
			})
		})
	}
}

// TestInvalidateLendsItsContext, until it returns.
func TestInvalidateLendsItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.process(fixed("a"))
		has(t, c, "c", "a") // and there is a connection
		span := func() any { return (*b.ctx.Load()).Value(spanKey{}) }
		b.late.Store(true)
		go func() {
			time.Sleep(timeout / 2)
			assert.Equal(t, "span", span())
		}()
		ctx := context.WithValue(t.Context(), spanKey{}, "span")
		require.Equal(t, context.DeadlineExceeded, c.Invalidate(ctx, "c"))
		require.Nil(t, span())
		require.NoError(t, (*b.ctx.Load()).Err(), "it may still take effect")
	})
}

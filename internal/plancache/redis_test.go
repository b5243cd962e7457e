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
	"github.com/ginlimit/ginlimit/internal/goroutine"
)

// denial is an error reply.
type denial string

func (r denial) Error() string { return string(r) }
func (denial) RedisError()     {}

// inCalls runs a test in a bubble with unused calls.
func inCalls(t *testing.T, test func(t *testing.T, c *calls)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		test(t, &calls{timeout: timeout, semaphore: make(semaphore, maxCalls)})
	})
}

// TestCalls: the results of calls, and how long none is made after a failure.
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
		"a denial":  {func(context.Context) (int, error) { return 1, denial("OOM") }, 1, denial("OOM"), 0, false},
		"a failure": {func(context.Context) (int, error) { return 1, failure }, 0, failure, 0, true},
		"a panic":   {func(context.Context) (int, error) { panic("fault") }, 0, goroutine.ErrPanic, 0, true},
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
				require.Empty(t, c.semaphore)
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

// TestPlacesOfCalls: many calls wait while Redis is well, for as long as the source may take, and
// none once it fails.
func TestPlacesOfCalls(t *testing.T) {
	inCalls(t, func(t *testing.T, c *calls) {
		occupy := func(d time.Duration) {
			for range maxCalls {
				c.semaphore <- struct{}{}
			}
			time.AfterFunc(d, func() {
				for range maxCalls {
					c.semaphore.release()
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
		time.AfterFunc(time.Second-1, func() { now := time.Now(); c.failed.Store(&now) })
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

// TestOutagesOfRedis: the source is queried once per life, and after an outage a plan is compared
// with Redis' plan.
func TestOutagesOfRedis(t *testing.T) {
	for name, denies := range map[string]bool{"late": false, "denies": true} {
		inBubbleRun(t, name, func(t *testing.T, b *bubble) {
			set := func(lost bool) {
				if b.late.Store(lost && !denies); denies {
					b.mini.SetError(map[bool]string{true: "OOM command not allowed"}[lost])
				}
			}
			d := newDatabase("a")
			here, elsewhere := b.process(d.query), b.process(d.query)
			set(true)
			begin := time.Now()
			has(t, here, "c", "a")
			for time.Sleep(30 * time.Second); time.Since(begin) < 2*life; time.Sleep(time.Minute) {
				has(t, here, "c", "a")
				synctest.Wait() // it may be used before the source has answered
				require.EqualValues(t, 1+int64(time.Since(begin)/life), d.queried.Load())
			}
			set(false)
			d.set("b", nil)
			time.Sleep(30 * time.Second)
			require.NoError(t, elsewhere.Invalidate(t.Context(), "c"))
			has(t, here, "c", "b")
			require.EqualValues(t, 3, d.queried.Load())
			has(t, b.process(d.query), "c", "b")
			require.EqualValues(t, 3, d.queried.Load())
		})
	}
}

// TestContextsAreLent by a lookup and by Invalidate, until they return. What they have sent goes on.
func TestContextsAreLent(t *testing.T) {
	for name, returns := range map[string]func(ctx context.Context, c *Cache[string]) error{
		"a lookup":   func(ctx context.Context, c *Cache[string]) error { _, err := c.Get(ctx, "new"); return err },
		"Invalidate": func(ctx context.Context, c *Cache[string]) error { return c.Invalidate(ctx, "c") },
	} {
		inBubbleRun(t, name, func(t *testing.T, b *bubble) {
			c := b.process(fixed("a"))
			has(t, c, "c", "a") // and there is a connection
			span := func() any { return (*b.ctx.Load()).Value(spanKey{}) }
			b.late.Store(true)
			go func() {
				time.Sleep(timeout / 4)
				assert.Equal(t, "span", span())
			}()
			ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), spanKey{}, "span"), timeout/2)
			defer cancel()
			require.Equal(t, context.DeadlineExceeded, returns(ctx, c))
			require.Nil(t, span())
			require.NoError(t, (*b.ctx.Load()).Err(), "it may still take effect")
		})
	}
}

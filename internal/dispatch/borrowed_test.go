package dispatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// valueTime is how long the values of a caller may take together.
const valueTime = 10 * time.Millisecond

type spanKey struct{}

// spanOf returns the value that tests give to contexts.
func spanOf(ctx context.Context) any { return ctx.Value(spanKey{}) }

// requestContext is a context that is used for one request after another, without a lock, like a
// *gin.Context.
type requestContext struct {
	context.Context
	span string
}

func (c *requestContext) Value(key any) any {
	if key == (spanKey{}) && c.span != "" {
		return c.span
	}
	return c.Context.Value(key)
}

// forBoth runs a test where the caller sends its call itself, and where a goroutine does.
func forBoth(t *testing.T, test func(t *testing.T, d *Dispatcher, s *server, one []bucket.Bucket)) {
	for name, opts := range map[string][]func(*Server){"inline": {inline}, "in a batch": nil} {
		inBubbleRun(t, name, func(t *testing.T) {
			d, s := newServer(t, opts...)
			one := newBuckets(t, bucket.Token, 1000)
			require.NoError(t, d.Do(t.Context(), newCall("known to answer", take(1, 1), one)))
			synctest.Wait()
			test(t, d, s, one)
			require.Equal(t, name == "inline", s.inline > 0)
		})
	}
}

// TestServerSeesTheValuesOfTheCaller, and the end of the batch.
func TestServerSeesTheValuesOfTheCaller(t *testing.T) {
	forBoth(t, func(t *testing.T, d *Dispatcher, s *server, one []bucket.Bucket) {
		for _, span := range []string{"a", "b"} {
			ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), spanKey{}, span), time.Hour)
			s.does(func(sent context.Context, _ *Batch) error {
				assert.Equal(t, span, spanOf(sent))
				deadline, ok := sent.Deadline()
				assert.True(t, ok)
				assert.Less(t, time.Until(deadline), 2*time.Second)
				cancel()
				assert.NoError(t, sent.Err(), "the caller's end is not that of the batch")
				derived, stop := context.WithTimeout(sent, time.Millisecond)
				defer stop()
				<-derived.Done()
				assert.NoError(t, sent.Err())
				return nil
			}, nil)
			err := d.Do(ctx, newCall("k", take(1, 1), one))
			if err != nil {
				require.Equal(t, context.Canceled, err)
			}
			synctest.Wait()
		}
	})
}

// TestBatchHasTheValuesOfItsFirstCaller who has not left.
func TestBatchHasTheValuesOfItsFirstCaller(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		one := newBuckets(t, bucket.Token, 1000)
		require.NoError(t, d.Do(t.Context(), newCall("known to answer", take(1, 1), one)))
		var seen []any
		gate := make(chan struct{})
		s.does(func(sent context.Context, b *Batch) error {
			if string(b.Groups[0].Key) == "occupies" {
				<-gate
			} else {
				seen = append(seen, spanOf(sent))
			}
			return nil
		}, nil)
		var all sync.WaitGroup
		for _, name := range []string{"occupies", "occupies", "left", "first", "second"} {
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), spanKey{}, name))
			defer cancel()
			all.Go(func() { assert.Equal(t, name == "left", d.Do(ctx, newCall(name, take(1, 1), one)) != nil) })
			synctest.Wait()
			if name == "left" {
				cancel()
			}
		}
		close(gate)
		all.Wait()
		require.Equal(t, []any{"first"}, seen)
	})
}

// TestNoValueIsReadOnceItsCallerHasLeft, whoever keeps the context: the race detector sees it if
// one is.
func TestNoValueIsReadOnceItsCallerHasLeft(t *testing.T) {
	forBoth(t, func(t *testing.T, d *Dispatcher, s *server, one []bucket.Bucket) {
		request := &requestContext{Context: t.Context()}
		var kept []context.Context
		var hooks sync.WaitGroup
		stop := make(chan struct{})
		for i := range 40 { // of which the first ones leave their contexts to hooks
			request.span = "span"
			leave := time.Duration(i%2) * testTimeout // before the batch returns
			s.does(func(sent context.Context, _ *Batch) error {
				assert.Equal(t, "span", spanOf(sent))
				kept = append(kept, sent)
				hooks.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(time.Millisecond):
							spanOf(sent)
						}
					}
				})
				time.Sleep(leave)
				return nil
			}, nil)
			ctx, cancel := context.WithTimeout(request, 2*testTimeout)
			_ = d.Do(ctx, newCall("k", take(1, 1), one))
			cancel()
			request.span = ""      // another request
			request.span = "other" // has it now
			for _, ctx := range kept {
				require.Nil(t, spanOf(ctx))
			}
		}
		close(stop)
		hooks.Wait()
		require.Len(t, kept, 40)
	})
}

// TestContextsOfABatchNeedNoGoroutine to hear of its end, though the caller's has one of its own.
func TestContextsOfABatchNeedNoGoroutine(t *testing.T) {
	forBoth(t, func(t *testing.T, d *Dispatcher, s *server, one []bucket.Bucket) {
		s.does(func(sent context.Context, _ *Batch) error {
			derived, cancel := context.WithCancel(sent)
			defer cancel()
			var stacks bytes.Buffer
			assert.NoError(t, pprof.Lookup("goroutine").WriteTo(&stacks, 1))
			labelled := 0
			for _, one := range strings.Split(stacks.String(), "\n\n") {
				if strings.Contains(one, t.Name()) { // else it is another test's
					labelled++
					assert.NotContains(t, one, "propagateCancel")
				}
			}
			assert.Positive(t, labelled)
			<-derived.Done()
			assert.Equal(t, context.DeadlineExceeded, context.Cause(derived))
			return errors.New("late")
		}, nil)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		pprof.Do(ctx, pprof.Labels("test", t.Name()), func(ctx context.Context) {
			require.Error(t, d.Do(ctx, newCall("k", take(1, 1), one)))
		})
		time.Sleep(2 * time.Second)
	})
}

// BenchmarkDo: what a decision costs beside Redis, with hooks that use the context as those of a
// tracer do.
func BenchmarkDo(b *testing.B) {
	for name, hook := range map[string]func(context.Context){
		"without a hook": func(context.Context) {},
		"a context":      func(ctx context.Context) { _, cancel := context.WithTimeout(ctx, time.Second); cancel() },
		"a value":        func(ctx context.Context) { spanOf(ctx) },
	} {
		for way, direct := range map[string]bool{"inline": true, "in a batch": false} {
			b.Run(name+" "+way, func(b *testing.B) {
				do := newDo(b, hook, direct)
				b.ReportAllocs()
				for b.Loop() {
					do()
				}
			})
		}
	}
}

// newDo returns a function that sends a call to a server that only calls a hook.
func newDo(t testing.TB, hook func(context.Context), direct bool) func() {
	d := New(10*time.Second, Server{Transport: hookOnly{hook: hook}, Inline: direct})
	t.Cleanup(d.Close)
	ctx := context.WithValue(context.Background(), spanKey{}, "span")
	c := newCall("k", take(1, 1), newBuckets(t, bucket.Token, 100))
	return func() {
		if err := d.Do(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
}

// hookOnly is a Transport that calls a hook and is done.
type hookOnly struct {
	*server
	hook func(context.Context)
}

func (h hookOnly) Send(ctx context.Context, _ *Batch) error { h.hook(ctx); return nil }

// slowContext is a context whose Value is a function of the application.
type slowContext struct {
	context.Context
	value func() any
}

func (c slowContext) Value(any) any { return c.value() }

// TestAValueHurtsItsOwnCallerAlone, and it not much: one that takes long, waits for its caller or panics is no
// value, and the calls of the same batch are sent all the same.
func TestAValueHurtsItsOwnCallerAlone(t *testing.T) {
	for name, value := range map[string]func(returned <-chan struct{}) any{
		"takes seconds":        func(<-chan struct{}) any { time.Sleep(3 * time.Second); return "late" },
		"never returns":        func(<-chan struct{}) any { time.Sleep(time.Hour); return "late" },
		"waits for its caller": func(returned <-chan struct{}) any { <-returned; return "late" },
		"panics":               func(<-chan struct{}) any { panic("of the application") },
		"ends its goroutine":   func(<-chan struct{}) any { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			forBoth(t, func(t *testing.T, d *Dispatcher, s *server, one []bucket.Bucket) {
				s.does(func(sent context.Context, _ *Batch) error {
					assert.NotEqual(t, "late", spanOf(sent))
					assert.NotEqual(t, "late", spanOf(sent))
					return nil
				}, nil)
				for range 8 {
					returned := make(chan struct{})
					var all sync.WaitGroup
					all.Go(func() {
						defer close(returned)
						start := time.Now()
						assert.NoError(t, d.Do(slowContext{t.Context(), func() any { return value(returned) }},
							newCall("slow", take(1, 1), one)))
						assert.LessOrEqual(t, time.Since(start), valueTime)
					})
					for i := range 5 {
						all.Go(func() {
							assert.NoError(t, d.Do(t.Context(), newCall(fmt.Sprint(i), take(1, 1), one)))
						})
					}
					all.Wait()
				}
				require.Equal(t, closed, stateOf(d))
				require.Zero(t, failuresOf(d))
				time.Sleep(2 * time.Hour) // until they return
			})
		})
	}
}

// TestManyValuesDelayACallNoMoreThanOne: they have that time together, also those that a hook reads at the same time.
func TestManyValuesDelayACallNoMoreThanOne(t *testing.T) {
	const took = valueTime / 4
	value := func() any { time.Sleep(took); return "span" }
	forBoth(t, func(t *testing.T, d *Dispatcher, s *server, one []bucket.Bucket) {
		for _, atOnce := range []int{1, 5} {
			var seen atomic.Int64
			s.does(func(sent context.Context, _ *Batch) error {
				for range 20 {
					var all sync.WaitGroup
					for range atOnce {
						all.Go(func() {
							if spanOf(sent) != nil {
								seen.Add(1)
							}
						})
					}
					all.Wait()
				}
				return nil
			}, nil)
			start := time.Now()
			require.NoError(t, d.Do(slowContext{t.Context(), value}, newCall("slow", take(1, 1), one)))
			require.LessOrEqual(t, time.Since(start), valueTime)
			require.GreaterOrEqual(t, seen.Load(), int64(3*atOnce))
			synctest.Wait()
		}
		require.Zero(t, failuresOf(d))
	})
}

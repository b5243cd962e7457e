package dispatch

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/goroutine"
	"github.com/ginlimit/ginlimit/internal/memory"
)

// TestClose answers queued calls at once, and calls in flight when their batch ends. It returns when
// no batch is in flight, or after a while.
func TestClose(t *testing.T) {
	for name, row := range map[string]struct {
		timeout, took, want time.Duration
	}{
		"nothing takes long": {testTimeout, 30 * time.Millisecond, 30 * time.Millisecond},
		"calls are late":     {testTimeout, 300 * time.Millisecond, 300 * time.Millisecond},
		"calls hang":         {testTimeout, time.Hour, closeTimeout},
		"a long timeout":     {3 * time.Second, time.Hour, 3 * time.Second},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			s := &server{store: memory.New(1024)}
			d := New(row.timeout, Server{Transport: s, Log: slog.New(slog.DiscardHandler)})
			one := newBuckets(t, bucket.Token, 100)
			require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
			s.does(func(context.Context, *Batch) error { time.Sleep(row.took); return nil }, nil)
			var all sync.WaitGroup
			var inFlight atomic.Int64
			start := time.Now()
			for i := range 50 {
				all.Go(func() {
					err := d.Do(t.Context(), newCall(fmt.Sprint("client ", i), take(1, 1), one))
					switch {
					case err == ErrClosed:
						assert.Zero(t, time.Since(start))
					case row.took < row.timeout:
						assert.NoError(t, err)
						inFlight.Add(1)
					default:
						assert.Equal(t, ErrLate, err)
						inFlight.Add(1)
					}
				})
				synctest.Wait()
			}
			d.Close()
			require.Equal(t, row.want, time.Since(start))
			all.Wait()
			require.EqualValues(t, MaxInFlight, inFlight.Load())
			start = time.Now()
			require.Equal(t, ErrClosed, d.Do(t.Context(), newCall("k", take(1, 1), one)))
			require.Zero(t, time.Since(start))
			require.Zero(t, d.Stats().InFlight+d.Stats().Queued)
			require.False(t, d.timeout.set || d.sending.set, "the timers are stopped")
			require.Error(t, d.timeout.latest.Err())
			require.Error(t, d.sending.latest.Err())
			time.Sleep(row.took)
			d.Close() // again
			d.Close()
		})
	}
}

// TestCloseEndsTheProber, even if its pings and probes hang.
func TestCloseEndsTheProber(t *testing.T) {
	type (
		send = func(context.Context, *Batch) error
		ping = func(context.Context) error
	)
	for name, row := range map[string]struct {
		hangs func(gate chan struct{}) (send, ping)
		after time.Duration // the breaker has opened
		want  time.Duration
	}{
		"while it pauses": {func(chan struct{}) (send, ping) { return failing, refusing }, 0, 0},
		"while pings hang": {func(gate chan struct{}) (send, ping) {
			return failing, func(context.Context) error { <-gate; return nil }
		}, 700 * time.Millisecond, goroutine.EndGrace},
		"while hanging pings are no longer waited for": {func(gate chan struct{}) (send, ping) {
			return failing, func(context.Context) error { <-gate; return nil }
		}, time.Minute, 0},
		"while pings end soon after their context": {func(chan struct{}) (send, ping) {
			return failing, func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(20 * time.Millisecond)
				return ctx.Err()
			}
		}, 700 * time.Millisecond, 20 * time.Millisecond},
		"while probes hang": {func(gate chan struct{}) (send, ping) {
			return func(context.Context, *Batch) error { <-gate; return nil }, nil
		}, time.Minute, closeTimeout},
		"while probes end with their context": {func(chan struct{}) (send, ping) {
			return func(ctx context.Context, _ *Batch) error { <-ctx.Done(); return ctx.Err() }, nil
		}, time.Minute, 0},
		"while it is half-open": {func(chan struct{}) (send, ping) {
			return nil, nil
		}, 700 * time.Millisecond, 0},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			d, s := newServer(t)
			gate := make(chan struct{})
			defer close(gate)
			s.does(failing, refusing)
			failed(t, d)
			s.does(row.hangs(gate))
			time.Sleep(row.after)
			require.False(t, d.Idle())
			start, before := time.Now(), d.Stats().Transitions
			d.Close()
			require.Equal(t, row.want, time.Since(start))
			require.Equal(t, before, d.Stats().Transitions)
			require.False(t, d.Stats().Open, "a closed dispatcher reports no server")
			require.Zero(t, s.lines(logBack), "nor that it is back")
			one := newBuckets(t, bucket.Token, 10)
			require.Equal(t, ErrClosed, d.Do(t.Context(), newCall("k", take(1, 1), one)))
		})
	}
}

// TestCloseLogsNoOutage whose reason was not known yet: nobody decides any more.
func TestCloseLogsNoOutage(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		s.diagnoses = true
		s.does(failing, refusing)
		failed(t, d)
		d.Close()
		require.Zero(t, s.lines(logOpen))
		require.Empty(t, d.Stats().Transitions)
	})
}

// TestRetire: a dispatcher that has any call is not retired. A retired one sends nothing, and its
// figures do not change.
func TestRetire(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		one := newBuckets(t, bucket.Token, 100)
		stays := func(why string) {
			t.Helper()
			_, ok := d.Retire(false)
			require.False(t, ok, why)
		}
		release := occupyLate(t, d, s)
		stays("two batches are overdue")
		s.does(failing, refusing)
		release()
		failed(t, d)
		stays("the prober runs")
		s.does(nil, nil)
		untilFound(t, d)
		time.Sleep(confirmTime)
		gate := make(chan struct{})
		s.does(func(context.Context, *Batch) error { <-gate; return nil }, nil)
		go func() { _ = d.Do(t.Context(), newCall("k", take(1, 1), one)) }()
		synctest.Wait()
		stays("a batch is in flight")
		close(gate)
		synctest.Wait()
		before, sent := d.Stats(), s.sends
		last, ok := d.Retire(false)
		require.True(t, ok)
		require.NotEmpty(t, last.Transitions)
		require.Equal(t, before, last)
		require.Error(t, d.life.ctx.Err())
		require.Equal(t, ErrRetired, d.Do(t.Context(), newCall("k", take(1, 1), one)))
		d.Close()
		require.Equal(t, ErrRetired, d.Do(t.Context(), newCall("k", take(1, 1), one)))
		require.Equal(t, last, d.Stats())
		require.Equal(t, sent, s.sends)
	})
}

// TestPanicsAnswerEveryone: a hook of the client may panic, or end the goroutine that sends.
func TestPanicsAnswerEveryone(t *testing.T) {
	for name, end := range map[string]func(){
		"panics": func() { panic("of a hook") },
		"ends":   runtime.Goexit,
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			d, s := newServer(t)
			one := newBuckets(t, bucket.Token, 1000)
			release := occupy(t, d, s, func(context.Context, *Batch) error { end(); return nil })
			errs := make([]error, 600) // several batches
			for i := range errs {
				go func() { errs[i] = d.Do(t.Context(), newCall(fmt.Sprint("client ", i%7), take(1, 1), one)) }()
				synctest.Wait()
			}
			release()
			synctest.Wait()
			failed := 0
			for _, err := range errs {
				if err != nil {
					failed++
				}
			}
			require.Equal(t, len(errs), failed)
			require.Zero(t, d.Stats().InFlight, "the slots are free")
			s.does(nil, nil)
			time.Sleep(time.Second)
			require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
			require.Equal(t, closed, stateOf(d))
		})
		inBubbleRun(t, name+" inline", func(t *testing.T) {
			d, s := newServer(t, inline)
			one := newBuckets(t, bucket.Token, 1000)
			require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
			synctest.Wait()
			s.does(func(context.Context, *Batch) error { end(); return nil }, nil)
			c, ended := newCall("k", take(1, 1), one), false
			var err error
			go func() {
				defer func() { ended = true }()
				err = d.Do(t.Context(), c)
			}()
			synctest.Wait()
			require.Equal(t, 1, s.inline)
			require.True(t, ended)
			require.Equal(t, name == "ends", c.Abandoned(), "its goroutine has ended before the answer")
			require.Equal(t, name != "ends", err != nil)
			synctest.Wait()
			require.Zero(t, d.Stats().InFlight)
			s.does(nil, nil)
			require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
		})
	}
}

// TestFurtherKeysAreCopied: the memory of a key may be used again while the call may still be
// answered.
func TestFurtherKeysAreCopied(t *testing.T) {
	c := newCall("first", take(1, 1), newBuckets(t, bucket.Token, 1, 2, 3))
	for range 2 {
		require.True(t, c.Release())
		c.Key = append(c.Key, "first"...)
		for i, text := range []string{"second", "third"} {
			other := newCall(text, take(1, 1), c.Buckets[i+1:])
			c.AddKey(other, i+1)
			clear(other.Key)
		}
		for i, want := range []string{"first", "second", "third"} {
			require.Equal(t, want, string(c.KeyOf(i)))
		}
	}
	require.Zero(t, testing.AllocsPerRun(10, func() {
		c.Others = c.Others[:0]
		c.AddKey(c, 1)
	}), "its memory is used again")
}

package dispatch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// TestOverdueBatchesGiveUpTheirSlots: a batch that hangs does not keep others from the server.
func TestOverdueBatchesGiveUpTheirSlots(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		one := newBuckets(t, bucket.Token, 100)
		release := occupyLate(t, d, s)
		require.Equal(t, 1, failuresOf(d), "both by one cause")
		require.Equal(t, 2, d.Stats().InFlight)
		require.Equal(t, 2, d.slots.overdue)
		require.Empty(t, d.slots.inFlight)
		s.does(nil, nil)
		for i := range 10 { // the server answers others
			start := time.Now()
			require.NoError(t, d.Do(t.Context(), newCall(fmt.Sprint("client ", i), take(1, 1), one)))
			require.Zero(t, time.Since(start))
		}
		require.Zero(t, failuresOf(d))
		release()
		synctest.Wait()
		require.Zero(t, d.slots.overdue)
		require.Zero(t, d.Stats().InFlight)
		require.True(t, d.Idle())
		require.Equal(t, closed, stateOf(d), "a late answer says nothing new")
		require.True(t, d.slots.healthy)
	})
}

// TestQueuedCallsAreSentWhenABatchIsOverdue: in its slot.
func TestQueuedCallsAreSentWhenABatchIsOverdue(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		one := newBuckets(t, bucket.Token, 100)
		start := time.Now()
		var waits sync.WaitGroup
		time.AfterFunc(testTimeout-10*time.Millisecond, func() {
			s.does(nil, nil)
			waits.Go(func() {
				assert.NoError(t, d.Do(t.Context(), newCall("waits", take(1, 1), one)))
				assert.Equal(t, testTimeout+testTimeout/10, time.Since(start))
			})
		})
		release := occupyLate(t, d, s)
		synctest.Wait()
		waits.Wait()
		release()
	})
}

// TestOverdueBatchesTakeNoFurtherCalls, because they have no slot when they are answered at last.
func TestOverdueBatchesTakeNoFurtherCalls(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		one := newBuckets(t, bucket.Token, 100)
		end := occupyLate(t, d, s)
		s.does(nil, nil)
		release := occupy(t, d, s)
		require.False(t, d.Idle(), "as many are overdue as are in flight")
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() { assert.NoError(t, d.Do(t.Context(), newCall("waits", take(1, 1), one))) })
		}
		synctest.Wait()
		require.Equal(t, 2*d.slots.few, d.Stats().InFlight)
		end()
		synctest.Wait()
		require.Equal(t, d.slots.few, d.Stats().InFlight)
		require.Equal(t, 5, d.Stats().Queued)
		release()
		all.Wait()
	})
}

// TestALateAnswerIsAFailure, even if its caller has sent the call itself and gets the answer.
func TestALateAnswerIsAFailure(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t, inline)
		one := newBuckets(t, bucket.Token, 100)
		require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
		for want, took := range []time.Duration{testTimeout - 1, testTimeout} {
			synctest.Wait()
			s.does(func(context.Context, *Batch) error { time.Sleep(took); return nil }, nil)
			require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
			require.Equal(t, want, failuresOf(d))
			s.does(nil, nil)
			require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
			require.Zero(t, failuresOf(d))
		}
		require.Equal(t, 3, s.inline, "not after a failure")
	})
}

// occupyLate fills all slots with batches that hang and whose callers leave.
func occupyLate(t *testing.T, d *Dispatcher, s *server) (release func()) {
	t.Helper()
	one := newBuckets(t, bucket.Token, 100)
	require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
	gate := make(chan struct{})
	s.does(func(context.Context, *Batch) error { <-gate; return nil }, nil)
	var all sync.WaitGroup
	for range d.slots.few {
		all.Go(func() { assert.Equal(t, ErrLate, d.Do(t.Context(), newCall("k", take(1, 1), one))) })
		synctest.Wait()
	}
	all.Wait()
	return func() { close(gate) }
}

// TestOverdueBatchesAreBounded: each may hold a connection of the client. While further ones hold
// all slots, the server answers nobody, though it has answered others in between: then nobody waits
// for it.
func TestOverdueBatchesAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		one, gate := newBuckets(t, bucket.Token, 1000), make(chan struct{})
		s.does(func(_ context.Context, b *Batch) error {
			if string(b.Groups[0].Key) == "hangs" {
				<-gate
			}
			return nil
		}, nil)
		ask := func(key string) error {
			err := d.Do(t.Context(), newCall(key, take(1, 1), one))
			require.LessOrEqual(t, d.Stats().InFlight, 2*MaxInFlight+moreOverdue)
			return err
		}
		for d.Stats().InFlight <= MaxInFlight+moreOverdue { // the last one keeps its slot
			require.NoError(t, ask("k"), "it is not given up for those that hang")
			require.Equal(t, ErrLate, ask("hangs"))
		}
		for range 5 {
			if ask("k") == ErrOpen {
				break
			}
		}
		for range 100 {
			start := time.Now()
			require.Equal(t, ErrOpen, ask("k"))
			require.Zero(t, time.Since(start))
			time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
		}
		require.Equal(t, 1, s.lines(logOpen))
		close(gate)
		time.Sleep(time.Second)
		for range 100 {
			require.NoError(t, ask("k"))
			time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
		}
		require.Equal(t, 1, s.lines(logBack))
	})
}

// TestAServerOfHighLatencyThatHangsKeepsNoSlots: all batches that may be in flight hang, and the
// server answers those that are sent afterwards.
func TestAServerOfHighLatencyThatHangsKeepsNoSlots(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		one := newBuckets(t, bucket.Token, 1000)
		s.does(func(context.Context, *Batch) error { time.Sleep(highLatency); return nil }, nil)
		for range minMeasured {
			require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
		}
		gate := make(chan struct{})
		s.does(func(context.Context, *Batch) error { <-gate; return nil }, nil)
		var all sync.WaitGroup
		for range maxHighLatencyInFlight {
			all.Go(func() { assert.Equal(t, ErrLate, d.Do(t.Context(), newCall("k", take(1, 1), one))) })
			synctest.Wait()
		}
		require.Equal(t, maxHighLatencyInFlight, d.Stats().InFlight)
		all.Wait()
		s.does(nil, nil)
		for range 10 {
			require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
		}
		require.False(t, d.Stats().Open)
		close(gate)
		synctest.Wait()
		require.Zero(t, d.Stats().InFlight)
	})
}

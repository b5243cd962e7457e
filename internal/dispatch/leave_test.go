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

// TestCallersLeaveAtTheirDeadline: whatever the server does, to the millisecond.
func TestCallersLeaveAtTheirDeadline(t *testing.T) {
	const slack = testTimeout / 10
	for name, row := range map[string]struct {
		comes    time.Duration // after another caller
		deadline time.Duration // of its context, 0 for none
		cancel   time.Duration // when its context is cancelled, 0 for never
		leaves   time.Duration // after it came
		err      error
	}{
		"without a deadline":             {0, 0, 0, testTimeout + slack, ErrLate},
		"sharing another caller's timer": {slack - 1, 0, 0, testTimeout + 1, ErrLate},
		"with a timer of its own":        {slack, 0, 0, testTimeout + slack, ErrLate},
		"while another caller waits":     {30 * time.Millisecond, 0, 0, testTimeout + slack, ErrLate},
		"with a near deadline":           {0, 7 * time.Millisecond, 0, 7 * time.Millisecond, context.DeadlineExceeded},
		"with a far deadline":            {0, time.Hour, 0, testTimeout + slack, ErrLate},
		"cancelled":                      {0, 0, 3 * time.Millisecond, 3 * time.Millisecond, context.Canceled},
	} {
		for _, direct := range []bool{false, true} {
			inBubbleRun(t, fmt.Sprintf("%s, inline %t", name, direct), func(t *testing.T) {
				d, s := newServer(t, func(to *Server) { to.Inline = direct })
				one, gate := newBuckets(t, bucket.Token, 10), make(chan struct{})
				defer close(gate)
				s.does(func(context.Context, *Batch) error { <-gate; return nil }, nil)
				if row.comes > 0 {
					go func() { _ = d.Do(t.Context(), newCall("another", take(1, 1), one)) }()
					time.Sleep(row.comes)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if row.deadline > 0 {
					ctx, cancel = context.WithTimeout(ctx, row.deadline)
					defer cancel()
				}
				if row.cancel > 0 {
					time.AfterFunc(row.cancel, cancel)
				}
				start, c := time.Now(), newCall("k", take(1, 1), one)
				require.Equal(t, row.err, d.Do(ctx, c))
				require.Equal(t, row.leaves, time.Since(start))
				require.True(t, c.Abandoned())
			})
		}
	}
}

// TestAbandonedCallsAreNotSent: a caller that leaves while it is queued costs nothing.
func TestAbandonedCallsAreNotSent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		one := newBuckets(t, bucket.Token, 10)
		used := newCall("used before", take(1, 1), one)
		require.NoError(t, d.Do(t.Context(), used))
		release := occupy(t, d, s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				c := newCall("leaves", take(1, 1), one)
				switch {
				case i%2 == 0:
					assert.NoError(t, d.Do(t.Context(), newCall("stays", take(1, 1), one)))
					return
				case i == 1:
					c = used
					fill(c, "leaves", take(1, 1), one)
				}
				assert.Equal(t, context.DeadlineExceeded, d.Do(ctx, c))
			})
		}
		synctest.Wait()
		require.Equal(t, Stats{Batches: 2, Calls: 2, InFlight: 2, Queued: 10}, d.Stats())
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, 5, d.Stats().Queued)
		release()
		all.Wait()
		synctest.Wait()
		require.Equal(t, Stats{Batches: 5, Calls: 9}, d.Stats())
		for _, m := range s.groups {
			require.NotEqual(t, "leaves", m.key)
		}
		require.True(t, d.Idle())
	})
}

// TestCallsAboutToBeAbandonedAreNotSent: their callers would not hear of it.
func TestCallsAboutToBeAbandonedAreNotSent(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	close(ended)
	for _, row := range []struct {
		ended, timedOut chan struct{} // of its caller, which has not noticed yet
		sent            bool
	}{
		{nil, make(chan struct{}), true},
		{make(chan struct{}), make(chan struct{}), true},
		{ended, make(chan struct{}), false},
		{make(chan struct{}), ended, false},
	} {
		c, b, q := newCall("k", take(1, 1), newBuckets(t, bucket.Token, 10)), newBatch(), queue{}
		c.caller.ended, c.caller.timedOut = row.ended, row.timedOut
		q.add(c)
		q.fill(b, 1)
		require.Equal(t, row.sent, len(b.calls) == 1)
		require.Equal(t, row.sent, c.progress == taken)
		require.True(t, len(q.calls) == 0)
	}
}

// TestACallIsSentWithTheTimeForAConnection: callers leave before, and the batch goes on.
func TestACallIsSentWithTheTimeForAConnection(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		one := newBuckets(t, bucket.Token, 10)
		var span time.Duration
		s.does(func(ctx context.Context, _ *Batch) error {
			start := time.Now()
			<-ctx.Done()
			span = time.Since(start)
			return ctx.Err()
		}, nil)
		require.Equal(t, ErrLate, d.Do(t.Context(), newCall("k", take(1, 1), one)))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, connectTimeout+connectTimeout/10, span)
	})
}

// TestReturnsAreNotSentLate: what a Return finds by its marks is known for so long only, so a batch
// that has one ends with the timeout. Any other has the time to make a connection.
func TestReturnsAreNotSentLate(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		window := newBuckets(t, bucket.FixedWindow, 10)
		var left time.Duration
		s.does(func(ctx context.Context, _ *Batch) error {
			deadline, ok := ctx.Deadline()
			require.True(t, ok)
			left = time.Until(deadline)
			return nil
		}, nil)
		for _, row := range []struct {
			op  bucket.Op
			max time.Duration
		}{
			{take(1, 1), connectTimeout + connectTimeout/10},
			{bucket.Op{Verb: bucket.Return, N: 1, Claims: []bucket.Claim{{Mark: 0}}}, testTimeout + testTimeout/10},
			{take(1, 1), connectTimeout + connectTimeout/10},
		} {
			require.NoError(t, d.Do(t.Context(), newCall("k", row.op, window)))
			require.LessOrEqual(t, left, row.max)
			require.GreaterOrEqual(t, left, row.max*8/10)
		}
	})
}

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

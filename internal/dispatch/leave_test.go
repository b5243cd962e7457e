package dispatch

import (
	"context"
	"fmt"
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
			t.Run(fmt.Sprintf("%s, inline %t", name, direct), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
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

// aboutToLeave is a context that has ended, which its caller has not noticed yet.
type aboutToLeave struct{ context.Context }

func (aboutToLeave) Err() error { return context.Canceled }

// TestCallsAboutToBeAbandonedAreNotSent: their callers would not hear of it.
func TestCallsAboutToBeAbandonedAreNotSent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		one := newBuckets(t, bucket.Token, 10)
		release := occupy(t, d, s)
		var err error
		go func() { err = d.Do(aboutToLeave{t.Context()}, newCall("leaves", take(1, 1), one)) }()
		synctest.Wait()
		release()
		time.Sleep(2 * testTimeout)
		synctest.Wait()
		require.Equal(t, ErrLate, err)
		require.Len(t, s.groups, 1+d.slots.few)
		require.True(t, d.Idle())
	})
}

// TestACallerLeavesWithEitherOfItsContexts: its own, or that of the timeout.
func TestACallerLeavesWithEitherOfItsContexts(t *testing.T) {
	t.Parallel()
	stays := t.Context()
	leaves := aboutToLeave{stays}
	for _, row := range []struct {
		ends [2]context.Context
		want bool
	}{
		{[2]context.Context{stays, stays}, false},
		{[2]context.Context{leaves, stays}, true},
		{[2]context.Context{stays, leaves}, true},
	} {
		c := NewCall()
		c.caller.ends = row.ends
		require.Equal(t, row.want, c.caller.leaves())
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

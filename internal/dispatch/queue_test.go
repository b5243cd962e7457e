package dispatch

import (
	"context"
	"fmt"
	"os"
	"slices"
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

// TestQueuedCallsUseAnyFreeSlot, even that of a caller that has sent its call itself.
func TestQueuedCallsUseAnyFreeSlot(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t, inline)
		one := newBuckets(t, bucket.Token, 10)
		require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
		synctest.Wait()
		s.does(func(_ context.Context, b *Batch) error {
			if string(b.Groups[0].Key) != "waits" {
				time.Sleep(testTimeout - 10*time.Millisecond)
			}
			return nil
		}, nil)
		start := time.Now()
		go func() { assert.NoError(t, d.Do(t.Context(), newCall("first", take(1, 1), one))) }()
		time.Sleep(10 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout) // too near to be inline
		defer cancel()
		var second sync.WaitGroup
		second.Go(func() { assert.NoError(t, d.Do(ctx, newCall("second", take(1, 1), one))) })
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, 1, s.inline)
		ctx, cancel = context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		require.NoError(t, d.Do(ctx, newCall("waits", take(1, 1), one)))
		require.Equal(t, testTimeout-10*time.Millisecond, time.Since(start), "when the first has been answered")
		second.Wait()
	})
}

// TestQueuedCallsFailWhenTheBreakerOpens: they do not wait for their own timeouts.
func TestQueuedCallsFailWhenTheBreakerOpens(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		one := newBuckets(t, bucket.Token, 10)
		s.does(failing, refusing)
		for range maxFailures - 1 {
			require.Equal(t, errDown, d.Do(t.Context(), newCall("k", take(1, 1), one)))
			time.Sleep(time.Second)
		}
		s.does(func(context.Context, *Batch) error { time.Sleep(testTimeout - 1); return errDown }, refusing)
		start := time.Now()
		go func() { assert.Equal(t, errDown, d.Do(t.Context(), newCall("k", take(1, 1), one))) }()
		time.Sleep(testTimeout - 10*time.Millisecond)
		require.Equal(t, ErrOpen, d.Do(t.Context(), newCall("waits", take(1, 1), one)))
		require.Equal(t, testTimeout-1, time.Since(start))
	})
}

// TestSlotsAreNoMoreThanConnections: a batch takes a connection of the client.
func TestSlotsAreNoMoreThanConnections(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		type row struct {
			conns             int
			oneOfMany, inline bool
		}
		for to, want := range map[row]int{
			{}: MaxInFlight, {conns: 1}: 1, {conns: 2}: 2, {conns: 100}: MaxInFlight,
			{oneOfMany: true}: 1, {oneOfMany: true, conns: 100}: 1,
			{inline: true}: maxAlone, {inline: true, oneOfMany: true}: maxAlone, {inline: true, conns: 1}: 1,
			{inline: true, conns: 5}: 2, {inline: true, conns: 7}: 3, {inline: true, conns: 10}: maxAlone,
		} {
			d, s := newServer(t, func(server *Server) {
				server.Conns, server.OneOfMany, server.Inline = to.conns, to.oneOfMany, to.inline
			})
			one := newBuckets(t, bucket.Token, 1000)
			require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
			gate := make(chan struct{})
			s.does(func(context.Context, *Batch) error { <-gate; return nil }, nil)
			for range 10 {
				go func() { assert.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one))) }()
				synctest.Wait()
			}
			require.Equal(t, want, d.Stats().InFlight, to)
			require.Equal(t, 10-want, d.Stats().Queued, to)
			close(gate)
			synctest.Wait()
		}
	})
}

// TestRoundTripIsMeasured by small batches: the estimate falls to the least time, and rises by a
// sixteenth of the difference to each longer one.
func TestRoundTripIsMeasured(t *testing.T) {
	t.Parallel()
	const (
		few, many = 2, 9
		high      = 500 * time.Microsecond
	)
	s := slots{few: few, many: many}
	for i, row := range []struct {
		took      time.Duration
		calls     int
		roundTrip time.Duration
		slots     int
	}{
		{0, 1, 1, few}, {161, 1, 11, few}, {high, 5, 11, few}, // which has too many calls
		{171, 4, 21, few}, {time.Second, 1, 62500019, few}, {high, 1, high, few},
		{high, 1, high, few}, {high, 1, high, few},
		{high, 1, high, many}, // the eighth
		{high - 1, 1, high - 1, few}, {high + 15, 1, high, many},
	} {
		s.answered(row.took, row.calls)
		require.Equal(t, row.roundTrip, s.roundTrip.least, "row %d", i)
		require.Equal(t, row.slots, s.limit(), "row %d", i)
	}
}

// TestHighLatencyHasMoreInFlight: a call that waits for a batch waits for a whole round trip.
func TestHighLatencyHasMoreInFlight(t *testing.T) {
	takes := func(way time.Duration) func(context.Context, *Batch) error {
		return func(context.Context, *Batch) error { time.Sleep(way); return nil }
	}
	milliseconds := func(n int) []time.Duration { return slices.Repeat([]time.Duration{time.Millisecond}, n) }
	for name, row := range map[string]struct {
		conns int
		ways  []time.Duration // of one batch after another
		calls int             // in each
		want  int
	}{
		"low":                         {0, []time.Duration{highLatency - 1}, 1, 2},
		"high":                        {0, []time.Duration{highLatency}, 1, 16},
		"with go-redis' for two CPUs": {20, []time.Duration{time.Millisecond}, 1, 16},
		"with go-redis' for one":      {10, []time.Duration{time.Millisecond}, 1, 6},
		"with one":                    {1, []time.Duration{time.Millisecond}, 1, 1},
		"with two":                    {2, []time.Duration{time.Millisecond}, 1, 2},
		"small batches":               {0, []time.Duration{time.Millisecond}, maxMeasured, 16},
		"low, and late once":          {0, []time.Duration{1, 5 * time.Millisecond}, 1, 2},
		"high, and low once":          {0, []time.Duration{time.Millisecond, time.Millisecond, 1}, 1, 2},
		"low, and higher for long":    {0, append([]time.Duration{1}, milliseconds(11)...), 1, 16},
		"not for long enough":         {0, append([]time.Duration{1}, milliseconds(10)...), 1, 2},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			d, s := newServer(t, func(to *Server) { to.Conns = row.conns })
			one := newBuckets(t, bucket.Token, 1000)
			call := func() { assert.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one))) }
			for _, way := range append(slices.Repeat(row.ways[:1], minMeasured-1), row.ways...) {
				s.does(takes(way), nil)
				for range row.calls {
					go call()
				}
				synctest.Wait()
				time.Sleep(way)
				synctest.Wait()
			}
			gate := make(chan struct{})
			s.does(func(context.Context, *Batch) error { <-gate; return nil }, nil)
			for range 30 {
				go call()
				synctest.Wait()
			}
			require.Equal(t, row.want, d.Stats().InFlight)
			close(gate)
			synctest.Wait()
		})
	}
}

// sizes is a server that keeps how many calls its largest batch had.
type sizes struct {
	*server
	largest atomic.Int64
}

func (s *sizes) Send(ctx context.Context, b *Batch) error {
	for n := int64(len(b.calls)); ; {
		if was := s.largest.Load(); was >= n || s.largest.CompareAndSwap(was, n) {
			return s.server.Send(ctx, b)
		}
	}
}

// TestABatchTakesItsShareOfTheQueue, and leaves the rest to the other slots, unless its share is too
// small or too large.
func TestABatchTakesItsShareOfTheQueue(t *testing.T) {
	for queued, want := range map[int]int64{
		1: 1, minCalls: minCalls, minCalls + 1: minCalls, 2*minCalls + 20: minCalls + 10, 2*maxCalls + 2: maxCalls,
	} {
		inBubbleRun(t, fmt.Sprint(queued, " calls"), func(t *testing.T) {
			d, s := newServer(t)
			one := newBuckets(t, bucket.Token, 1<<20)
			release := occupy(t, d, s)
			var all sync.WaitGroup
			for range queued {
				all.Go(func() { assert.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one))) })
			}
			synctest.Wait()
			sizes := &sizes{server: s}
			d.server.Transport = sizes
			release()
			all.Wait()
			require.Equal(t, want, sizes.largest.Load())
		})
	}
}

// TestFullQueue has more callers than may wait.
func TestFullQueue(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		one := newBuckets(t, bucket.Token, 1<<20)
		release := occupy(t, d, s)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var all sync.WaitGroup
		var left atomic.Int64
		for i := range MaxQueue {
			all.Go(func() {
				if i < MaxQueue/4 {
					assert.Equal(t, context.Canceled, d.Do(ctx, newCall("leaves", take(1, 1), one)))
					left.Add(1)
				} else {
					assert.NoError(t, d.Do(t.Context(), newCall("stays", take(1, 1), one)))
				}
			})
		}
		synctest.Wait()
		start := time.Now()
		for range 3 {
			require.Equal(t, ErrQueueFull, d.Do(t.Context(), newCall("k", take(1, 1), one)))
		}
		require.Zero(t, time.Since(start))
		cancel()
		synctest.Wait()
		require.EqualValues(t, MaxQueue/4, left.Load())
		require.Equal(t, MaxQueue*3/4, d.Stats().Queued)
		for range 100 { // they fill the queue no longer
			all.Go(func() { assert.NoError(t, d.Do(t.Context(), newCall("comes", take(1, 1), one))) })
		}
		synctest.Wait()
		require.Equal(t, MaxQueue*3/4+100, d.Stats().Queued)
		release()
		all.Wait()
		synctest.Wait()
		require.True(t, d.Idle())
		require.EqualValues(t, 1+2+MaxQueue*3/4+100, d.Stats().Calls)
		require.LessOrEqual(t, d.Stats().Batches, uint64(MaxQueue/minCalls))
	})
}

// TestCallsThatLeaveTogetherFillTheQueueNoFurther than single ones do.
func TestCallsThatLeaveTogetherFillTheQueueNoFurther(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		one := newBuckets(t, bucket.Token, 1<<20)
		release := occupy(t, d, s)
		var all sync.WaitGroup
		for range MaxQueue - 1 {
			all.Go(func() { assert.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one))) })
		}
		synctest.Wait()
		for range 3 {
			calls := []*Call{newCall("a", take(1, 1), one), newCall("b", take(1, 1), one)}
			require.Equal(t, []error{ErrQueueFull, ErrQueueFull}, d.DoAll(t.Context(), calls))
		}
		all.Go(func() { assert.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one))) })
		synctest.Wait()
		require.Equal(t, ErrQueueFull, d.Do(t.Context(), newCall("k", take(1, 1), one)))
		release()
		all.Wait()
	})
}

// TestNumbersAreAsDocumented: what the documents say of the queue, of deadlines and of connections.
func TestNumbersAreAsDocumented(t *testing.T) {
	t.Parallel()
	for text, document := range map[string]string{
		": 16,384 decisions wait for this server.": "operations.md",
		"With a `WithTimeout` above 100 ms":        "operations.md",
		"With fewer than 5 connections":            "operations.md",
	} {
		all, err := os.ReadFile("../../docs/" + document)
		require.NoError(t, err)
		require.Contains(t, strings.Join(strings.Fields(string(all)), " "), text)
	}
	require.Equal(t, 16_384, MaxQueue)
	require.Equal(t, 100*time.Millisecond, maxInline)
	require.Equal(t, 5, maxProbes+1)
}

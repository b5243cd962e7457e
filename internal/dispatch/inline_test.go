package dispatch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/memory"
)

// TestInlineCallersLeaveWithTheirContext: a server that is Inline ends a call with the context of
// Send.
func TestInlineCallersLeaveWithTheirContext(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t, inline)
		one := newBuckets(t, bucket.Token, 10)
		require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
		s.does(func(ctx context.Context, _ *Batch) error { <-ctx.Done(); return ctx.Err() }, nil)
		time.Sleep(time.Second) // so that a timer begins
		start := time.Now()
		require.Equal(t, context.DeadlineExceeded, d.Do(t.Context(), newCall("k", take(1, 1), one)))
		require.Equal(t, testTimeout+testTimeout/10, time.Since(start))
		require.Equal(t, 1, s.inline)
	})
}

// TestWhoSendsInline: a caller sends its call itself only if the server ends that with its context,
// and the caller's own context cannot end before.
func TestWhoSendsInline(t *testing.T) {
	for name, row := range map[string]struct {
		inline   bool
		deadline time.Duration // 0 for none
		ends     bool          // the context can end otherwise
		timeout  time.Duration
		busy     bool
		want     bool
	}{
		"a server that is not":               {false, 0, false, testTimeout, false, false},
		"a context that does not end":        {true, 0, false, testTimeout, false, true},
		"one that can be cancelled":          {true, 0, true, testTimeout, false, true},
		"a far deadline":                     {true, time.Second, true, testTimeout, false, true},
		"a deadline after the slack":         {true, testTimeout + testTimeout/10 + 1, true, testTimeout, false, true},
		"a deadline within the slack":        {true, testTimeout + testTimeout/10, true, testTimeout, false, false},
		"a near deadline":                    {true, time.Millisecond, true, testTimeout, false, false},
		"the longest timeout":                {true, 0, true, maxInline, false, true},
		"a longer timeout":                   {true, 0, true, maxInline + 1, false, false},
		"a longer timeout, without an end":   {true, 0, false, maxInline + 1, false, true},
		"a free slot, while another is busy": {true, 0, false, testTimeout, true, true},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			s := &server{store: memory.New(1024)}
			d := New(row.timeout, Server{Transport: s, Inline: row.inline})
			defer d.Close()
			one := newBuckets(t, bucket.Token, 100)
			require.NoError(t, d.Do(context.Background(), newCall("k", take(1, 1), one)))
			synctest.Wait()
			require.Zero(t, s.inline, "not before the server has answered")
			if row.busy {
				gate := make(chan struct{})
				defer close(gate)
				s.does(func(context.Context, *Batch) error { <-gate; return nil }, nil)
				ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
				go func() { _ = d.Do(ctx, newCall("k", take(1, 1), one)) }()
				defer cancel()
				synctest.Wait()
				s.does(nil, nil)
			}
			ctx := context.Background()
			if row.ends {
				var cancel context.CancelFunc
				ctx, cancel = context.WithCancel(ctx)
				defer cancel()
			}
			if row.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, row.deadline)
				defer cancel()
			}
			require.NoError(t, d.Do(ctx, newCall("k", take(1, 1), one)))
			require.Equal(t, row.want, s.inline == 1)
		})
	}
}

// TestNobodySendsInlineAfterAnOverrun: a call that was late may have needed a connection, which takes
// longer. Where one has outlived its context, the server is not what it is taken for.
func TestNobodySendsInlineAfterAnOverrun(t *testing.T) {
	for took, pause := range map[time.Duration]time.Duration{
		testTimeout - 1:                      0,
		testTimeout:                          connectTimeout,
		testTimeout*6/5 + 5*time.Millisecond: connectTimeout, // on a busy machine
		testTimeout*6/5 + inlineGrace:        connectTimeout,
		testTimeout*6/5 + inlineGrace + 1:    inlinePause, // the second of two
		10 * testTimeout:                     inlinePause,
	} {
		inBubbleRun(t, took.String(), func(t *testing.T) {
			d, s := newServer(t, inline)
			one := newBuckets(t, bucket.Token, 100)
			ask := func() (inline bool, err error) {
				synctest.Wait()
				before := s.inline
				err = d.Do(t.Context(), newCall("k", take(1, 1), one))
				return s.inline > before, err
			}
			_, err := ask()
			require.NoError(t, err)
			late := func() {
				t.Helper()
				s.does(func(context.Context, *Batch) error { time.Sleep(took); return nil }, nil)
				direct, err := ask()
				require.NoError(t, err, "its answer came all the same")
				require.True(t, direct)
				s.does(nil, nil)
				_, err = ask() // the last batch was late
				require.NoError(t, err)
			}
			if late(); pause == inlinePause {
				time.Sleep(connectTimeout)
				late()
			}
			direct := false
			for range 10 {
				direct, err = ask()
				require.NoError(t, err)
				require.Equal(t, pause == 0, direct)
			}
			if pause > 0 {
				time.Sleep(pause - time.Nanosecond)
				direct, err = ask()
				require.NoError(t, err)
				require.False(t, direct)
				time.Sleep(time.Nanosecond)
			}
			direct, err = ask()
			require.NoError(t, err)
			require.True(t, direct, "after a while")
		})
	}
}

// TestAStallIsNoOverrun: where the context ended late too, the process stood still, and calls are sent
// inline again as soon as after any call that was late.
func TestAStallIsNoOverrun(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t, inline)
		one := newBuckets(t, bucket.Token, 100)
		do := func() { require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one))) }
		do()
		for _, again := range []time.Duration{0, 0, 0, 100 * time.Millisecond, 100 * time.Millisecond} {
			synctest.Wait()
			s.does(func(context.Context, *Batch) error {
				d.timeout.mu.Lock() // no timer goes off while the process stands still
				d.timeout.timer.Reset(120 * time.Millisecond)
				d.timeout.mu.Unlock()
				time.Sleep(120 * time.Millisecond)
				synctest.Wait()
				time.Sleep(again)
				return nil
			}, nil)
			before := s.inline
			do()
			require.Equal(t, before+1, s.inline)
			s.does(nil, nil)
			do() // the last batch was late
			time.Sleep(connectTimeout)
			before = s.inline
			do()
			require.Equal(t, before+1, s.inline)
		}
	})
}

// TestOneOverrunIsForgotten after a minute: it takes two to begin a long pause.
func TestOneOverrunIsForgotten(t *testing.T) {
	t.Parallel()
	var p inlinePauses
	now := time.Now()
	for range 5 {
		p.begin(now, now.Add(1))
		require.Equal(t, now.Add(1+connectTimeout), p.end)
		now = now.Add(2 + inlinePause)
	}
}

// TestTheLongestPauseOfInlineCalls is a few minutes.
func TestTheLongestPauseOfInlineCalls(t *testing.T) {
	t.Parallel()
	var p inlinePauses
	var pauses []time.Duration
	now := time.Now()
	for range 6 {
		for range 2 {
			p.begin(now, now.Add(1))
			now = now.Add(2)
		}
		pauses = append(pauses, p.end.Sub(now.Add(-1)))
		now = p.end
	}
	require.Equal(t, []time.Duration{inlinePause, 2 * inlinePause, 4 * inlinePause, maxInlinePause, maxInlinePause,
		maxInlinePause}, pauses)
}

// TestThePauseOfInlineCallsDoublesOnlySoonAfter: it begins anew once callers have sent their calls
// for as long as it was.
func TestThePauseOfInlineCallsDoublesOnlySoonAfter(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t, inline)
		one := newBuckets(t, bucket.Token, 100)
		do := func() { require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one))) }
		for i, row := range []struct{ good, pause time.Duration }{
			{0, inlinePause}, {0, 2 * inlinePause},
			{2*inlinePause - 3*time.Second, 4 * inlinePause}, {4 * inlinePause, inlinePause},
		} {
			do() // so that the last batch was not late
			time.Sleep(row.good)
			late := func() {
				s.does(func(context.Context, *Batch) error { time.Sleep(10 * testTimeout); return nil }, nil)
				do()
				s.does(nil, nil)
				do() // the last batch was late
			}
			late()
			time.Sleep(connectTimeout)
			late()
			synctest.Wait()
			require.Equal(t, time.Now().Add(row.pause), d.inline.end, "overrun %d", i)
			time.Sleep(row.pause)
		}
	})
}

// TestAPauseOfInlineCallsIsAMinuteAtLeast, whatever short pauses and calls of the same moment there
// are.
func TestAPauseOfInlineCallsIsAMinuteAtLeast(t *testing.T) {
	t.Parallel()
	const minute = inlinePause
	start := time.Now()
	for name, row := range map[string]struct {
		events [][2]time.Duration // when a call was sent, if it was long late, and when it was answered
		want   time.Duration      // the last pause
	}{
		"the first":                   {[][2]time.Duration{{0, 1}}, connectTimeout},
		"the second":                  {[][2]time.Duration{{0, 1}, {2, 3}}, minute},
		"while a short one lasts":     {[][2]time.Duration{{0, 1}, {-1, 2}, {2, 3}}, minute},
		"two that were sent together": {[][2]time.Duration{{0, 2}, {0, 3}}, connectTimeout},
		"three, two of them together": {[][2]time.Duration{{0, 2}, {0, 3}, {4, 5}}, minute},
		"one late for a long one":     {[][2]time.Duration{{0, 1}, {2, 3}, {2, 4}}, minute},
		"one soon after a long one":   {[][2]time.Duration{{0, 1}, {2, 3}, {minute + 4, minute + 5}}, connectTimeout},
		"two soon after a long one": {[][2]time.Duration{{0, 1}, {2, 3}, {minute + 4, minute + 5},
			{minute + 6, minute + 7}}, 2 * minute},
		"two a minute after a long one": {[][2]time.Duration{{0, 1}, {2, 3}, {2*minute + 4, 2*minute + 5},
			{2*minute + 6, 2*minute + 7}}, minute},
	} {
		t.Run(name, func(t *testing.T) {
			var p inlinePauses
			var now time.Time
			for _, e := range row.events {
				if now = start.Add(e[1]); e[0] < 0 {
					p.beginShort(now)
				} else {
					p.begin(start.Add(e[0]), now)
				}
			}
			require.Equal(t, row.want, p.end.Sub(now))
		})
	}
}

// How an outage of the server begins and ends.

var errDown = errors.New("down")

func failing(context.Context, *Batch) error { return errDown }
func refusing(context.Context) error        { return errDown }

// failed opens the breaker: three calls in a row fail.
func failed(t *testing.T, d *Dispatcher) {
	t.Helper()
	for i := range maxFailures {
		require.Equal(t, closed, stateOf(d))
		require.Error(t, d.Do(t.Context(), newCall("k", take(1, 1), newBuckets(t, bucket.Token, 100))))
		if i < maxFailures-1 {
			time.Sleep(failureGap)
		}
	}
	synctest.Wait()
	require.True(t, d.Stats().Open)
}

// untilFound waits until the prober has found the server, for no longer than its longest pause and
// two probes.
func untilFound(t *testing.T, d *Dispatcher) {
	t.Helper()
	for range (maxProbeGap*3/2 + 2*testTimeout) / time.Millisecond {
		if !d.Stats().Open {
			return
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
	}
	require.Fail(t, "the server is not found")
}

// stateOf returns the state of the breaker once nothing goes on.
func stateOf(d *Dispatcher) breakerState {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.breaker.state
}

// failuresOf returns how many failures in a row the breaker has counted.
func failuresOf(d *Dispatcher) int {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.breaker.failures
}

// TestWhatIsLate: the dispatcher's own error, the end of a context and a timeout of the network,
// also within other errors.
func TestWhatIsLate(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		err  error
		want bool
	}{
		{ErrLate, true},
		{context.DeadlineExceeded, true},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, true},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, false},
		{context.Canceled, false},
		{ErrOpen, false},
		{errDown, false},
	} {
		require.Equal(t, row.want, IsLate(row.err), row.err)
		require.Equal(t, row.want, IsLate(fmt.Errorf("of a hook: %w", row.err)), row.err)
	}
	require.False(t, IsLate(nil))
}

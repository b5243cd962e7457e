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
)

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

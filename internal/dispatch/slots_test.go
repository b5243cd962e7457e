package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCallsLeaveAloneWhileBatchesAreSmall: only the first one does while several calls share a batch.
func TestCallsLeaveAloneWhileBatchesAreSmall(t *testing.T) {
	t.Parallel()
	const near = 100 * time.Microsecond
	for name, row := range map[string]struct {
		server Server
		calls  int // of each batch before
		want   int // how many leave alone
		took   time.Duration
	}{
		"lone callers far away":      {Server{}, 1, maxHighLatencyInFlight, 5 * time.Millisecond},
		"lone callers":               {Server{}, 1, 2, near},
		"many callers":               {Server{}, 8, 1, near},
		"few connections":            {Server{Conns: 2}, 1, 2, near},
		"one connection":             {Server{Conns: 1}, 1, 1, near},
		"one of many":                {Server{OneOfMany: true}, 1, 1, near},
		"one of many, many callers":  {Server{OneOfMany: true}, 8, 1, near},
		"few connections, many call": {Server{Conns: 2}, 8, 1, near},
	} {
		s := newSlots(row.server)
		for range 50 {
			s.answered(row.took, row.calls)
		}
		alone := 0
		for s.freeForOne() && alone < 100 {
			s.take(&Batch{}, time.Now())
			alone++
		}
		require.Equal(t, row.want, alone, name)
		s.healthy = false
		require.False(t, s.freeForOne(), name)
	}
}

// TestManyCallersAreNoticed: a few batches of several calls are enough, and so are a few lone calls.
func TestManyCallersAreNoticed(t *testing.T) {
	t.Parallel()
	s := newSlots(Server{})
	for range 50 {
		s.answered(100*time.Microsecond, 1)
	}
	s.take(&Batch{}, time.Now())
	s.answered(100*time.Microsecond, 16)
	require.False(t, s.freeForOne())
	for range 30 {
		s.answered(100*time.Microsecond, 1)
	}
	require.True(t, s.freeForOne())
}

// TestLargeBatchesSayNothingOfTheLatency, as they take the server longer.
func TestLargeBatchesSayNothingOfTheLatency(t *testing.T) {
	t.Parallel()
	for calls, want := range map[int]int{maxMeasured: maxHighLatencyInFlight, maxMeasured + 1: MaxInFlight} {
		s := newSlots(Server{})
		for range 50 {
			s.answered(time.Millisecond, calls)
		}
		require.Equal(t, want, s.limit(), calls)
	}
}

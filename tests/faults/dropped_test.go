package faults_test

import (
	"log/slog"
	"runtime"
	"testing"
	"weak"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// droppedHandler is a log handler that only a limiter holds.
type droppedHandler struct{ slog.Handler }

// TestALimiterThatIsDroppedIsForgotten without Close, though its breaker is open, a slot is not reported, and
// its client is closed.
func TestALimiterThatIsDroppedIsForgotten(t *testing.T) {
	t.Parallel()
	drop := func() weak.Pointer[droppedHandler] {
		rdb := redis.NewClient(&redis.Options{Addr: testkit.RefusedAddr(t)})
		held := &droppedHandler{slog.DiscardHandler}
		l, err := ginlimit.NewLimiter(rdb, ginlimit.WithLogger(slog.New(held)))
		require.NoError(t, err)
		p, err := l.Policy("api", ginlimit.PerHour(100), ginlimit.InFlight(2))
		require.NoError(t, err)
		slot, err := p.Reserve(t.Context(), "alice", 1)
		require.NoError(t, err)
		require.True(t, slot.Result().Allowed)
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
			other, err := p.Reserve(t.Context(), "alice", 1)
			require.NoError(t, err)
			other.Release()
			return l.Stats().LostServers > 0
		}))
		require.NoError(t, rdb.Close())
		slot.Release()
		return weak.Make(held)
	}
	dropped := drop()
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		runtime.GC()
		return dropped.Value() == nil
	}))
}

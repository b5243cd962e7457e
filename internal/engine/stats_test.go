package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/engine"
)

// TestStatsCountWhatThisProcessKnows, with Redis.
func TestStatsCountWhatThisProcessKnows(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		sources(t, e, 10, leasing("leased"))
		slot := acquiring("slot", 2)
		take(t, e, 1, slot)
		take(t, e, 1, slot)
		banned := ask("banned", setOf(perHour(10), bucket.NewBan(60_000, 60_000)))
		take(t, e, 10, banned)
		take(t, e, 1, banned)
		blocked := ask("blocked", setOf(perHour(10), perMinute(10)))
		require.NoError(t, e.Block(t.Context(), 1, &blocked))
		stats := e.Stats()
		require.Equal(t, 1, stats.Redis.Servers)
		require.NotZero(t, stats.Redis.Calls)
		stats.Redis = engine.Stats{}.Redis
		require.Equal(t, engine.Stats{Replicas: 1, Leases: 1, Leased: 4, Slots: 2, Bans: 1, Denials: 1, Local: 2}, stats)
	})
}

// TestStatsWithoutRedisCountItsBuckets.
func TestStatsWithoutRedisCountItsBuckets(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := local(t)
		take(t, e, 1, acquiring("slot", 2))
		take(t, e, 1, ask("two", setOf(perHour(10), perMinute(10))))
		require.Equal(t, engine.Stats{Replicas: 1, Slots: 1, Local: 3}, e.Stats())
	})
}

// TestReasonsAreWordsForMetrics.
func TestReasonsAreWordsForMetrics(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{dispatch.ErrClosed, "closed"},
		{dispatch.ErrOpen, "breaker_open"},
		{dispatch.ErrQueueFull, "queue_full"},
		{dispatch.ErrLate, "late"},
		{context.DeadlineExceeded, "late"},
		{io.EOF, "network"},
		{syscall.ECONNREFUSED, "connection_refused"},
		{fmt.Errorf("alice"), "client"},
	} {
		require.Equal(t, row.want, engine.Reason(row.err))
		if row.err != nil {
			require.Equal(t, row.want, engine.Reason(engine.Unavailable(t.Context(), row.err)))
		}
		require.Equal(t, row.want == "closed", errors.Is(row.err, engine.ErrClosed))
	}
}

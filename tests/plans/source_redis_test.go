//go:build integration

package plans_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestInventedClientsStarveNobodyOnRedis is the same on a real one.
func TestInventedClientsStarveNobodyOnRedis(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	source := func(_ context.Context, client string) (ginlimit.Limit, error) {
		<-time.After(20 * time.Millisecond)
		if strings.HasPrefix(client, "legitimate") {
			return ginlimit.PerMinute(3), nil
		}
		return ginlimit.Limit{}, ginlimit.ErrUnknownClient
	}
	plans, err := testkit.NewLimiter(t, rdb, ginlimit.WithTimeout(ginlimit.DefaultTimeout),
		ginlimit.WithLogger(slog.New(slog.DiscardHandler))).NewPlans("plans", time.Hour, testkit.SingleLimit(source))
	require.NoError(t, err)
	for round, invented := range []int{300, 300, 300, 300, 300, 3000} {
		var all sync.WaitGroup
		var asked atomic.Int64
		for i := range invented {
			all.Go(func() {
				asked.Add(1)
				_, err := testkit.LimitOf(plans, t.Context(), fmt.Sprint("invented ", round, " ", i))
				assert.ErrorIs(t, err, ginlimit.ErrUnknownClient)
			})
		}
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return asked.Load() >= 280 }))
		has(t, plans, fmt.Sprint("legitimate ", round), 3)
		all.Wait()
	}
}

// TestPlansWhileTheirSlotMigrates: Redis stores no plan then, as that takes two keys, and the
// source is not asked again and again for that.
func TestPlansWhileTheirSlotMigrates(t *testing.T) {
	t.Parallel()
	m := testkit.StartMigration(t)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: m.Addrs})
	defer rdb.Close()
	s := testkit.NewSource()
	plans := testkit.NewPlans(t, rdb, s)
	var clients []string
	for i := range 4 {
		client := fmt.Sprint("client ", i)
		s.Plans[client] = ginlimit.PerMinute(7)
		if m.Begin(t, "ginlimit:plan:{plans|"+client+"}") {
			clients = append(clients, client)
		}
	}
	require.NotEmpty(t, clients)
	for range 4 {
		for _, client := range clients {
			has(t, plans, client, 7)
		}
		untilChecked()
	}
	require.EqualValues(t, len(clients), s.Asked.Load())
	for i, client := range clients {
		s.Plans[client] = ginlimit.PerMinute(8)
		require.NoError(t, plans.Invalidate(t.Context(), client))
		has(t, plans, client, 8)
		require.EqualValues(t, len(clients)+i+1, s.Asked.Load())
	}
}

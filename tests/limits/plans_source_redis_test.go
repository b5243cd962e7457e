//go:build integration

package limits_test

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

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

//go:build integration

package limits_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// untilChecked waits until a process reads in Redis again what it knows of plans.
func untilChecked() { <-time.After(time.Second) }

// TestPlansOnACluster stores and invalidates plans on several nodes, each of which loses the script.
func TestPlansOnACluster(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 3)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	defer rdb.Close()
	s := testkit.NewSource()
	for round := range 3 {
		for i := range 20 {
			client := fmt.Sprint("client {", i)
			s.Set(client, ginlimit.PerMinute(round+1), nil)
			require.NoError(t, testkit.NewPlans(t, rdb, s).Invalidate(t.Context(), client))
			for range 2 {
				has(t, testkit.NewPlans(t, rdb, s), client, round+1)
			}
			require.EqualValues(t, 20*round+i+1, s.Asked.Load(), "Redis has the plan")
		}
		for _, addr := range addrs {
			require.NoError(t, testkit.Connect(t, addr).ScriptFlush(t.Context()).Err())
		}
	}
}

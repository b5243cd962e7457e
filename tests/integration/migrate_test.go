package integration

import (
	"context"
	"fmt"
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

// TestHashSlotsThatMigrate has many callers take tokens of clients whose hash slots migrate. Redis
// decides on one limit. It decides on several while all of a client's keys are on one node, and
// answers TRYAGAIN while they are on two. What it admits and what it charges are the same, and no
// more than the limits.
func TestHashSlotsThatMigrate(t *testing.T) {
	t.Parallel()
	m := testkit.StartMigration(t)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: m.Addrs})
	defer rdb.Close()
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		for _, limits := range [][]ginlimit.Limit{
			{{Rate: 40, Period: 23 * time.Hour}},
			{{Rate: 40, Period: 23 * time.Hour}, ginlimit.PerDay(50)},
		} {
			limiter := testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a), testkit.Patient(), ginlimit.WithDenyCache(0),
				ginlimit.WithFailureMode(ginlimit.FailClosed))
			client := m.ClientOnFirst(t, a, limits[0])
			var admitted, failed atomic.Int64
			take := func(n int) {
				var all sync.WaitGroup
				for range n {
					all.Go(func() {
						switch r, err := limiter.Allow(context.Background(), client, limits...); {
						case err != nil:
							assert.ErrorContains(t, err, "TRYAGAIN")
							failed.Add(1)
						case r.Allowed:
							assert.Equal(t, ginlimit.FromRedis, r.Source)
							admitted.Add(1)
						}
					})
				}
				all.Wait()
			}
			charged := func(n int64) {
				t.Helper()
				require.Equal(t, n, admitted.Load())
				require.EqualValues(t, 40-n, testkit.Must(limiter.Peek(t.Context(), client, limits...)).Remaining)
			}
			take(5)
			m.Begin(t, testkit.RedisKeyOf(a, client, limits[0]))
			take(5)
			charged(10)
			m.Move(t, testkit.RedisKeyOf(a, client, limits[0]))
			take(5)
			if len(limits) == 1 {
				charged(15)
			} else {
				require.EqualValues(t, 5, failed.Load())
				m.Move(t, testkit.RedisKeyOf(a, client, limits[1]))
				charged(10)
			}
			take(60)
			charged(40)
		}
	}
}

// TestMovedNamesTheClientToUse has a cluster refuse keys of another node. Only a client of one
// server is the wrong one: the cluster client of the test is told wrong slots.
func TestMovedNamesTheClientToUse(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 2)
	one := testkit.Connect(t, addrs[0])
	cluster := redis.NewClusterClient(&redis.ClusterOptions{
		MaxRedirects: -1,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addrs[0]}}}}, nil
		},
	})
	defer cluster.Close()
	for _, rdb := range []redis.UniversalClient{one, cluster} {
		limiter, log := testkit.LoggedLimiter(t, rdb)
		for i := range 20 {
			_, _ = limiter.Allow(t.Context(), fmt.Sprint("client ", i), ginlimit.PerDay(5)) // those of the other node fail
		}
		require.Contains(t, log.String(), "MOVED")
		require.Equal(t, rdb == one, strings.Contains(log.String(), "redis.NewClusterClient"), log.String())
	}
}

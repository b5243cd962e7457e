//go:build integration

package docs_test

import (
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What a user of Redis must be allowed to do.

// TestDocumentedPrivilegesAreEnough lets a user run nothing but what docs/operations.md says: no
// TIME, as on some managed servers. A cluster client must also be told of the slots.
func TestDocumentedPrivilegesAreEnough(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]ginlimit.Algorithm{
		"TokenBucket": ginlimit.TokenBucket, "FixedWindow": ginlimit.FixedWindow, "SlidingWindow": ginlimit.SlidingWindow,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := testkit.StartRedis(t)
			user := testkit.Restrict(t, addr, name)
			rdb := redis.NewClient(&user)
			defer rdb.Close()
			doEverything(t, rdb, a)
			if a != ginlimit.TokenBucket {
				limiter := testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a))
				for i, s := range testkit.WindowTrace(5, 300) {
					_, err := s.Apply(t.Context(), limiter)
					require.NoError(t, err, "%s, step %d, %s", a, i, s)
				}
			}
			testkit.RequireNothingDenied(t, addr)
		})
	}
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		addrs := testkit.StartCluster(t, 3)
		for _, addr := range addrs {
			testkit.Restrict(t, addr, "TokenBucket", testkit.PrivilegesOf(t, "On a cluster add")...)
		}
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Username: "app", Password: "secret"})
		defer rdb.Close()
		doEverything(t, rdb, ginlimit.TokenBucket)
		testkit.AskMany(t, testkit.NewLimiter(t, rdb))
		for _, addr := range addrs {
			assert.NotContains(t, testkit.CommandCalls(t, testkit.Connect(t, addr)), "command",
				"asked for by a client that does not know")
			testkit.RequireNothingDenied(t, addr)
		}
	})
	t.Run("shares", func(t *testing.T) {
		t.Parallel()
		addr := testkit.StartRedis(t)
		user := testkit.Restrict(t, addr, "TokenBucket", testkit.PrivilegesOf(t, "`WithShares` also needs")...)
		rdb := redis.NewClient(&user)
		defer rdb.Close()
		shareEverything(t, rdb)
		testkit.RequireNothingDenied(t, addr)
		used := testkit.CommandCalls(t, testkit.Connect(t, addr))
		for _, right := range testkit.PrivilegesOf(t, "`WithShares` also needs") {
			assert.Contains(t, used, right[1:], "so the test needs each of them")
		}
	})
	t.Run("plans", func(t *testing.T) {
		t.Parallel()
		addr := testkit.StartRedis(t)
		user := testkit.Restrict(t, addr, "TokenBucket",
			append([]string{"-@all"}, testkit.PrivilegesOf(t, "`NewPlans` also needs")...)...)
		rdb := redis.NewClient(&user)
		defer rdb.Close()
		s := testkit.NewSource()
		plans := testkit.NewPlans(t, rdb, s)
		for want := range int64(3) {
			limit := testkit.Must(testkit.LimitOf(testkit.NewPlans(t, rdb, s), t.Context(), "three"))
			require.Equal(t, ginlimit.PerMinute(3), limit)
			require.Equal(t, want+1, s.Asked.Load(), "kept in Redis, until it is invalidated")
			require.NoError(t, plans.Invalidate(t.Context(), "three"))
		}
		testkit.RequireNothingDenied(t, addr)
	})
}

func doEverything(t *testing.T, rdb redis.UniversalClient, a ginlimit.Algorithm) {
	limiter, ctx := testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a)), t.Context()
	for _, limits := range [][]ginlimit.Limit{{ginlimit.PerHour(7)}, {ginlimit.PerMinute(7), ginlimit.PerHour(7)}} {
		for range 3 {
			require.True(t, testkit.Must(limiter.Allow(ctx, "k", limits...)).Allowed)
		}
		testkit.Must(limiter.AllowUpTo(ctx, "k", 10, limits...))
		testkit.Must(limiter.Peek(ctx, "k", limits...))
		require.NoError(t, limiter.Refund(ctx, "k", 1, limits...))
		require.NoError(t, limiter.Refund(ctx, "k", 100, limits...))
		require.NoError(t, limiter.Block(ctx, "k", time.Hour, limits...))
		require.NoError(t, limiter.Reset(ctx, "k", limits...))
		require.NoError(t, limiter.Wait(ctx, "k", limits...))
		require.NoError(t, limiter.Reset(ctx, "k", limits...))
	}
}

// shareEverything calls what tenants of a shared limit may call, in every state of a bucket.
func shareEverything(t *testing.T, rdb redis.UniversalClient) {
	limiter, ctx := testkit.NewLimiter(t, rdb), t.Context()
	limit := ginlimit.PerSecond(100).WithBurst(100)
	shared := testkit.Must(limiter.Policy("shared", limit,
		ginlimit.WithShares(func(*gin.Context) (string, int) { return "", 1 })))
	one, other := shared.Share("one", 1), shared.Share("other", 2)
	for _, tenant := range []*ginlimit.Policy{one, other, one} {
		require.True(t, testkit.Must(tenant.AllowN(ctx, "k", 20)).Allowed)
	}
	for _, tenant := range []*ginlimit.Policy{one, other} {
		testkit.Must(tenant.AllowN(ctx, "k", 90))
		testkit.Must(tenant.Peek(ctx, "k"))
		testkit.Must(tenant.Status(ctx, "k"))
		require.NoError(t, tenant.Refund(ctx, "k", 100))
	}
	require.NoError(t, testkit.Must(one.Reserve(ctx, "k", 10)).Settle(ctx, 1))
	require.NoError(t, shared.Reset(ctx, "k"))
	require.NoError(t, other.Wait(ctx, "k"))
	require.NoError(t, one.Reset(ctx, "k"))

	slow := testkit.Must(limiter.Policy("slow", ginlimit.PerHour(100),
		ginlimit.WithShares(func(*gin.Context) (string, int) { return "", 1 })))
	for _, name := range []string{"one", "other"} {
		require.NoError(t, slow.Share(name, 1).Wait(ctx, "k"))
	}
	require.NoError(t, slow.Share("one", 1).Reset(ctx, "k")) // nothing is left of one, but of the other
}

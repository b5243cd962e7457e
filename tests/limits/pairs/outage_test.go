package pairs_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestDryRunWhereverItIsDecided: a dry run with slots counts, and denies nobody, on a server and
// in an outage.
func TestDryRunWhereverItIsDecided(t *testing.T) {
	onEveryPlace(t, func(t *testing.T, p place) {
		trial := testkit.NewPolicy(t, p.limiter, "api", ginlimit.PerHour(2),
			testkit.ByUser(), ginlimit.PerDay(9),
			ginlimit.InFlight(1), ginlimit.WithDryRun())
		var found ginlimit.Result
		router := testkit.Serve(func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }, trial.Handler())
		p.begin()
		for i := range 4 {
			rec := testkit.Get(router, "/", testkit.User("alice"))
			require.Equal(t, http.StatusOK, rec.Code)
			require.Empty(t, rec.Header().Get("X-RateLimit-Status"))
			require.Equal(t, i < 2, found.Allowed, "%+v", found)
			require.Equal(t, p.source, found.Source)
		}
		require.InDelta(t, 30*time.Minute, found.RetryAfter, float64(time.Second))
		require.Zero(t, p.limiter.Stats().Slots)
	})
}

// planOf returns a policy whose clients' plan is that of a source.
func planOf(t *testing.T, b *testkit.Bubble, l *testkit.Limiter, s *testkit.Source,
	opts ...ginlimit.PolicyOption) (*ginlimit.Policy, *ginlimit.Plans) {
	t.Helper()
	plans := testkit.PlansOfProcess(t, b, s.Ask)
	return testkit.NewPolicy(t, l, "plan",
		append(opts, testkit.ByUser(), ginlimit.WithLimitFunc(plans.Limits))...), plans
}

// TestPlanInADryRun: a client that has used up its plan passes, and so does one that has none.
func TestPlanInADryRun(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		p, _ := planOf(t, b, testkit.NewLimiter(t, b.Redis), testkit.NewSource(), ginlimit.WithDryRun())
		var found ginlimit.Result
		var errs []*gin.Error
		router := testkit.Serve(func(c *gin.Context) {
			c.Next()
			found, _ = ginlimit.FromContext(c)
			errs = c.Errors
		}, p.Handler())
		for client, want := range map[string][]bool{"three": {true, true, true, false},
			"prohibited": {false}, "unlimited": {true, true, true, true}} {
			for _, allowed := range want {
				require.Equal(t, http.StatusOK, testkit.Get(router, "/", testkit.User(client)).Code)
				require.Equal(t, allowed, found.Allowed, client)
				require.Empty(t, errs)
			}
		}
		require.Equal(t, http.StatusOK, testkit.Get(router, "/", testkit.User("nobody")).Code)
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], ginlimit.ErrUnknownClient)
	})
}

// TestRaisedPlanEndsARememberedDenial at once, as that was one of other limits.
func TestRaisedPlanEndsARememberedDenial(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		s := testkit.NewSource()
		s.Set("alice", ginlimit.PerHour(2), nil)
		p, plans := planOf(t, b, testkit.NewLimiter(t, b.Redis, testkit.RemembersDenials()), s)
		asks(t, p, verdict{true, 1, 0})
		asks(t, p, verdict{true, 0, 0})
		for _, source := range []ginlimit.Source{ginlimit.FromRedis, ginlimit.FromCache} {
			require.Equal(t, source, asks(t, p, verdict{false, 0, 30 * time.Minute}).Source)
		}
		s.Set("alice", ginlimit.PerHour(2).WithBurst(10), nil)
		require.NoError(t, plans.Invalidate(t.Context(), "alice"))
		require.Equal(t, ginlimit.FromRedis, asks(t, p, verdict{true, 7, 0}).Source)
		s.Set("alice", ginlimit.PerHour(2), nil)
		require.NoError(t, plans.Invalidate(t.Context(), "alice"))
		asks(t, p, verdict{false, 0, time.Hour}, "three are missing of two")
	})
}

// TestPlanInAnOutage: the process decides by its share of the plan that it knows, and the source is
// asked for a plan that it does not know.
func TestPlanInAnOutage(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		s := testkit.NewSource()
		s.Set("alice", ginlimit.PerMinute(4), nil)
		l := failingLocal(t, b, ginlimit.WithReplicas(2))
		p, plans := planOf(t, b, l, s)
		asks(t, p, verdict{true, 3, 0})
		loseRedis(t, b, l)
		asks(t, p, verdict{true, 1, 0})
		asks(t, p, verdict{true, 0, 0})
		require.Equal(t, ginlimit.FromLocal, asks(t, p, verdict{false, 0, 30 * time.Second}).Source)
		require.EqualValues(t, 1, s.Asked.Load())
		r, err := p.Allow(t.Context(), "three")
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, ginlimit.PerMinute(3), r.Limit)
		require.Zero(t, r.Remaining, "its share is one")
		_, err = p.Allow(t.Context(), "nobody")
		require.ErrorIs(t, err, ginlimit.ErrUnknownClient)

		s.Set("alice", ginlimit.PerMinute(40), nil)
		testkit.RequireMade(t, plans.Invalidate(t.Context(), "alice"))
		r = asks(t, p, verdict{false, 0, -1}, "a minute is missing from its share, as before")
		require.Equal(t, ginlimit.PerMinute(40), r.Limit)
		require.InDelta(t, 3*time.Second, r.RetryAfter, float64(200*time.Millisecond))
		time.Sleep(r.RetryAfter)
		asks(t, p, verdict{true, 0, 0})
	})
}

// TestRememberedDenialsInAnOutage last for their second. Then the process decides by its share, and
// what it denies is not remembered when Redis decides again.
func TestRememberedDenialsInAnOutage(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := failingLocal(t, b, testkit.RemembersDenials(), ginlimit.WithReplicas(2))
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(4))
		loseRedis(t, b, l)
		findRedis(t, b, l)
		for left := 3; left >= 0; left-- {
			asks(t, p, verdict{true, left, 0})
		}
		asks(t, p, verdict{false, 0, 15 * time.Second})
		loseRedis(t, b, l)
		require.Equal(t, ginlimit.FromCache, asks(t, p, verdict{false, 0, -1}).Source)
		time.Sleep(time.Second)
		require.Equal(t, ginlimit.FromLocal, asks(t, p, verdict{true, 1, 0}).Source)
		asks(t, p, verdict{true, 0, 0})
		for range 2 {
			require.Equal(t, ginlimit.FromLocal, asks(t, p, verdict{false, 0, 30 * time.Second}).Source)
		}
		time.Sleep(15 * time.Second) // Redis' bucket has a token, and the share has none
		findRedis(t, b, l)
		require.Equal(t, ginlimit.FromRedis, asks(t, p, verdict{true, 0, 0}).Source)
	})
}

// TestOutageOfOneNode: the clients of a node that is lost are decided on in the process, and the others by Redis.
func TestOutageOfOneNode(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		const lostNode, otherNode = "192.0.2.1:6379", "192.0.2.2:6379"
		var cut atomic.Bool
		var conns []net.Conn // of the node that will be lost
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				if addr == lostNode && cut.Load() {
					return testkit.RefuseConnection(ctx, network, addr)
				}
				conn, err := b.Dial(ctx, network, addr)
				if addr == lostNode {
					conns = append(conns, conn)
				}
				return conn, err
			},
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{
					{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: lostNode}}},
					{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: otherNode}}},
				}, nil
			},
		})
		defer rdb.Close()
		limit := ginlimit.PerHour(4)
		l := testkit.NewLimiter(t, rdb, ginlimit.WithTimeout(ginlimit.DefaultTimeout),
			ginlimit.WithFailureMode(ginlimit.FailLocal), ginlimit.WithReplicas(2),
			ginlimit.WithDenyCache(0))
		clientOf := func(addr string) string {
			for i := 0; ; i++ {
				client := fmt.Sprint("client ", i)
				node, err := rdb.MasterForKey(t.Context(), testkit.RedisKey(client, limit))
				require.NoError(t, err)
				if node.Options().Addr == addr {
					return client
				}
			}
		}
		lost, other := clientOf(lostNode), clientOf(otherNode)
		for _, client := range []string{lost, other} {
			r, err := l.Allow(t.Context(), client, limit)
			require.NoError(t, err)
			require.Equal(t, ginlimit.FromRedis, r.Source)
		}
		cut.Store(true)
		for _, conn := range conns {
			require.NoError(t, conn.Close())
		}
		for client, want := range map[string]struct {
			source  ginlimit.Source
			allowed int
		}{lost: {ginlimit.FromLocal, 2}, other: {ginlimit.FromRedis, 3}} {
			for i := range 6 {
				r, err := l.Allow(t.Context(), client, limit)
				require.NoError(t, err)
				require.Equal(t, want.source, r.Source)
				require.Equal(t, i < want.allowed, r.Allowed)
			}
		}
		time.Sleep(10 * time.Second) // until calls that wait for a connection have ended
		cut.Store(false)
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
			r, err := l.Allow(t.Context(), lost, limit)
			require.NoError(t, err)
			return r.Source == ginlimit.FromRedis
		}))
		r, err := l.Peek(t.Context(), lost, limit)
		require.NoError(t, err)
		require.Equal(t, 2, r.Remaining, "Redis counts what Redis has admitted")
	})
}

package ginlimit_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestDryRunBansNobody: a policy of the same name is in force, and shares bans with other policies of its name.
func TestDryRunBansNobody(t *testing.T) {
	t.Parallel()
	onEveryEngine(t, func(t *testing.T, e engine) {
		opts := []ginlimit.Option{ginlimit.WithName("api"), byUser(), ginlimit.WithBan(10*time.Hour, 20*time.Hour)}
		force := newPolicy(t, e.limiter, ginlimit.PerHour(2), opts...)
		trial := newPolicy(t, e.limiter, ginlimit.PerHour(2), append(opts, ginlimit.WithDryRun())...)
		both := newPolicy(t, e.limiter, ginlimit.PerHour(2), append(opts, ginlimit.WithDryRun(), ginlimit.WithConcurrency(9),
			ginlimit.WithIdentity("all", everybody, ginlimit.PerHour(1000)))...)
		queued := newPolicy(t, e.limiter, ginlimit.PerHour(2), append(opts, ginlimit.WithDryRun(), ginlimit.WithConcurrency(9),
			ginlimit.WithQueue(1, time.Hour))...)
		var found ginlimit.Result
		look := func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }
		for name, p := range map[string]*ginlimit.Policy{"plain": trial, "slots and an identity": both, "a queue": queued} {
			router := serve(look, p.Handler())
			for range 2 {
				require.Equal(t, http.StatusOK, get(router, "/", user(name)).Code)
				require.True(t, found.Allowed)
			}
			require.Equal(t, http.StatusOK, get(router, "/", user(name)).Code)
			require.False(t, found.Allowed, name)
			res, err := p.Allow(t.Context(), name)
			require.NoError(t, err)
			require.False(t, res.Allowed, name)
			slot, err := p.Acquire(t.Context(), name)
			require.NoError(t, err)
			require.False(t, slot.Result().Allowed, name)
			require.NoError(t, force.Refund(t.Context(), name, 2))
			res, err = force.Allow(t.Context(), name)
			require.NoError(t, err)
			require.True(t, res.Allowed, name)
			require.Zero(t, e.limiter.Stats().Bans, name)

			// A ban by the policy in force counts in the dry run.
			for range 2 {
				res, err = force.Allow(t.Context(), name)
				require.NoError(t, err)
			}
			require.False(t, res.Allowed)
			require.Equal(t, 1, e.limiter.Stats().Bans)
			require.NoError(t, force.Refund(t.Context(), name, 2))
			require.Equal(t, http.StatusOK, get(router, "/", user(name)).Code)
			require.False(t, found.Allowed, name)
			require.Greater(t, found.RetryAfter, 9*time.Hour, name)
			require.NoError(t, force.Reset(t.Context(), name))
			require.Zero(t, e.limiter.Stats().Bans, name)
		}
	})
}

// TestDryRunTakesSlotsOfItsOwn, so that the policy in force of its name refuses nobody because of it.
func TestDryRunTakesSlotsOfItsOwn(t *testing.T) {
	t.Parallel()
	onEveryEngine(t, func(t *testing.T, e engine) {
		for name, more := range map[string][]ginlimit.Option{
			"plain": nil, "an identity": {ginlimit.WithIdentity("all", everybody, ginlimit.PerHour(1000))},
			"settled": {ginlimit.WithSettle(func(*gin.Context) int { return 1 })},
		} {
			opts := append([]ginlimit.Option{ginlimit.WithName(name), byUser(), ginlimit.WithConcurrency(1)}, more...)
			limit := ginlimit.PerHour(100)
			force := newPolicy(t, e.limiter, limit, opts...)
			trial := newPolicy(t, e.limiter, limit, append(opts, ginlimit.WithDryRun())...)
			router := serve(trial.Handler(), func(c *gin.Context) {
				if c.Query("inner") != "" {
					return
				}
				require.Equal(t, 1, e.limiter.Stats().Slots)
				slot := acquire(t, force)
				require.True(t, slot.Result().Allowed, "%s: %+v", name, slot.Result())
				slot.Release()
				res, err := force.Peek(t.Context(), "alice")
				require.NoError(t, err)
				require.True(t, res.Allowed)

				res, err = trial.Peek(t.Context(), "alice") // it is the dry run's second request in flight
				require.NoError(t, err)
				require.False(t, res.Allowed)
				require.Equal(t, name+"-c", res.Name)
				left := res.Remaining
				slot = acquire(t, trial)
				require.False(t, slot.Result().Allowed)
				var found ginlimit.Result
				inner := serve(func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }, trial.Handler())
				require.Equal(t, http.StatusOK, get(inner, "/?inner=1", user("alice")).Code)
				require.False(t, found.Allowed)
				require.Equal(t, name+"-c", found.Name)
				require.Equal(t, time.Second, found.RetryAfter)
				require.Zero(t, left)
			})
			require.Equal(t, http.StatusOK, get(router, "/", user("alice")).Code)
			require.Zero(t, e.limiter.Stats().Slots, name)
			slot := acquire(t, trial)
			require.True(t, slot.Result().Allowed, "%s: %+v", name, slot.Result())
			require.Equal(t, 97, slot.Result().Remaining, "the dry run's refusals took no tokens")
			slot.Release()
			require.Zero(t, e.limiter.Stats().Slots, name)
		}
	})
}

// TestDryRunOfABucketInForceIsLogged, as one request is charged twice then.
func TestDryRunOfABucketInForceIsLogged(t *testing.T) {
	t.Parallel()
	rdb, _ := newMiniredis(t)
	l, log := testkit.LoggedLimiter(t, rdb)
	opts := []ginlimit.Option{ginlimit.WithName("api"), byUser(), ginlimit.WithConcurrency(2)}
	router := serve(newPolicy(t, l, ginlimit.PerHour(10), append(opts, ginlimit.WithDryRun())...).Handler(),
		newPolicy(t, l, ginlimit.PerHour(10), opts...).Handler())
	require.Equal(t, http.StatusOK, get(router, "/", user("alice")).Code)
	require.Contains(t, log.String(), "two handlers charge one bucket")
}

// TestDryRunOfSlotsAlone reports the slots, also of requests that cost nothing and of limits that prohibit.
func TestDryRunOfSlotsAlone(t *testing.T) {
	t.Parallel()
	onEveryEngine(t, func(t *testing.T, e engine) {
		opts := []ginlimit.Option{ginlimit.WithName("api"), byUser(), ginlimit.WithConcurrency(2), ginlimit.WithDryRun()}
		p := newPolicy(t, e.limiter, ginlimit.Limit{Rate: -1}, opts...)
		var found ginlimit.Result
		router := serve(func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }, p.Handler())
		require.Equal(t, http.StatusOK, get(router, "/", user("alice")).Code)
		require.True(t, found.Allowed)
		require.Equal(t, 1, found.Remaining)
		require.Equal(t, "api-c", found.Name)
		one, two := acquire(t, p), acquire(t, p)
		require.Equal(t, 0, two.Result().Remaining)
		require.Equal(t, http.StatusOK, get(router, "/", user("alice")).Code)
		require.False(t, found.Allowed)
		free := serve(p.Handler(), newPolicy(t, e.limiter, ginlimit.Limit{Rate: -1},
			append(opts, ginlimit.WithCost(func(*gin.Context) int { return 0 }))...).Handler())
		require.Equal(t, http.StatusOK, get(free, "/", user("alice")).Code)
		require.Equal(t, 2, e.limiter.Stats().Slots)
		one.Release()
		peek, err := p.Peek(t.Context(), "alice")
		require.NoError(t, err)
		require.True(t, peek.Allowed)
		require.Equal(t, 1, peek.Remaining)
		two.Release()

		closed := newPolicy(t, e.limiter, ginlimit.PerHour(0), opts...)
		router = serve(func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }, closed.Handler())
		require.Equal(t, http.StatusOK, get(router, "/", user("alice")).Code)
		require.False(t, found.Allowed)
		require.Negative(t, found.RetryAfter)
		require.Zero(t, e.limiter.Stats().Slots)
	})
}

// TestDryRunSettlesAsWithoutIt gives back no token that has flowed back by itself.
func TestDryRunSettlesAsWithoutIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, newLocal(t), ginlimit.PerHour(10), byUser(), ginlimit.WithConcurrency(1), ginlimit.WithDryRun(),
			ginlimit.WithRefund(func(*gin.Context) bool { return true }))
		router := serve(p.Handler(), func(*gin.Context) {
			_, err := p.AllowN(t.Context(), "alice", 5)
			require.NoError(t, err)
			time.Sleep(6 * time.Minute)
		})
		require.Equal(t, http.StatusOK, get(router, "/", user("alice")).Code)
		res, err := p.Peek(t.Context(), "alice")
		require.NoError(t, err)
		require.Equal(t, 5, res.Remaining)
	})
}

// TestDryRunWaitsForRedisOnce, though it asks for slots and limits one after the other.
func TestDryRunWaitsForRedisOnce(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := testkit.NewLimiter(t, b.Redis, ginlimit.WithTimeout(50*time.Millisecond), ginlimit.WithFailure(ginlimit.FailLocal))
		p := newPolicy(t, l, ginlimit.PerHour(10), byUser(), ginlimit.WithConcurrency(1), ginlimit.WithDryRun())
		b.Late.Store(true)
		router, start := serve(p.Handler()), time.Now()
		require.Equal(t, http.StatusOK, get(router, "/", user("alice")).Code)
		require.LessOrEqual(t, time.Since(start), 56*time.Millisecond)
		start = time.Now()
		res, err := p.Peek(t.Context(), "bob")
		require.NoError(t, err)
		require.True(t, res.Allowed)
		require.LessOrEqual(t, time.Since(start), 56*time.Millisecond)
	})
}

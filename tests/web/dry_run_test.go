package web_test

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestDryRunBansNobody: a policy of the same name is in force, and shares bans with other policies of its name.
func TestDryRunBansNobody(t *testing.T) {
	t.Parallel()
	testkit.OnEveryEngine(t, func(t *testing.T, e testkit.Engine) {
		opts := slices.Clip([]ginlimit.PolicyOption{
			ginlimit.PerHour(2), testkit.ByUser(), ginlimit.WithBan(10*time.Hour, 20*time.Hour)})
		force := testkit.NewPolicy(t, e.Limiter, "api", opts...)
		trial := testkit.NewPolicy(t, e.Limiter, "api", append(opts, ginlimit.WithDryRun())...)
		both := testkit.NewPolicy(t, e.Limiter, "api",
			append(opts, ginlimit.WithDryRun(), ginlimit.InFlight(9),
				ginlimit.WithIdentity("all", testkit.Everybody, ginlimit.PerHour(1000)))...)
		queued := testkit.NewPolicy(t, e.Limiter, "api",
			append(opts, ginlimit.WithDryRun(), ginlimit.InFlight(9),
				ginlimit.WithQueue(1, time.Hour))...)
		var found ginlimit.Result
		look := func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }
		for name, p := range map[string]*ginlimit.Policy{"plain": trial, "slots and an identity": both, "a queue": queued} {
			router := testkit.Serve(look, p.Handler())
			for range 2 {
				require.Equal(t, http.StatusOK, testkit.Get(router, "/", testkit.User(name)).Code)
				require.True(t, found.Allowed)
			}
			require.Equal(t, http.StatusOK, testkit.Get(router, "/", testkit.User(name)).Code)
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
			require.Zero(t, e.Limiter.Stats().Bans, name)

			// A ban by the policy in force counts in the dry run.
			for range 2 {
				res, err = force.Allow(t.Context(), name)
				require.NoError(t, err)
			}
			require.False(t, res.Allowed)
			require.Equal(t, 1, e.Limiter.Stats().Bans)
			require.NoError(t, force.Refund(t.Context(), name, 2))
			require.Equal(t, http.StatusOK, testkit.Get(router, "/", testkit.User(name)).Code)
			require.False(t, found.Allowed, name)
			require.Greater(t, found.RetryAfter, 9*time.Hour, name)
			require.NoError(t, force.Reset(t.Context(), name))
			require.Zero(t, e.Limiter.Stats().Bans, name)
		}
	})
}

// TestDryRunTakesSlotsOfItsOwn, so that the policy in force of its name refuses nobody because of it.
func TestDryRunTakesSlotsOfItsOwn(t *testing.T) {
	t.Parallel()
	testkit.OnEveryEngine(t, func(t *testing.T, e testkit.Engine) {
		for name, more := range map[string][]ginlimit.PolicyOption{
			"plain": nil, "an identity": {ginlimit.WithIdentity("all", testkit.Everybody, ginlimit.PerHour(1000))},
			"settled": {ginlimit.WithSettle(func(*gin.Context) int { return 1 })},
		} {
			opts := append([]ginlimit.PolicyOption{ginlimit.PerHour(100), testkit.ByUser(), ginlimit.InFlight(1)}, more...)
			force := testkit.NewPolicy(t, e.Limiter, name, opts...)
			trial := testkit.NewPolicy(t, e.Limiter, name, append(opts, ginlimit.WithDryRun())...)
			router := testkit.Serve(trial.Handler(), func(c *gin.Context) {
				if c.Query("inner") != "" {
					return
				}
				require.Equal(t, 1, e.Limiter.Stats().Slots)
				slot := testkit.Acquire(t, force)
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
				slot = testkit.Acquire(t, trial)
				require.False(t, slot.Result().Allowed)
				var found ginlimit.Result
				inner := testkit.Serve(func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }, trial.Handler())
				require.Equal(t, http.StatusOK, testkit.Get(inner, "/?inner=1", testkit.User("alice")).Code)
				require.False(t, found.Allowed)
				require.Equal(t, name+"-c", found.Name)
				require.Equal(t, time.Second, found.RetryAfter)
				require.Zero(t, left)
			})
			require.Equal(t, http.StatusOK, testkit.Get(router, "/", testkit.User("alice")).Code)
			require.Zero(t, e.Limiter.Stats().Slots, name)
			slot := testkit.Acquire(t, trial)
			require.True(t, slot.Result().Allowed, "%s: %+v", name, slot.Result())
			require.Equal(t, 97, slot.Result().Remaining, "the dry run's refusals took no tokens")
			slot.Release()
			require.Zero(t, e.Limiter.Stats().Slots, name)
		}
	})
}

// TestDryRunOfABucketInForceIsLogged, as one request is charged twice then.
func TestDryRunOfABucketInForceIsLogged(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	l, log := testkit.LoggedLimiter(t, rdb)
	opts := []ginlimit.PolicyOption{ginlimit.PerHour(10), testkit.ByUser(), ginlimit.InFlight(2)}
	router := testkit.Serve(testkit.NewPolicy(t, l, "api", append(opts, ginlimit.WithDryRun())...).Handler(),
		testkit.NewPolicy(t, l, "api", opts...).Handler())
	require.Equal(t, http.StatusOK, testkit.Get(router, "/", testkit.User("alice")).Code)
	require.Contains(t, log.String(), "two handlers charge one bucket")
}

// TestDryRunOfSlotsAlone reports the slots, also of requests that cost nothing and of limits that prohibit.
func TestDryRunOfSlotsAlone(t *testing.T) {
	t.Parallel()
	testkit.OnEveryEngine(t, func(t *testing.T, e testkit.Engine) {
		opts := []ginlimit.PolicyOption{testkit.ByUser(), ginlimit.InFlight(2), ginlimit.WithDryRun()}
		p := testkit.NewPolicy(t, e.Limiter, "api", opts...)
		var found ginlimit.Result
		router := testkit.Serve(func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }, p.Handler())
		require.Equal(t, http.StatusOK, testkit.Get(router, "/", testkit.User("alice")).Code)
		require.True(t, found.Allowed)
		require.Equal(t, 1, found.Remaining)
		require.Equal(t, "api-c", found.Name)
		one, two := testkit.Acquire(t, p), testkit.Acquire(t, p)
		require.Equal(t, 0, two.Result().Remaining)
		require.Equal(t, http.StatusOK, testkit.Get(router, "/", testkit.User("alice")).Code)
		require.False(t, found.Allowed)
		free := testkit.Serve(p.Handler(), testkit.NewPolicy(t, e.Limiter, "api",
			append(opts, ginlimit.WithCost(func(*gin.Context) int { return 0 }))...).Handler())
		require.Equal(t, http.StatusOK, testkit.Get(free, "/", testkit.User("alice")).Code)
		require.Equal(t, 2, e.Limiter.Stats().Slots)
		one.Release()
		peek, err := p.Peek(t.Context(), "alice")
		require.NoError(t, err)
		require.True(t, peek.Allowed)
		require.Equal(t, 1, peek.Remaining)
		two.Release()

		closed := testkit.NewPolicy(t, e.Limiter, "api", append(opts, ginlimit.PerHour(0))...)
		router = testkit.Serve(func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }, closed.Handler())
		require.Equal(t, http.StatusOK, testkit.Get(router, "/", testkit.User("alice")).Code)
		require.False(t, found.Allowed)
		require.Negative(t, found.RetryAfter)
		require.Zero(t, e.Limiter.Stats().Slots)
	})
}

// TestDryRunSettlesAsWithoutIt gives back no token that has flowed back by itself.
func TestDryRunSettlesAsWithoutIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := testkit.NewPolicy(t, testkit.NewLocal(t), "10/h", ginlimit.PerHour(10), testkit.ByUser(),
			ginlimit.InFlight(1), ginlimit.WithDryRun(),
			ginlimit.WithRefund(func(*gin.Context) bool { return true }))
		router := testkit.Serve(p.Handler(), func(*gin.Context) {
			_, err := p.AllowN(t.Context(), "alice", 5)
			require.NoError(t, err)
			time.Sleep(6 * time.Minute)
		})
		require.Equal(t, http.StatusOK, testkit.Get(router, "/", testkit.User("alice")).Code)
		res, err := p.Peek(t.Context(), "alice")
		require.NoError(t, err)
		require.Equal(t, 5, res.Remaining)
	})
}

// TestDryRunWaitsForRedisOnce, though it asks for slots and limits one after the other.
func TestDryRunWaitsForRedisOnce(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := testkit.NewLimiter(t, b.Redis, ginlimit.WithTimeout(50*time.Millisecond),
			ginlimit.WithFailureMode(ginlimit.FailLocal))
		p := testkit.NewPolicy(t, l, "10/h", ginlimit.PerHour(10), testkit.ByUser(),
			ginlimit.InFlight(1), ginlimit.WithDryRun())
		b.Late.Store(true)
		router, start := testkit.Serve(p.Handler()), time.Now()
		require.Equal(t, http.StatusOK, testkit.Get(router, "/", testkit.User("alice")).Code)
		require.LessOrEqual(t, time.Since(start), 56*time.Millisecond)
		start = time.Now()
		res, err := p.Peek(t.Context(), "bob")
		require.NoError(t, err)
		require.True(t, res.Allowed)
		require.LessOrEqual(t, time.Since(start), 56*time.Millisecond)
	})
}

// TestADryRunWhoseSlotsDenyIsWarnedOf: another policy of its name charges the same bucket.
func TestADryRunWhoseSlotsDenyIsWarnedOf(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	l, log := testkit.LoggedLimiter(t, rdb)
	trial, err := l.Policy("a", ginlimit.PerHour(10), ginlimit.InFlight(1), ginlimit.WithDryRun())
	require.NoError(t, err)
	slot, err := trial.Acquire(t.Context(), "192.0.2.1")
	require.NoError(t, err)
	defer slot.Release()
	router := testkit.Serve(l.Handler("a", ginlimit.PerHour(10)), trial.Handler())
	require.Equal(t, http.StatusOK, testkit.Get(router, "/").Code)
	require.Contains(t, log.String(), "two handlers charge one bucket")
}

// TestPeekOfADryRunThatProhibitsAsksNobody, as its slots would change nothing.
func TestPeekOfADryRunThatProhibitsAsksNobody(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nobody listens there
	defer rdb.Close()
	p, err := testkit.NewLimiter(t, rdb).Policy("a", ginlimit.PerMinute(0),
		ginlimit.InFlight(1), ginlimit.WithDryRun())
	require.NoError(t, err)
	res, err := p.Peek(t.Context(), "c")
	require.NoError(t, err)
	require.Negative(t, res.RetryAfter)
	require.Equal(t, ginlimit.FromPolicy, res.Source)
}

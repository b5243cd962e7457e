package pairs_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Identities beside other features. See docs/pairs.md.

// withAll counts all clients together, too.
func withAll(limits ...ginlimit.Limit) ginlimit.Option {
	return ginlimit.WithIdentity("all", testkit.Everybody, limits...)
}

// westOfUTC has the day of a bubble end a minute after the bubble begins.
var westOfUTC = time.FixedZone("west", -60)

// counted is a policy of a backend, and its requests.
type counted struct {
	*ginlimit.Policy
	limiter *testkit.Limiter
	router  *gin.Engine
	found   ginlimit.Result // what the last request's policy decided
	during  func()          // what happens while a request is served
	errs    []*gin.Error
}

// counts returns a policy named "p" that counts by user.
func counts(t *testing.T, b testkit.Backend, opts ...ginlimit.PolicyOption) *counted {
	t.Helper()
	c := &counted{limiter: b.Limiter, during: func() {}}
	c.Policy = testkit.NewPolicy(t, b.Limiter, "p", append(opts, testkit.ByUser())...)
	var mu sync.Mutex // of what is found: requests may come at once
	look := func(g *gin.Context) {
		g.Next()
		mu.Lock()
		defer mu.Unlock()
		c.found, _ = ginlimit.FromContext(g)
		c.errs = g.Errors
	}
	c.router = testkit.Serve(look, c.Handler(), func(g *gin.Context) {
		if g.GetHeader("X-Inner") == "" {
			c.during()
		}
	})
	return c
}

func (c *counted) send(client string, edit ...func(*http.Request)) *httptest.ResponseRecorder {
	return testkit.Get(c.router, "/", append(edit, testkit.User(client))...)
}

// wants sends requests and wants their statuses.
func (c *counted) wants(t *testing.T, client string, codes ...int) {
	t.Helper()
	for i, code := range codes {
		require.Equal(t, code, c.send(client).Code, "%s, request %d", client, i)
	}
}

// left wants so many tokens left of a client's limit.
func (c *counted) left(t *testing.T, client string, want int) {
	t.Helper()
	r, err := c.Peek(t.Context(), client)
	require.NoError(t, err)
	require.Equal(t, want, r.Remaining, client)
}

// leftOfAll wants so many tokens left of the identity of all clients.
func (c *counted) leftOfAll(t *testing.T, want int, limit ginlimit.Limit) {
	t.Helper()
	r, err := c.limiter.Peek(t.Context(), ginlimit.Key("all", "all"), limit)
	require.NoError(t, err)
	require.Equal(t, want, r.Remaining)
}

// TestMethodsLeaveIdentitiesAlone: identities are of requests, so a reservation and a refund by hand count under the
// policy's own key alone.
func TestMethodsLeaveIdentitiesAlone(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		limit := ginlimit.PerHour(10)
		p := counts(t, b, limit, withAll(limit))
		p.wants(t, "alice", 200, 200)
		r, err := p.Reserve(t.Context(), "alice", 3)
		require.NoError(t, err)
		require.True(t, r.Result().Allowed)
		p.left(t, "alice", 5)
		p.leftOfAll(t, 8, limit)
		require.NoError(t, r.Settle(t.Context(), 1))
		p.left(t, "alice", 7)
		p.leftOfAll(t, 8, limit)
		testkit.RequireMade(t, p.Refund(t.Context(), "alice", 1))
		p.left(t, "alice", 8)
		p.leftOfAll(t, 8, limit)
	})
}

// TestSlotsAndIdentitiesAreTakenTogether: a request that finds no slot takes nothing of an
// identity, and one that an identity denies has no slot.
func TestSlotsAndIdentitiesAreTakenTogether(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		limit, all := ginlimit.PerHour(10), ginlimit.PerHour(2)
		p := counts(t, b, limit, withAll(all), ginlimit.InFlight(1))
		p.during = func() {
			require.Equal(t, 429, p.send("alice", testkit.With("X-Inner", "1")).Code)
			require.Equal(t, "p-c", p.found.Name)
			p.leftOfAll(t, 1, all)
			require.Equal(t, 200, p.send("bob", testkit.With("X-Inner", "1")).Code)
		}
		p.wants(t, "alice", 200)
		p.wants(t, "alice", 429)
		require.Equal(t, "all", p.found.Name)
		require.Zero(t, b.Limiter.Stats().Slots)
		p.left(t, "alice", 9)
		require.True(t, testkit.Acquire(t, p.Policy).Result().Allowed)
	})
}

// TestAQueueWithIdentities: requests that lack a slot of an identity wait for it in order, and no more of
// them than WithQueue allows. A waiting request takes nothing.
func TestAQueueWithIdentities(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		router := gin.New()
		limit, all := ginlimit.PerHour(10), []ginlimit.Limit{ginlimit.PerHour(9), ginlimit.InFlight(1)}
		router.GET("/", b.Limiter.Handler("p", limit, testkit.ByUser(), withAll(all...), ginlimit.WithQueue(3, 5*time.Second)),
			func(*gin.Context) { time.Sleep(2 * time.Second) })
		start := time.Now()
		var served sync.WaitGroup
		send := func(user string, code int, after time.Duration) {
			served.Go(func() {
				rec := testkit.Get(router, "/", testkit.User(user))
				assert.Equal(t, code, rec.Code, user)
				assert.Equal(t, after, time.Since(start).Truncate(100*time.Millisecond), user)
			})
			time.Sleep(10 * time.Millisecond)
		}
		send("alice", 200, 2*time.Second)
		send("bob", 200, 4*time.Second)
		send("carol", 200, 6*time.Second)
		send("dave", 429, 5*time.Second) // as long as it may wait
		send("erin", 429, 0)             // three others wait
		served.Wait()
		for _, user := range []string{"alice", "bob", "carol"} {
			peek, err := b.Limiter.Peek(t.Context(), ginlimit.Key("p", user), limit)
			require.NoError(t, err)
			require.Equal(t, 9, peek.Remaining, user)
		}
		require.Zero(t, b.Limiter.Stats().Slots)
	})
}

// TestABanIsOfThePolicysOwnKey: a banned client takes nothing of an identity, and what an identity denies bans nobody.
func TestABanIsOfThePolicysOwnKey(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		all := ginlimit.PerHour(3)
		p := counts(t, b, ginlimit.PerHour(1), withAll(all), ginlimit.WithBan(10*time.Hour, 10*time.Hour))
		p.wants(t, "alice", 200, 429, 429)
		require.Equal(t, "p", p.found.Name)
		require.InDelta(t, 10*time.Hour, p.found.RetryAfter, float64(time.Minute))
		p.leftOfAll(t, 2, all)
		p.wants(t, "bob", 200)
		p.wants(t, "carol", 200)
		p.wants(t, "dave", 429, 429)
		require.Equal(t, "all", p.found.Name)
		require.Less(t, p.found.RetryAfter, time.Hour)
		testkit.RequireMade(t, b.Limiter.Reset(t.Context(), ginlimit.Key("all", "all"), all))
		p.wants(t, "dave", 200)
		p.wants(t, "alice", 429)
	})
}

// TestAFloorIsOfThePolicysOwnLimits: identities have none.
func TestAFloorIsOfThePolicysOwnLimits(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		limit := ginlimit.PerHour(10)
		p := counts(t, b, limit, withAll(limit), ginlimit.WithFloor(8))
		p.wants(t, "alice", 200, 200, 429)
		require.Equal(t, "p", p.found.Name)
		p.leftOfAll(t, 8, limit)
		for i, client := range []string{"bob", "carol", "dave", "erin"} {
			p.wants(t, client, 200, 200)
			p.leftOfAll(t, 6-2*i, limit)
		}
		p.wants(t, "frank", 429)
		require.Equal(t, "all", p.found.Name)
		p.left(t, "frank", 2)
	})
}

// TestAnIdentityMayHaveAQuota of the calendar beside a policy's bucket: requests take of both, or of neither.
func TestAnIdentityMayHaveAQuota(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		quota := ginlimit.PerCalendar(3, ginlimit.CalendarDay(westOfUTC))
		p := counts(t, b, ginlimit.PerDay(2), withAll(quota))
		p.wants(t, "alice", 200, 200, 429)
		p.leftOfAll(t, 1, quota)
		p.wants(t, "bob", 200, 429)
		require.Equal(t, quota, p.found.Limit)
		require.InDelta(t, time.Minute, p.found.RetryAfter, float64(time.Second))
		p.left(t, "bob", 1)
		time.Sleep(time.Minute)
		p.leftOfAll(t, 3, quota)
		p.wants(t, "alice", 429)
		p.wants(t, "bob", 200, 429)
		p.leftOfAll(t, 2, quota)
	})
}

// plansOf has each client have limits of its own, which may change.
func plansOf(plans map[string][]ginlimit.Limit) ginlimit.Option {
	return ginlimit.WithLimitFunc(func(_ context.Context, client string) ([]ginlimit.Limit, error) {
		if plan, ok := plans[client]; ok {
			return plan, nil
		}
		return nil, ginlimit.ErrUnknownClient
	})
}

// TestAPlanIsOfThePolicysOwnKey: identities keep their limits, whatever the client's plan is.
func TestAPlanIsOfThePolicysOwnKey(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		all := ginlimit.PerHour(4)
		p := counts(t, b, withAll(all), plansOf(map[string][]ginlimit.Limit{
			"free": {ginlimit.PerHour(1)}, "pro": {ginlimit.Unlimited()}, "none": {ginlimit.PerHour(0)},
			"late": {ginlimit.PerHour(5)},
		}))
		p.wants(t, "free", 200, 429)
		p.wants(t, "none", 429)
		p.wants(t, "nobody", 403)
		p.leftOfAll(t, 3, all)
		p.wants(t, "pro", 200, 200, 200, 429)
		require.Equal(t, "all", p.found.Name)
		p.wants(t, "late", 429)
		p.left(t, "late", 5)
	})
}

// TestADryRunCountsEveryIdentity and denies nobody; what it would deny takes nothing.
func TestADryRunCountsEveryIdentity(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		all := ginlimit.PerHour(3)
		p := counts(t, b, ginlimit.PerHour(2), withAll(all), ginlimit.WithDryRun())
		p.wants(t, "alice", 200, 200)
		require.True(t, p.found.Allowed)
		rec := p.send("alice")
		require.Equal(t, 200, rec.Code)
		require.Empty(t, testkit.Remaining(rec))
		require.False(t, p.found.Allowed)
		require.Equal(t, "p", p.found.Name)
		p.wants(t, "bob", 200, 200)
		require.False(t, p.found.Allowed)
		require.Equal(t, "all", p.found.Name)
		p.left(t, "bob", 1)
	})
}

// TestADenialOfAnIdentityIsRemembered for all requests that count under it: they cost no call, and
// take nothing of their own keys. What is given back ends it.
func TestADenialOfAnIdentityIsRemembered(t *testing.T) {
	t.Parallel()
	for _, inTurn := range []bool{false, true} {
		testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
			var rdb redis.UniversalClient = b.Redis
			if inTurn {
				rdb = struct{ redis.UniversalClient }{rdb}
			}
			all := ginlimit.PerHour(2)
			p := counts(t, testkit.Backend{Limiter: testkit.NewLimiter(t, rdb, testkit.TrustsClock())},
				ginlimit.PerHour(5), withAll(all))
			p.wants(t, "alice", 200, 200, 429)
			require.Equal(t, ginlimit.FromRedis, p.found.Source)
			p.wants(t, "alice", 429)
			p.wants(t, "bob", 429)
			require.Equal(t, "all", p.found.Name)
			if !inTurn { // else Redis decides on its own key first
				require.Equal(t, ginlimit.FromCache, p.found.Source)
			}
			p.left(t, "alice", 3)
			p.left(t, "bob", 5)
			require.NoError(t, p.limiter.Refund(t.Context(), ginlimit.Key("all", "all"), 1, all))
			p.wants(t, "bob", 200, 429)
		})
	}
}

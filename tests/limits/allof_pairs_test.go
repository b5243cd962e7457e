package limits_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What policies with features of their own do in AllOf. See docs/reference.md.

// all returns a policy that counts all clients together.
func all(b testkit.Backend, opts ...ginlimit.PolicyOption) *ginlimit.Policy {
	return b.Limiter.Must("all", append(opts, testkit.All())...)
}

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
	return beside(t, b, nil, opts...)
}

// beside returns a policy named "p" that counts by user, in AllOf before another one if there is one.
func beside(t *testing.T, b testkit.Backend, other *ginlimit.Policy, opts ...ginlimit.PolicyOption) *counted {
	t.Helper()
	p := testkit.NewPolicy(t, b.Limiter, "p", append(opts, testkit.ByUser())...)
	c := &counted{Policy: p, limiter: b.Limiter, during: func() {}}
	var mu sync.Mutex // of what is found: requests may come at once
	look := func(g *gin.Context) {
		g.Next()
		mu.Lock()
		defer mu.Unlock()
		c.found, _ = ginlimit.FromContext(g)
		c.errs = g.Errors
	}
	policies := []*ginlimit.Policy{c.Policy}
	if other != nil {
		policies = append(policies, other)
	}
	c.router = testkit.Serve(look, ginlimit.AllOf(policies...), func(*gin.Context) { c.during() })
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
	require.Equal(t, want, testkit.Must(c.Peek(t.Context(), client)).Remaining, client)
}

// leftOfAll wants so many tokens left of what all clients share.
func (c *counted) leftOfAll(t *testing.T, want int, limit ginlimit.Limit) {
	t.Helper()
	require.Equal(t, want, testkit.Must(c.limiter.Peek(t.Context(), ginlimit.Key("all", "all"), limit)).Remaining)
}

// TestPoliciesSettleAndRefundTheirOwnCharge: each has its own cost, and what it was for the request in the end.
func TestPoliciesSettleAndRefundTheirOwnCharge(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		limit, refunds := ginlimit.PerHour(100), false
		settles := b.Limiter.Must("settles", testkit.All(), limit,
			ginlimit.WithCost(func(*gin.Context) int { return 30 }), ginlimit.WithSettle(func(*gin.Context) int { return 12 }))
		given := b.Limiter.Must("given back", testkit.All(), limit,
			ginlimit.WithCost(func(*gin.Context) int { return 5 }),
			ginlimit.WithRefund(func(*gin.Context) bool { return refunds }))
		router := testkit.Serve(ginlimit.AllOf(settles, b.Limiter.Must("requests", testkit.All(), limit), given))
		left := func(want ...int) {
			t.Helper()
			for i, name := range []string{"settles", "requests", "given back"} {
				r := testkit.Must(b.Limiter.Peek(t.Context(), ginlimit.Key(name, "all"), limit))
				require.Equal(t, want[i], r.Remaining, name)
			}
		}
		require.Equal(t, 200, testkit.Get(router, "/").Code)
		left(88, 99, 95)
		refunds = true
		require.Equal(t, 200, testkit.Get(router, "/").Code)
		left(76, 98, 95)
	})
}

// TestAPolicyWithAQueueWaits for what it lacks, in order, in a line of its own length. What waits takes nothing of the
// others, and what lacks something of a policy without a queue does not wait.
func TestAPolicyWithAQueueWaits(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		limit := ginlimit.PerHour(1)
		router := testkit.Serve(ginlimit.AllOf(
			all(b, ginlimit.PerHour(9), ginlimit.InFlight(1), ginlimit.WithQueue(3, 5*time.Second)),
			b.Limiter.Must("p", limit, testkit.ByUser()),
		), func(*gin.Context) { time.Sleep(2 * time.Second) })
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
		send("erin", 429, 0)             // three wait
		served.Wait()
		for user, want := range map[string]int{"alice": 0, "bob": 0, "carol": 0, "dave": 1, "erin": 1} {
			require.Equal(t, want, testkit.Must(b.Limiter.Peek(t.Context(), ginlimit.Key("p", user), limit)).Remaining, user)
		}
		require.Equal(t, 429, testkit.Get(router, "/", testkit.User("alice")).Code)
		require.Equal(t, 6*time.Second, time.Since(start).Truncate(100*time.Millisecond))
		require.Zero(t, b.Limiter.Stats().Slots)
	})
}

// TestADryRunDecidesApart: it denies nobody, counts what another denies too, and what it would
// deny is charged to the other alone.
func TestADryRunDecidesApart(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		three := ginlimit.PerHour(3)
		p := beside(t, b, all(b, three), ginlimit.PerHour(2), ginlimit.WithDryRun())
		p.wants(t, "alice", 200, 200)
		require.True(t, p.found.Allowed)
		rec := p.send("alice")
		require.Equal(t, 200, rec.Code)
		require.Equal(t, "0", testkit.Remaining(rec), "of the policy in force")
		require.False(t, p.found.Allowed)
		require.Equal(t, "p", p.found.Name)
		p.leftOfAll(t, 0, three)
		p.wants(t, "bob", 429)
		require.Equal(t, "all", p.found.Name)
		p.left(t, "bob", 1)
	})
}

// TestADryRunHasItsTime beside a policy whose limits are slow to be had: longer than a decision may take.
func TestADryRunHasItsTime(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := testkit.NewLimiter(t, b.Redis, ginlimit.WithTimeout(50*time.Millisecond))
		slow := ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
			time.Sleep(60 * time.Millisecond)
			return []ginlimit.Limit{ginlimit.PerHour(9)}, nil
		})
		p := beside(t, testkit.Backend{Limiter: l}, l.Must("all", testkit.All(), slow), ginlimit.PerHour(1),
			ginlimit.WithDryRun())
		p.wants(t, "alice", 200, 200)
		require.Empty(t, p.errs)
		require.Equal(t, "p", p.found.Name)
		require.False(t, p.found.Allowed)
	})
}

// TestABanIsOfThePolicyThatDenies: a banned client takes nothing of the others, and what another denies bans nobody.
func TestABanIsOfThePolicyThatDenies(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		three := ginlimit.PerHour(3)
		p := beside(t, b, all(b, three), ginlimit.PerHour(1), ginlimit.WithBan(10*time.Hour, 10*time.Hour))
		p.wants(t, "alice", 200, 429, 429)
		require.Equal(t, "p", p.found.Name)
		require.InDelta(t, 10*time.Hour, p.found.RetryAfter, float64(time.Minute))
		p.leftOfAll(t, 2, three)
		p.wants(t, "bob", 200)
		p.wants(t, "carol", 200)
		p.wants(t, "dave", 429, 429)
		require.Equal(t, "all", p.found.Name)
		require.Less(t, p.found.RetryAfter, time.Hour)
		testkit.RequireMade(t, b.Limiter.Reset(t.Context(), ginlimit.Key("all", "all"), three))
		p.wants(t, "dave", 200)
		p.wants(t, "alice", 429)
	})
}

// TestPoliciesThatBothBan: each bans its own client, at its own denial.
func TestPoliciesThatBothBan(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := beside(t, b, all(b, ginlimit.PerSecond(3), ginlimit.WithBan(time.Minute, time.Minute)),
			ginlimit.PerSecond(2), ginlimit.WithBan(time.Hour, time.Hour))
		p.wants(t, "alice", 200, 200, 429)
		require.Equal(t, "p", p.found.Name)
		p.wants(t, "bob", 200, 429)
		require.Equal(t, "all", p.found.Name)
		require.Equal(t, ginlimit.CauseBan, p.found.Cause)
		p.wants(t, "carol", 429)
		time.Sleep(time.Minute)
		p.wants(t, "carol", 200)
		p.wants(t, "bob", 200)
		p.wants(t, "alice", 429)
		require.Equal(t, "p", p.found.Name)
		require.Equal(t, ginlimit.CauseBan, p.found.Cause)
	})
}

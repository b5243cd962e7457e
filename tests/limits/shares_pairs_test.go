package limits_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Shares beside other features. See docs/reference.md.

// asTenant names the tenant of a request.
func asTenant(name string) func(*http.Request) { return testkit.With("X-Tenant", name) }

// sharesBy has tenants share what a policy limits.
func sharesBy() ginlimit.PolicyOption {
	return ginlimit.WithShares(func(c *gin.Context) (string, int) { return c.GetHeader("X-Tenant"), 1 })
}

// shared returns a policy named "p" whose clients' tenants share its limits.
func shared(t *testing.T, b testkit.Backend, opts ...ginlimit.PolicyOption) *counted {
	t.Helper()
	return counts(t, b, append(opts, sharesBy())...)
}

// asks sends requests of a tenant for the model, and wants their statuses.
func (c *counted) asks(t *testing.T, tenant string, codes ...int) {
	t.Helper()
	for i, code := range codes {
		require.Equal(t, code, c.send("model", asTenant(tenant)).Code, "%s, request %d: %+v", tenant, i, c.found)
	}
}

// may requires that a tenant may take a number of tokens of the model now.
func (c *counted) may(t *testing.T, tenant string, want int) {
	t.Helper()
	require.Equal(t, want, testkit.Must(c.Share(tenant, 1).Peek(t.Context(), "model")).Remaining, tenant)
}

// TestSharesInAllOf: a request that the tenant's share denies takes nothing of another policy, and one that another
// policy denies nothing of the share.
func TestSharesInAllOf(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		five := ginlimit.PerHour(5)
		p := beside(t, b, all(b, five), ginlimit.PerHour(8), sharesBy())
		p.asks(t, "a", 200, 200, 200, 200, 429)
		require.Equal(t, ginlimit.CauseShare, p.found.Cause)
		p.leftOfAll(t, 1, five)
		p.may(t, "b", 2)
		p.asks(t, "b", 200, 429)
		require.Equal(t, ginlimit.CauseRate, p.found.Cause)
		require.Equal(t, "all", p.found.Name)
		p.may(t, "b", 1)
	})
}

// TestSharesOfTwoPolicies in one decision: all or none, whichever of them denies.
func TestSharesOfTwoPolicies(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		small := testkit.NewPolicy(t, b.Limiter, "small", ginlimit.PerHour(8), sharesBy()).Share("a", 1)
		large := testkit.NewPolicy(t, b.Limiter, "large", ginlimit.PerDay(16), sharesBy()).Share("a", 1)
		charges := []ginlimit.Charge{{Policy: small, Client: "model", N: 2}, {Policy: large, Client: "model", N: 1}}
		for _, order := range [][]ginlimit.Charge{charges, {charges[1], charges[0]}} {
			for range 3 {
				r := testkit.Must(ginlimit.ReserveAll(t.Context(), order...))
				allowed := r.Result().Allowed
				if !allowed {
					require.Equal(t, "small", r.Result().Name)
					require.Equal(t, ginlimit.CauseShare, r.Result().Cause)
				}
				left := testkit.Must(large.Peek(t.Context(), "model"))
				own := testkit.Must(small.Peek(t.Context(), "model"))
				require.Equal(t, 2*(8-left.Remaining), 4-own.Remaining, "of both, or of none: %v", allowed)
			}
			testkit.RequireMade(t, small.Reset(t.Context(), "model"))
			testkit.RequireMade(t, large.Reset(t.Context(), "model"))
			time.Sleep(21 * time.Second) // more than two timeouts of the limiter
		}
	})
}

// TestAResetOfAllTenants is what Reset without Share is: nobody holds anything, and no reservation from before gives
// anything back. So does one tenant's Reset void the reservations of all.
func TestAResetOfAllTenants(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		for name, resets := range map[string]func(p *ginlimit.Policy) error{
			"all": func(p *ginlimit.Policy) error { return p.Reset(t.Context(), "model") },
			"one": func(p *ginlimit.Policy) error { return p.Share("a", 1).Reset(t.Context(), "model") },
		} {
			p := testkit.NewPolicy(t, b.Limiter, name, ginlimit.PerDay(1000), sharesBy())
			var all []*ginlimit.Reservation
			for tenant, n := range map[string]int{"a": 200, "b": 100} {
				r := testkit.Must(p.Share(tenant, 1).Reserve(t.Context(), "model", n))
				require.True(t, r.Result().Allowed)
				all = append(all, r)
			}
			time.Sleep(time.Millisecond)
			testkit.RequireMade(t, resets(p))
			left := map[string]int{"all": 1000, "one": 900}[name]
			for range 2 {
				r := testkit.Must(p.Share("c", 1).Peek(t.Context(), "model"))
				require.Equal(t, left/2, r.Remaining, name)
				r = testkit.Must(p.Share("c", 1).AllowN(t.Context(), "model", 300))
				require.True(t, r.Allowed)
				testkit.RequireMade(t, p.Share("c", 1).Refund(t.Context(), "model", 300))
				for _, r := range all {
					require.NoError(t, r.Cancel(t.Context()))
				}
			}
		}
	})
}

// TestATenantWaitsForItsShare in a queue, and holds up nobody who is below its own.
func TestATenantWaitsForItsShare(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := shared(t, b, ginlimit.PerMinute(60).WithBurst(8), ginlimit.WithQueue(4, time.Minute))
		p.asks(t, "a", 200, 200, 200, 200)
		start := time.Now()
		waits := make(chan error, 1)
		go func() { waits <- p.Share("a", 1).Wait(context.Background(), "model") }()
		time.Sleep(100 * time.Millisecond)
		before := time.Now()
		p.asks(t, "b", 200)
		require.Less(t, time.Since(before), 50*time.Millisecond)
		require.NoError(t, <-waits)
		// It held 4 with 4 free; 3 were free after b's. It needs 5 - own ≤ free: each second gives it
		// back half a token, and frees one.
		require.InDelta(t, 1250*time.Millisecond, time.Since(start), float64(300*time.Millisecond))
	})
}

// TestSharesOfAPlan: the tenants of a client share the limits of its plan. A plan that cannot be shared
// goes to the error handler.
func TestSharesOfAPlan(t *testing.T) {
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		p := shared(t, b, ginlimit.WithLimitFunc(func(_ context.Context, client string) ([]ginlimit.Limit, error) {
			if client == "window" {
				return []ginlimit.Limit{ginlimit.PerHour(8).WithAlgorithm(ginlimit.FixedWindow)}, nil
			}
			return []ginlimit.Limit{ginlimit.PerHour(8)}, nil
		}))
		p.asks(t, "a", 200, 200, 200, 200, 429)
		require.Equal(t, ginlimit.CauseShare, p.found.Cause)
		p.asks(t, "b", 200)
		require.Equal(t, 200, p.send("another", asTenant("a")).Code, "another client's bucket")
		require.Equal(t, 500, p.send("window", asTenant("a")).Code)
		require.ErrorContains(t, p.errs[0], "WithShares does not go together with")
	})
}

// TestADenialOfAShareIsRemembered for its tenant alone, until the tenant's charge fits.
func TestADenialOfAShareIsRemembered(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		p := shared(t, testkit.Backend{Limiter: testkit.NewLimiter(t, b.Redis, testkit.RemembersDenials())},
			ginlimit.PerMinute(60).WithBurst(8))
		p.asks(t, "a", 200, 200, 200, 200)
		time.Sleep(time.Millisecond)
		p.asks(t, "a", 429)
		require.Equal(t, ginlimit.FromRedis, p.found.Source)
		p.asks(t, "a", 429)
		require.Equal(t, ginlimit.FromCache, p.found.Source)
		require.Equal(t, ginlimit.CauseShare, p.found.Cause)
		retry := p.found.RetryAfter
		require.InDelta(t, 500*time.Millisecond, retry, float64(30*time.Millisecond),
			"alone, a token that flows back counts twice")
		p.asks(t, "b", 200)
		require.Equal(t, ginlimit.FromRedis, p.found.Source)
		time.Sleep(time.Millisecond)
		p.asks(t, "a", 429)
		require.Equal(t, ginlimit.FromRedis, p.found.Source)
		require.Greater(t, p.found.RetryAfter, 2*retry, "b has taken of what was free")
		p.asks(t, "a", 429)
		require.Equal(t, ginlimit.FromCache, p.found.Source)
		time.Sleep(p.found.RetryAfter)
		p.asks(t, "a", 200)
		p.asks(t, "a", 429)
		require.NoError(t, p.Share("a", 1).Refund(t.Context(), "model", 1))
		p.asks(t, "a", 200)
	})
}

package limits_test

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestShareSaysWhatItWants: every method of a policy for a tenant returns all that is wrong with it.
func TestShareSaysWhatItWants(t *testing.T) {
	t.Parallel()
	l := testkit.NewLocal(t)
	shared := testkit.NewPolicy(t, l, "shared", ginlimit.PerHour(8), ginlimit.WithShares(unusedTenant))
	plain := testkit.NewPolicy(t, l, "plain", ginlimit.PerHour(8), ginlimit.InFlight(3))
	for _, c := range []struct {
		name  string
		p     *ginlimit.Policy
		wants []string
	}{
		{"no Share", shared, []string{"call Share(tenant, weight) before this method"}},
		{"no WithShares", plain.Share("a", 1), []string{"Share needs a policy with WithShares"}},
		{"empty", shared.Share("", 1), []string{"the tenant is empty"}},
		{"weight 0", shared.Share("a", 0), []string{"a weight of 0; want 1 to 1000"}},
		{"weight below 0", shared.Share("a", math.MinInt), []string{"want 1 to 1000"}},
		{"weight 1001", shared.Share("a", 1001), []string{"a weight of 1001"}},
		{"all at once", plain.Share("", math.MaxInt),
			[]string{"needs a policy with WithShares", "is empty", "want 1 to 1000"}},
		{"Share of a Share that is wrong", shared.Share("", 1).Share("a", 0), []string{"a weight of 0"}},
	} {
		ctx := t.Context()
		for method, call := range map[string]func() error{
			"Allow":     func() error { _, err := c.p.Allow(ctx, "k"); return err },
			"AllowN":    func() error { _, err := c.p.AllowN(ctx, "k", 2); return err },
			"AllowUpTo": func() error { _, err := c.p.AllowUpTo(ctx, "k", 2); return err },
			"Wait":      func() error { return c.p.Wait(ctx, "k") },
			"Peek":      func() error { _, err := c.p.Peek(ctx, "k"); return err },
			"Status":    func() error { _, err := c.p.Status(ctx, "k"); return err },
			"Refund":    func() error { return c.p.Refund(ctx, "k", 1) },
			"Block":     func() error { return c.p.Block(ctx, "k", time.Second) },
			"Reset":     func() error { return c.p.Reset(ctx, "k") },
			"Reserve":   func() error { _, err := c.p.Reserve(ctx, "k", 1); return err },
		} {
			err := call()
			if c.p == shared && method == "Reset" {
				require.NoError(t, err, "it is of all")
				continue
			}
			require.ErrorIs(t, err, ginlimit.ErrInvalidArgument, "%s, %s", c.name, method)
			for _, want := range c.wants {
				require.ErrorContains(t, err, want, "%s, %s", c.name, method)
			}
		}
	}
	_, err := new(ginlimit.Policy).Share("a", 1).Allow(t.Context(), "k")
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
	r, err := shared.Share("", 1).Share("a", 1).Peek(t.Context(), "k")
	require.NoError(t, err, "the last Share counts")
	require.Equal(t, 4, r.Remaining)
}

// TestRequestsWithoutATenant go to the error handler, and no client reads why.
func TestRequestsWithoutATenant(t *testing.T) {
	t.Parallel()
	tenant, weight := "a", 1
	p := testkit.NewPolicy(t, testkit.NewLocal(t), "shared", ginlimit.PerHour(8),
		ginlimit.WithShares(func(*gin.Context) (string, int) { return tenant, weight }))
	var errs []*gin.Error
	router := testkit.Serve(func(c *gin.Context) { c.Next(); errs = c.Errors }, p.Handler())
	for _, c := range []struct {
		tenant string
		weight int
		status int
		want   string
	}{
		{"a", 1, http.StatusOK, ""},
		{"", 1, http.StatusInternalServerError, "the tenant is empty"},
		{"a", 0, http.StatusInternalServerError, "a weight of 0"},
		{"a", -1, http.StatusInternalServerError, "a weight of -1"},
		{"a", 1000, http.StatusOK, ""},
		{"a", 1001, http.StatusInternalServerError, "a weight of 1001"},
		{strings.Repeat("x", 1<<20), 1, http.StatusOK, ""},
	} {
		tenant, weight = c.tenant, c.weight
		rec := testkit.Get(router, "/")
		require.Equal(t, c.status, rec.Code, c)
		require.NotContains(t, rec.Body.String(), "weight")
		require.NotContains(t, rec.Body.String(), "empty")
		if c.want != "" {
			require.ErrorContains(t, errs[len(errs)-1], c.want)
		}
	}
}

// TestEveryTenantHasItsOwnShare whatever its name, and a long one takes no long key.
func TestEveryTenantHasItsOwnShare(t *testing.T) {
	names := []string{
		"a", "A", " a", "a ", "b", "b:a", ":a", ":", "", "a\x00", "a\n", "{a}", "é", "e\u0301", "\xff", "%", "%61", "a b",
		strings.Repeat("x", 1<<20), strings.Repeat("x", 1<<20) + "y", strings.Repeat("x", 64), "tenants", "totals",
	}
	for _, secret := range [][]byte{nil, []byte("a secret of thirty-two characters")} {
		testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
			var opts []ginlimit.LimiterOption
			if secret != nil {
				opts = append(opts, ginlimit.WithKeySecret(secret))
			}
			for place, l := range map[string]*testkit.Limiter{
				"Redis": testkit.NewLimiter(t, b.Redis, opts...), "process": testkit.NewLocal(t),
			} {
				p := testkit.NewPolicy(t, l, "shared", ginlimit.PerHour(1000), ginlimit.WithShares(unusedTenant))
				for _, name := range names {
					if name == "" {
						continue
					}
					require.True(t, testkit.Must(p.Share(name, 1).AllowN(t.Context(), "k", 3)).Allowed)
				}
				for _, name := range names {
					if name == "" {
						continue
					}
					require.NoError(t, p.Share(name, 1).Reset(t.Context(), "k"))
				}
				r := testkit.Must(p.Share("new", 1).Peek(t.Context(), "k"))
				require.Equal(t, 500, r.Remaining, "%s: each reset gave back what its tenant took", place)
			}
			for _, name := range names {
				if secret != nil && len(name) > 3 && name != "tenants" || len(name) > 1000 {
					require.NotContains(t, b.Mini.Dump(), name[:min(100, len(name))])
				}
			}
			require.Less(t, len(b.Mini.Dump()), 20_000)
		})
	}
}

// TestASmallBurstIsLoggedOnce with the burst that would do for the tenants that were busy.
func TestASmallBurstIsLoggedOnce(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		limiter, log := testkit.LoggedLimiter(t, b.Redis)
		small := testkit.NewPolicy(t, limiter, "small", ginlimit.PerHour(20), ginlimit.WithShares(unusedTenant))
		large := testkit.NewPolicy(t, limiter, "large", ginlimit.PerHour(24), ginlimit.WithShares(unusedTenant))
		for _, p := range []*ginlimit.Policy{small, large} {
			for range 3 {
				testkit.Must(p.Share("a", 1).AllowUpTo(t.Context(), "k", 20))
				testkit.Must(p.Share("b", 2).AllowUpTo(t.Context(), "k", 20))
			}
		}
		require.Equal(t, 1, strings.Count(log.String(), "the burst is too small for the tenants"), log.String())
		require.Contains(t, log.String(), "name=small")
		require.Contains(t, log.String(), "want=24")

		// What stays free beside others is too little for a costly request, so the rate denies it.
		costly := testkit.NewPolicy(t, limiter, "costly", ginlimit.PerHour(64), ginlimit.WithShares(unusedTenant),
			ginlimit.WithFloor(4))
		testkit.Must(costly.Share("a", 1).AllowN(t.Context(), "k", 45))
		testkit.Must(costly.Share("a", 1).AllowN(t.Context(), "k", 45))
		require.NotContains(t, log.String(), "name=costly", "nobody else is busy")
		require.Equal(t, ginlimit.CauseRate, testkit.Must(costly.Share("b", 1).AllowN(t.Context(), "k", 20)).Cause)
		require.Regexp(t, `name=costly limit=64/h burst=64 want=324`, log.String())
	})
}

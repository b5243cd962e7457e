package limits_test

import (
	"context"
	"fmt"
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
			"AllowN":    func() error { return testkit.Err(c.p.AllowN(ctx, "k", 2)) },
			"AllowUpTo": func() error { return testkit.Err(c.p.AllowUpTo(ctx, "k", 2)) },
			"Wait":      func() error { return c.p.Wait(ctx, "k") },
			"Peek":      func() error { return testkit.Err(c.p.Peek(ctx, "k")) },
			"Status":    func() error { return testkit.Err(c.p.Status(ctx, "k")) },
			"Refund":    func() error { return c.p.Refund(ctx, "k", 1) },
			"Block":     func() error { return c.p.Block(ctx, "k", time.Second) },
			"Reset":     func() error { return c.p.Reset(ctx, "k") },
			"Reserve":   func() error { return testkit.Err(c.p.Reserve(ctx, "k", 1)) },
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
	require.ErrorContains(t, shared.Share("a", 1).Block(t.Context(), "k", time.Hour), "put another beside it, and block that one")
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
		"a", "A", " a", "a ", "b", "b:a", ":a", ":", "a\x00", "a\n", "{a}", "é", "e\u0301", "\xff", "%", "%61", "a b",
		strings.Repeat("x", 1<<20), strings.Repeat("x", 1<<20) + "y", strings.Repeat("x", 64), "tenants", "totals",
	}
	for _, secret := range [][]byte{nil, []byte("a secret of thirty-two characters")} {
		testkit.RunInBubble(t, string(secret), func(t *testing.T, b *testkit.Bubble) {
			var opts []ginlimit.LimiterOption
			if secret != nil {
				opts = append(opts, ginlimit.WithKeySecret(secret))
			}
			for place, l := range map[string]*testkit.Limiter{
				"Redis": testkit.NewLimiter(t, b.Redis, opts...), "process": testkit.NewLocal(t),
			} {
				p := testkit.NewPolicy(t, l, "shared", ginlimit.PerHour(1000), ginlimit.WithShares(unusedTenant))
				for _, name := range names {
					require.True(t, testkit.Must(p.Share(name, 1).AllowN(t.Context(), "k", 3)).Allowed)
				}
				for _, name := range names {
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

// What others do to a shared bucket, and what is left of its keys.

// TestARaisedRateLeavesASharedBucketToItsTenants: the bucket lacks more tokens by the new rate than the
// tenants have taken.
func TestARaisedRateLeavesASharedBucketToItsTenants(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		for place, l := range map[string]*testkit.Limiter{
			"Redis": testkit.NewLimiter(t, b.Redis, ginlimit.WithDenyCache(0)), "process": testkit.NewLocal(t),
		} {
			p := testkit.NewPolicy(t, l, "p", testkit.LimitsOfContext(), ginlimit.WithShares(unusedTenant))
			before := testkit.WithLimits(t.Context(), ginlimit.PerMinute(60).WithBurst(1000))
			after := testkit.WithLimits(t.Context(), ginlimit.PerMinute(600).WithBurst(1000))
			for _, row := range []struct {
				ctx      context.Context
				tenant   string
				n, wants int
			}{{before, "a", 40, 40}, {after, "b", 300, 300}, {after, "b", 1, 0}, {before, "c", 2, 2}, {after, "c", 1, 1}} {
				r := testkit.Must(p.Share(row.tenant, 1).AllowUpTo(row.ctx, "k", row.n))
				require.Equal(t, row.wants, r.Granted, "%s: %+v", place, r)
			}
		}
	})
}

// TestTenantsUnderTwoBursts: what a tenant holds is known for as long as the bucket lacks it, whatever the burst
// was when it was taken.
func TestTenantsUnderTwoBursts(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		for place, l := range map[string]*testkit.Limiter{
			"Redis": testkit.NewLimiter(t, b.Redis, ginlimit.WithDenyCache(0)), "process": testkit.NewLocal(t),
		} {
			p := testkit.NewPolicy(t, l, "p", testkit.LimitsOfContext(), ginlimit.WithShares(unusedTenant)).Share("a", 1)
			small := testkit.WithLimits(t.Context(), ginlimit.PerSecond(100))
			large := testkit.WithLimits(t.Context(), ginlimit.PerSecond(100).WithBurst(10_000))
			for _, row := range []struct {
				ctx        context.Context
				n, granted int
			}{{small, 1, 1}, {large, 10_000, 4999}, {large, 1, 0}} {
				require.Equal(t, row.granted, testkit.Must(p.AllowUpTo(row.ctx, "k", row.n)).Granted, place)
			}
			time.Sleep(2 * time.Second)
			b.Mini.SetTime(time.Now())
			r := testkit.Must(p.Peek(large, "k"))
			require.Equal(t, 200, r.Remaining, "%s: it holds 4,800, and 5,200 are free", place)
		}
	})
}

// sharedLimits are those that traces of tenants run under.
var sharedLimits = []ginlimit.Limit{
	ginlimit.PerSecond(100).WithBurst(50),
	ginlimit.PerSecond(10),
	ginlimit.PerMinute(7).WithBurst(40),
	{Rate: 13, Period: 7 * time.Millisecond, Burst: 25},
	{Rate: 17, Period: time.Hour, Burst: 1000},
	ginlimit.PerSecond(3).WithBurst(2),
	ginlimit.PerMinute(100).WithBurst(60),
	ginlimit.PerHour(9000).WithBurst(500),
}

// unusedTenant is the function of policies whose methods alone are tested.
func unusedTenant(*gin.Context) (string, int) { return "unused", 1 }

// tenantTrace is one of the traces of tenants.
type tenantTrace struct {
	name  string
	limit ginlimit.Limit
	most  int64 // weight
	floor int
}

func (c *tenantTrace) policy(t testing.TB, l *testkit.Limiter) *ginlimit.Policy {
	return testkit.NewPolicy(t, l, "shared", c.limit, ginlimit.WithShares(unusedTenant), ginlimit.WithFloor(c.floor))
}

func (c *tenantTrace) model() *testkit.TenantsModel { return testkit.NewTenantsModel(int64(c.floor)) }

// tenantTraces are all traces of tenants, each with a seed.
func tenantTraces() (all []tenantTrace) {
	for i, limit := range sharedLimits {
		for _, most := range []int64{1, 10, 1000} {
			c := tenantTrace{limit: limit, most: most}
			if i%2 == 1 {
				c.floor = int(testkit.Burst(limit) / 4)
			}
			c.name = fmt.Sprintf("%v, weights up to %d, floor %d", limit, most, c.floor)
			all = append(all, c)
		}
	}
	return all
}

const tenantSteps = 3000

func TestTenantsEqualTheModelInProcess(t *testing.T) {
	t.Parallel()
	for seed, c := range tenantTraces() {
		testkit.RunSynctest(t, c.name, func(t *testing.T) {
			p, m := c.policy(t, testkit.NewLocal(t)), c.model()
			for i, s := range testkit.TenantTrace(uint64(seed), testkit.Steps(tenantSteps), c.limit, c.most) {
				time.Sleep(s.Wait) // the bubble's clock
				m.Advance(s.Wait)
				got := testkit.Must(s.Apply(t.Context(), p, "k"))
				if err := s.Check(m, "k", 0, c.limit, got); err != nil {
					require.Failf(t, "differs", "seed %d, step %d, %s: %s\ngot %+v", seed, i, s, err, got)
				}
			}
		})
	}
}

// TestTenantsEqualTheModelOnMiniredis has Redis and the process go by one clock.
func TestTenantsEqualTheModelOnMiniredis(t *testing.T) {
	t.Parallel()
	if !testkit.Has64Bits {
		t.Skip("miniredis reads an expiry as an int")
	}
	for seed, c := range tenantTraces() {
		testkit.RunInBubble(t, c.name, func(t *testing.T, b *testkit.Bubble) {
			p, m := c.policy(t, testkit.NewLimiter(t, b.Redis, ginlimit.WithDenyCache(0))), c.model()
			steps := testkit.Steps(tenantSteps) / testkit.TraceShare
			for i, s := range testkit.TenantTrace(uint64(seed), steps, c.limit, c.most) {
				time.Sleep(s.Wait)
				b.Mini.SetTime(time.Now())
				m.Advance(s.Wait)
				got := testkit.Must(s.Apply(t.Context(), p, "k"))
				if err := s.Check(m, "k", 0, c.limit, got); err != nil {
					require.Failf(t, "differs", "seed %d, step %d, %s: %s\ngot %+v", seed, i, s, err, got)
				}
			}
		})
	}
}

// TestSharesSurviveWhatOthersDoToTheirKeys: a process whose policy has no shares charges the same bucket, and Redis
// evicts a key. Then it may be wrong who holds what, but calls are answered, and the bucket is exact.
func TestSharesSurviveWhatOthersDoToTheirKeys(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := testkit.NewLimiter(t, b.Redis, ginlimit.WithDenyCache(0))
		limit := ginlimit.PerMinute(60).WithBurst(1000)
		shared := testkit.NewPolicy(t, l, "p", limit, ginlimit.WithShares(unusedTenant))
		plain := testkit.NewPolicy(t, testkit.NewLimiter(t, b.Connect(t)), "p", limit)
		taken := 0
		take := func(p *ginlimit.Policy, n int) {
			r := testkit.Must(p.AllowN(t.Context(), "k", n))
			if r.Allowed {
				taken += n
			}
		}
		for i := range 40 {
			take(shared.Share("a", 1+i%3), 1)
			take(plain, 1+3*(i%20))
			take(shared.Share("b", 1), 1+i)
			for _, evicted := range []string{"ginlimit:{p|k}:m:tenants", "ginlimit:{p|k}:m:tenants:held"} {
				if i%10 > 5 {
					b.Mini.Del(evicted)
				}
				take(shared.Share("c", 2), 2)
			}
			require.Equal(t, 1000-taken, testkit.Must(plain.Peek(t.Context(), "k")).Remaining)
		}
		require.Greater(t, taken, 500)
	})
}

package limits_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

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
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
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
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
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
		})
	}
}

// TestSharesSurviveWhatOthersDoToTheirKeys: a process whose policy has no shares charges the same bucket, and Redis
// evicts a key. Then it may be wrong who holds what, but calls are answered, and the bucket is exact.
func TestSharesSurviveWhatOthersDoToTheirKeys(t *testing.T) {
	t.Parallel()
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

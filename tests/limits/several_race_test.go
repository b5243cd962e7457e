package limits_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestManyDecisionsOnSeveralPoliciesAtOnce, in any order of the policies: what is charged in the end is what was
// granted, and nothing of what was denied.
func TestManyDecisionsOnSeveralPoliciesAtOnce(t *testing.T) {
	const callers = 16
	testkit.OnEveryBackend(t, func(t *testing.T, b testkit.Backend) {
		fixed, sliding := ginlimit.PerDay(150).WithAlgorithm(ginlimit.FixedWindow),
			ginlimit.PerDay(150).WithAlgorithm(ginlimit.SlidingWindow)
		year := 365 * 24 * time.Hour
		slow := ginlimit.Limit{Rate: 1, Period: year, Burst: 100}
		var policies []*ginlimit.Policy
		for i, opts := range [][]ginlimit.PolicyOption{
			{slow}, {slow, ginlimit.InFlight(3)}, {fixed}, {sliding}, {ginlimit.Limit{Rate: 1, Period: year, Burst: 60}},
			{fixed, ginlimit.InFlight(9)},
		} {
			policies = append(policies, testkit.NewPolicy(t, b.Limiter, fmt.Sprint("p", i), opts...))
		}
		before := map[int]int{}
		for i, p := range policies {
			before[i] = testkit.Must(p.Status(t.Context(), "k"))[0].Remaining
		}
		granted := make([]atomic.Int64, len(policies))
		var allowed, denied atomic.Int64
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				r := rand.New(rand.NewPCG(uint64(caller), 58))
				for range testkit.Steps(200) {
					some := r.Perm(len(policies))[:2+r.IntN(3)]
					var charges []ginlimit.Charge
					for _, i := range some {
						charges = append(charges, charge(policies[i], "k", 1+r.IntN(4)))
					}
					got, err := ginlimit.ReserveAll(t.Context(), charges...)
					if !assert.NoError(t, err) {
						return
					}
					if !got.Result().Allowed {
						denied.Add(1)
						continue
					}
					allowed.Add(1)
					for j, i := range some {
						granted[i].Add(int64(charges[j].N))
					}
					if r.IntN(4) == 0 {
						time.Sleep(time.Millisecond)
					}
					got.Release()
				}
			})
		}
		all.Wait()
		require.Positive(t, allowed.Load())
		require.Positive(t, denied.Load())
		time.Sleep(time.Second) // what is given back, and slots that are reported
		for i, p := range policies {
			rows := testkit.Must(p.Status(t.Context(), "k"))
			require.Equal(t, before[i]-int(granted[i].Load()), rows[0].Remaining, "policy %d: %s", i, rows[0].Limit)
			for _, row := range rows[1:] {
				require.Equal(t, row.Limit.InFlight, row.Remaining, "slots of policy %d", i)
			}
		}
		require.Zero(t, b.Limiter.Stats().Slots)
	})
}

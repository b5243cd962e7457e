package pairs_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Leases beside each other feature: see docs/pairs.md.

// admittedBy takes all tokens of the client "alice" that there are, one by one, of policies that take turns.
func admittedBy(t *testing.T, policies ...*ginlimit.Policy) (n int) {
	t.Helper()
	for denied := 0; denied < len(policies); {
		denied = 0
		for _, p := range policies {
			r, err := p.Allow(t.Context(), "alice")
			require.NoError(t, err)
			if n += r.Granted; !r.Allowed {
				denied++
			}
		}
	}
	return n
}

// TestWaitsUnderALease are served from it, and neither sooner nor later than the limit admits.
func TestWaitsUnderALease(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l := testkit.NewLimiter(t, b.Redis, ginlimit.WithLease(100*time.Millisecond), testkit.TrustsClock())
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerSecond(100).WithBurst(200))
		var all sync.WaitGroup
		start := time.Now()
		for range 3 {
			all.Go(func() {
				for range 300 {
					assert.NoError(t, p.Wait(t.Context(), "alice"))
					time.Sleep(2 * time.Millisecond)
				}
			})
		}
		all.Wait()
		require.Positive(t, l.Stats().Leased)
		require.GreaterOrEqual(t, time.Since(start), 7*time.Second-10*time.Millisecond,
			"900 tokens, of which 200 are there at once")
		require.Less(t, time.Since(start), 7500*time.Millisecond)

		leased := l.Stats().Leased
		queued := testkit.NewPolicy(t, l, "queued", ginlimit.PerMinute(60_000),
			ginlimit.InFlight(1),
			ginlimit.WithQueue(1, time.Hour))
		for range 50 {
			slot, next := testkit.Acquire(t, queued), make(chan *ginlimit.Slot, 1)
			all.Go(func() { next <- testkit.Acquire(t, queued) })
			time.Sleep(10 * time.Millisecond)
			slot.Release()
			slot = <-next
			require.True(t, slot.Result().Allowed)
			require.Equal(t, ginlimit.FromRedis, slot.Result().Source)
			slot.Release()
			synctest.Wait()
		}
		all.Wait()
		require.Equal(t, leased, l.Stats().Leased, "who waits for a slot takes no tokens ahead")
	})
}

// TestALeaseLeavesTheFloor of its policy to the others of its name, in the same process and in
// others, with and without leases.
func TestALeaseLeavesTheFloor(t *testing.T) {
	for _, a := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow} {
		for name, of := range map[string]struct {
			same  bool
			lease time.Duration
		}{"one process": {true, testkit.LeaseLife}, "two processes": {false, testkit.LeaseLife},
			"without a lease": {false, 0}} {
			t.Run(a.String()+", "+name, func(t *testing.T) {
				testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
					limit := testkit.LeasePerMinute
					if a == ginlimit.FixedWindow {
						limit = ginlimit.PerMinute(1000).WithAlgorithm(a)
					}
					l := b.Limiter(t)
					other := l
					if !of.same {
						other = b.Limiter(t)
					}
					batch := testkit.NewPolicy(t, l, "api", limit, ginlimit.WithFloor(400))
					people := testkit.NewPolicy(t, other, "api", limit, ginlimit.WithLease(of.lease))
					require.Equal(t, 600, admittedBy(t, batch))
					require.Positive(t, l.Stats().Leased)
					require.Equal(t, 400, admittedBy(t, people))
					require.Zero(t, admittedBy(t, batch, people))
				})
			})
		}
	}
}

// TestALeaseOfACalendarQuota ends with its period: in each, processes with leases admit exactly the quota.
func TestALeaseOfACalendarQuota(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		life := ginlimit.WithLease(2 * time.Hour) // in which 200 tokens flow back
		one, two := b.Limiter(t, life), b.Limiter(t, life)
		quota := ginlimit.PerCalendar(2400, endingDay())
		p, q := testkit.NewPolicy(t, one, "api", quota), testkit.NewPolicy(t, two, "api", quota)
		used := b.Leases(t, p) + b.Leases(t, q)
		require.Less(t, used, 2000)
		b.Advance(time.Minute)
		require.Equal(t, 2400, admittedBy(t, p, q), "nothing is left of the period that has ended")
		b.Advance(24 * time.Hour)
		used = b.Leases(t, p) + b.Leases(t, q)
		require.Equal(t, 2400, used+admittedBy(t, p, q))
	})
}

// TestAnotherPlanEndsALease at once in the process that asks for the plan.
func TestAnotherPlanEndsALease(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		plan := []ginlimit.Limit{testkit.LeasePerMinute}
		p := testkit.NewPolicy(t, b.Limiter(t), "api",
			ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) { return plan, nil }))
		allow := func() ginlimit.Result {
			r, err := p.Allow(t.Context(), "alice")
			require.NoError(t, err)
			return r
		}
		for _, other := range []ginlimit.Limit{ginlimit.PerHour(0), ginlimit.PerMinute(1),
			testkit.LeasePerMinute.WithBurst(2000), ginlimit.PerHour(50)} {
			plan = []ginlimit.Limit{testkit.LeasePerMinute}
			b.Advance(5 * time.Second) // after two changes within this time there is no lease
			require.NoError(t, p.Reset(t.Context(), "alice"))
			used := b.Leases(t, p)
			plan = []ginlimit.Limit{other}
			got := allow()
			require.NotEqual(t, ginlimit.FromLease, got.Source, "%s", other)
			require.Equal(t, other.Rate > 1, got.Allowed, "%s", other)
			if other.Rate == 1 {
				require.Greater(t, got.RetryAfter, time.Minute, "what was used under the other plan counts")
			}
			plan = []ginlimit.Limit{testkit.LeasePerMinute}
			used += admittedBy(t, p)
			require.LessOrEqual(t, used, 1000, "%s: no token is used twice", other)
			require.Greater(t, used, 980, "%s: few tokens are lost", other)
		}
	})
}

// TestADryRunUnderALease counts as without one, and denies nobody. It shares the lease with the
// policy in force of its name.
func TestADryRunUnderALease(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t)
		opts := []ginlimit.PolicyOption{testkit.LeasePerMinute, testkit.ByUser()}
		trial := testkit.NewPolicy(t, l, "api", append(opts, ginlimit.WithDryRun())...)
		force := testkit.NewPolicy(t, l, "api", opts...)
		var found ginlimit.Result
		router := testkit.Serve(func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }, trial.Handler())
		sources := map[ginlimit.Source]int{}
		for range 1000 {
			require.Equal(t, http.StatusOK, testkit.Get(router, "/", testkit.User("alice")).Code)
			require.True(t, found.Allowed)
			sources[found.Source]++
		}
		require.Greater(t, sources[ginlimit.FromLease], 500)
		require.Equal(t, http.StatusOK, testkit.Get(router, "/", testkit.User("alice")).Code)
		require.False(t, found.Allowed)
		require.Zero(t, admittedBy(t, force), "its tokens are the dry run's")

		require.NoError(t, force.Reset(t.Context(), "alice"))
		b.Leases(t, force)
		require.Equal(t, http.StatusOK, testkit.Get(router, "/", testkit.User("alice")).Code)
		require.True(t, found.Allowed)
	})
}

// TestARememberedDenialLeavesTheLease: who wants more than there is is denied from memory, and who
// wants less is admitted from the lease. A refund ends the denial and the lease.
func TestARememberedDenialLeavesTheLease(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t)
		require.Equal(t, "rrrlrlllrl", testkit.Sources(t, l, 10, testkit.LeasePerMinute)) // and holds 6
		e := testkit.Engine{Limiter: l}
		require.True(t, e.AllowN(t, 984, testkit.LeasePerMinute).Allowed)
		for _, source := range []ginlimit.Source{ginlimit.FromRedis, ginlimit.FromCache, ginlimit.FromCache} {
			r := e.AllowN(t, 7, testkit.LeasePerMinute)
			require.False(t, r.Allowed)
			require.Equal(t, source, r.Source)
		}
		r := e.AllowN(t, 2, testkit.LeasePerMinute)
		require.True(t, r.Allowed)
		require.Equal(t, ginlimit.FromLease, r.Source)
		require.Equal(t, 4, r.Remaining)
		require.False(t, e.AllowN(t, 5, testkit.LeasePerMinute).Allowed)
		require.Equal(t, ginlimit.FromCache, e.AllowN(t, 5, testkit.LeasePerMinute).Source)
		require.NoError(t, l.Refund(t.Context(), "k", 1, testkit.LeasePerMinute))
		r = e.AllowN(t, 1, testkit.LeasePerMinute)
		require.True(t, r.Allowed)
		require.Equal(t, ginlimit.FromRedis, r.Source)
		require.False(t, e.AllowN(t, 1, testkit.LeasePerMinute).Allowed)
	})
}

// TestLeasesWhileAHashSlotMigrates of several limits: no more is admitted than each allows, and
// what was not used goes back.
func TestLeasesWhileAHashSlotMigrates(t *testing.T) {
	testkit.OnLeaseBench(t, func(t *testing.T, b *testkit.LeaseBench) {
		l := b.Limiter(t)
		day := ginlimit.PerDay(100_000).WithBurst(2000)
		p := testkit.NewPolicy(t, l, "api", testkit.LeasePerMinute, day)
		used := b.Leases(t, p)
		end := migrate(b.Bubble)
		for range 200 {
			r, err := p.Allow(t.Context(), "alice")
			require.NoError(t, err)
			require.True(t, r.Allowed)
			used++
		}
		require.Positive(t, l.Stats().Leases)
		require.NoError(t, l.Close())
		end()
		other := b.Limiter(t)
		for limit, whole := range map[ginlimit.Limit]int{testkit.LeasePerMinute: 1000, day: 2000} {
			r, err := other.Peek(t.Context(), ginlimit.Key("api", "alice"), limit)
			require.NoError(t, err)
			require.InDelta(t, whole-used, r.Remaining, 2, limit)
		}
	})
}
